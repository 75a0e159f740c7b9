"""`python -m gemrl` is the `gemrl` command."""

from gemrl.cli import run

run()
