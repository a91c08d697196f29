"""The errors a user can meet, each one line that says what is wrong and what to do.

`ConfigError` and `DataError` mean "wrong usage": the command line turns them into exit status 2 before anything is
written. `RunError` means "failed while running": exit status 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedveilError(Exception):
    """Base of every error that is shown as one line, without a traceback."""

    exit_code = 1

    def __init__(self, message: str):
        super().__init__(printable(message))


class RunError(FedveilError):
    """Something failed while running."""


class Interrupted(FedveilError):
    """The user asked to stop; the message says how to go on."""

    exit_code = 130


class DataError(FedveilError):
    """A dataset is missing, damaged or unfit for what was asked."""

    exit_code = 2


class ConfigError(FedveilError):
    """A key has a value that is not accepted. The message names the key, its value and what is accepted."""

    exit_code = 2

    def __init__(self, key: str, got: object, takes: str):
        self.key, self.got, self.takes = key, got, takes
        super().__init__(f"{key}: got {show(got)}; {takes}")


def printable(text: str) -> str:
    """The text with line breaks and other control characters written as in Python: a path may hold any of them."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def show(value: object) -> str:
    """A value as the user would write it, kept to one short line."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 80 else text[:77] + "..."


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A hint with the nearest known name, or the list of all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(str(name).lower().replace("_", "-"), known, n=1, cutoff=0.5)
    near = near or difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{hint}takes one of: {', '.join(known)}"


def unknown_name(key: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that is in none of our tables."""
    return ConfigError(key, name, did_you_mean(name, known))
