"Figures that the documentation quotes, measured by `python -m benchmarks.run`."
