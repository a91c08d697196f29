"""The registry of accountants: one class each, found by name.

An accountant reads rounds and returns an ε. To add one, write a class with the three members of `Accountant` and register
an instance, inside this package or outside it:

    from fedveil.accounting.accountants import register_accountant

    class Doubled:
        name = "doubled"
        certifies = False

        def epsilon(self, rounds, delta):
            ...

    register_accountant(Doubled())
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, runtime_checkable

from fedveil.accounting.composition import Rounds
from fedveil.core.errors import ConfigError


@runtime_checkable
class Accountant(Protocol):
    """Turns rounds into an ε at δ.

    `certifies` says whether ε is a proven upper bound on what the rounds cost; where it is false, no row of this accountant
    is certified. `epsilon` gets each distinct round once, with how often it happens (at least once), and returns None
    where it has no bound. `Round.fails` is already taken off δ.
    """

    @property
    def name(self) -> str: ...

    @property
    def certifies(self) -> bool: ...

    def epsilon(self, rounds: Rounds, delta: float) -> float | None: ...


_MADE: dict[str, Accountant] = {}
_LATER: dict[str, Callable[[], Accountant]] = {}


def register_accountant(accountant: Accountant, *, replace: bool = False) -> None:
    """Makes an accountant known under its name. A name that is taken is refused unless `replace`."""
    if not isinstance(accountant, Accountant):
        raise TypeError(f"{accountant!r} is no accountant: it needs name, certifies and epsilon(rounds, delta)")
    if not replace and (accountant.name in _MADE or accountant.name in _LATER):
        raise ConfigError("accountant", accountant.name, "is registered already: choose another name")
    _MADE[accountant.name] = accountant
    epsilon.cache_clear()


def register_later(name: str, make: Callable[[], Accountant]) -> None:
    """Makes an accountant known whose module is imported on first use, so that start-up stays quick."""
    _LATER[name] = make


def accountant_named(name: str) -> Accountant:
    """The accountant of this name, or an error that names the known ones."""
    if name not in _MADE:
        if name not in _LATER:
            raise ConfigError("accountant", name, f"is not registered: choose one of {', '.join(accountant_names())}")
        _MADE[name] = _LATER[name]()
    return _MADE[name]


def accountant_names() -> tuple[str, ...]:
    """All registered names, in order of registration."""
    return tuple(dict.fromkeys((*_LATER, *_MADE)))


@lru_cache(maxsize=1024)
def epsilon(rounds: Rounds, delta: float, accountant: str) -> float | None:
    """ε at δ of these rounds by the accountant of this name; None where it has no bound."""
    rounds = tuple((one, times) for one, times in rounds if times > 0)
    left = delta - sum(one.fails * times for one, times in rounds)
    if left <= 0:
        return None
    if not rounds:
        return 0.0
    return accountant_named(accountant).epsilon(rounds, left)
