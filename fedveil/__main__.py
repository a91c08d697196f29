"""`python -m fedveil` is the command `fedveil`."""

from fedveil.cli.main import entry

entry()
