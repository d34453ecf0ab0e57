"""`python -m transformer_family train …` is `tfam-train …`, where a launcher such as torchrun wants a module."""
import sys

from transformer_family import cli

if __name__ == '__main__':
    commands = dict(models=cli.tfam_models, train=cli.tfam_train, generate=cli.tfam_generate, eval=cli.tfam_eval)
    name = sys.argv[1] if len(sys.argv) > 1 else ''
    if name not in commands:
        sys.exit(f"python -m transformer_family takes {', '.join(commands)}, got {name!r}")
    sys.argv[:2] = [f'tfam-{name}']
    sys.exit(commands[name]())
