"""The `paper` accountant: the papers' own rule for sampled Gaussian steps, as `published` computes it. Never certified."""

from __future__ import annotations

from fedveil.accounting.composition import ALWAYS, Round, Rounds


class Paper:
    """The moments accountant as published, for rounds of the kind that the papers account for."""

    name = "paper"
    certifies = False

    def epsilon(self, rounds: Rounds, delta: float) -> float | None:
        """None for several kinds of rounds, and for anything but Gaussian steps on Poisson samples."""
        from fedveil.accounting import published

        if len(rounds) != 1 or not _is_sampled_gaussian(rounds[0][0]):
            return None
        ((one, times),) = rounds
        return published.moments(one.noise[0][1], one.rate, one.steps * times, delta)


def _is_sampled_gaussian(one: Round) -> bool:
    plain = one.counts == ALWAYS and len(one.noise) == 1 and not one.replace and one.subset is None
    return plain and one.law == "gaussian" and (one.hidden or one.rate >= 1.0)
