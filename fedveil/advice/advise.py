"""`fedveil.advise`: a private setting for a federation of a given size, with its ε, its accuracy and what attacks got.

The search and the trial run on a public stand-in, so they cost no ε and need nobody's data. The advice is a config whose
noise the ledger has calibrated, and the figures beside it are those of that config on the stand-in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedveil.accounting.ledger import Row
from fedveil.advice.candidates import Candidate, kinds
from fedveil.advice.question import Question, question
from fedveil.advice.search import Found, Search
from fedveil.advice.standin import StandIn, stand_in
from fedveil.advice.trial import Trial, try_out
from fedveil.core.errors import ConfigError
from fedveil.simulation.learning import chance_of

Say = Callable[[str], None]
OPTIONS = 3  # the advice and two alternatives
SEARCHING = 0.35  # share of the time that the search may take
COUNTED = "all of it is public, so this choice costs no ε"


@dataclass(frozen=True)
class Option:
    """One setting: its config, its account, and what it did on the stand-in."""

    candidate: Candidate
    toml: str
    ledger: tuple[Row, ...]
    trial: Trial

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.candidate.kind.name,
            "what": self.candidate.kind.says,
            "config": self.toml,
            "epsilon": [row.as_dict() for row in self.ledger],
            "accuracy": self.trial.accuracy,
            "interval": self.trial.interval,
            "accuracies": list(self.trial.accuracies),
            "split": self.trial.split,
            "leak": self.trial.leak,
        }


@dataclass(frozen=True)
class Advice:
    """The advice and its alternatives; or, if nothing useful exists, the ε and the number of clients that would do."""

    asked: Question
    stand_in: StandIn
    chance: float
    non_private: float
    options: tuple[Option, ...]
    impossible: Mapping[str, Any] | None
    tried: int  # quick trainings of the search
    seconds: float

    @property
    def config(self) -> str | None:
        """The advised config as TOML."""
        return self.options[0].toml if self.options else None

    @property
    def next(self) -> str:
        """The command that trains it."""
        if self.asked.data is None:
            return "fedveil train advice.toml -s data.file=YOUR-DATA.npz"
        return "fedveil train advice.toml"

    def as_dict(self) -> dict[str, Any]:
        """The JSON document of `fedveil advise`."""
        shared = {"chance": self.chance, "non_private": self.non_private}
        documents = [{**option.as_dict(), **shared} for option in self.options]
        head: dict[str, Any] = (
            documents[0] if documents else {"config": None, "epsilon": [], "accuracy": None, **shared}
        )
        return {
            **head,
            "stand_in": {"name": self.stand_in.name, "what": self.stand_in.says, "copies": self.stand_in.copies},
            "alternatives": documents[1:],
            "impossible": None if self.impossible is None else dict(self.impossible),
            "next": self.next if documents else None,
            "tuning": f"{self.tried} quick trainings on {self.stand_in.name}; {COUNTED}",
            "seconds": round(self.seconds, 1),
        }


def advise(progress: Say | None = None, **asked: Any) -> Advice:
    """Finds a private setting for a federation that is described by its size alone.

    `clients`, `records` (at each client), `epsilon`: needed. `shape` and `classes`: the form of the records, or `data`: a
    dataset or an .npz file. `delta` (1e-5), `unit` (example or image), `tap` (server: who must be withstood) or
    `withstand` (a list of server, clients, release), `secure_aggregation`. `seconds` (600) bounds the work. `progress`:
    called with a line of text at each step.
    """
    begun, say = time.monotonic(), progress or (lambda line: None)
    wanted = question(asked)
    say("stand-in: reading public records")
    public = stand_in(wanted)
    say(f"stand-in: {public.says}")
    search = Search(wanted, public.dataset, say, SEARCHING * wanted.seconds)
    best = [found[0] for kind in kinds(wanted) if (found := search.best_of(kind))]
    if not best:
        takes = f"no candidate is certified at tap {wanted.tap}, unit {wanted.unit}: ask for a later tap or a larger ε"
        raise ConfigError("epsilon", wanted.epsilon, takes)
    best.sort(key=lambda one: -one.accuracy)
    ceiling = search.without_noise(best[0].candidate.kind)
    guess = chance_of(public.dataset.held_out.y)
    say(f"search: best {best[0].accuracy:.3f}, without noise {ceiling:.3f}, chance {guess:.3f}")
    impossible = _impossible(search, best[0], (guess + ceiling) / 2)
    options = () if impossible else tuple(_tried(best[:OPTIONS], search, begun))
    return Advice(wanted, public, guess, ceiling, options, impossible, search.tried, seconds=time.monotonic() - begun)


def _impossible(search: Search, best: Found, midpoint: float) -> dict[str, Any] | None:
    """The reason why nothing useful exists, and the ε and number of clients that would do; None if something does."""
    if best.accuracy >= midpoint:
        return None
    search.say(
        f"nothing useful: {best.accuracy:.3f} is below {midpoint:.3f}; looking for the ε and the size that would do"
    )
    return {
        "reason": f"the best setting learns to {best.accuracy:.3f}, below the midpoint {midpoint:.3f} of chance and the "
        "same model without noise",
        "accuracy": best.accuracy,
        "midpoint": midpoint,
        "from_epsilon": search.from_epsilon(best.candidate, midpoint),
        "from_clients": search.from_clients(best.candidate, midpoint),
        "how": "bisection on quick trainings of the best setting; for ε the ledger calibrates its noise each time",
    }


def _tried(best: list[Found], search: Search, begun: float) -> list[Option]:
    """Trains and attacks each choice with the engine, best first, in equal shares of the remaining time.

    An alternative for which there is no time is left out.
    """
    made: list[Option] = []
    asked, say, longest = search.asked, search.say, 0.0
    for place, found in enumerate(best):
        candidate, now = found.candidate, time.monotonic()
        left = begun + asked.seconds - now
        if made and left < longest:
            say(f"no time for {len(best) - place} more: give more --seconds")
            break
        told = f"{candidate.kind.name}, {candidate.rounds} rounds, batch {candidate.batch}"
        say(f"trying {place + 1} of {len(best)}: {told}")
        end = now + left / (len(best) - place)
        trial = try_out(candidate, asked, search.view(candidate.kind.features), say, end)
        longest = max(longest, (time.monotonic() - now) / len(trial.accuracies))
        made.append(Option(candidate, candidate.toml(asked), tuple(candidate.ledger(asked)), trial))
    return made
