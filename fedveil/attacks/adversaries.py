"""The adversaries of an inference attack: who observes the training, and at which tap.

An adversary is a bundle of capabilities (2dp-fl, section IV): which models it sees, of which rounds, and what it knows
besides. A passive adversary follows the protocol and looks at what it receives anyway. An active one has access to what
the victim sends.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Adversary:
    """One adversary: what it sees, and the taps that show it."""

    name: str
    summary: str
    taps: tuple[str, ...]  # the first is the default


ADVERSARIES: dict[str, Adversary] = {
    adversary.name: adversary
    for adversary in (
        Adversary(
            "passive-local", "a client that looks at its own model after training on its own data", ("broadcast",)
        ),
        Adversary(
            "passive-global",
            "anyone who has the model that goes out: as published, or as a client receives it",
            ("release", "broadcast"),
        ),
        Adversary(
            "active", "anyone who has what the victim sends: at the server, or on its machine", ("server", "client")
        ),
    )
}


@dataclass(frozen=True)
class Position:
    """Who observes whom, and where."""

    adversary: str
    tap: str
    attacker: int  # the client that attacks, where the adversary is a client
    victim: int  # the client that is attacked

    @property
    def client(self) -> int:
        """The client whose model, sent or received, is observed."""
        return self.victim if self.adversary == "active" else self.attacker

    @property
    def shown_at(self) -> str:
        """The tap that shows the model: a client finds its own local model at its own tap."""
        return "client" if self.adversary == "passive-local" else self.tap
