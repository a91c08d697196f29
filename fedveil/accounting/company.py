"""Which guarantees hold where several defences share a round.

A value passes the stages in one order (`core.stage.STAGES`), and at a stage the defences in their order. A mechanism clips
at one point of that way and adds its noise there or later. Three rules, by what each other filter may do
(`core.stage.Effect`), never by its name:

- after the noise everything is post-processing, unless it reads private data: that ends the guarantee;
- between clip and noise nothing may enlarge what was clipped;
- noise on single examples is the noise on their sum only if nothing changes the examples in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedveil.core.events import Release
from fedveil.core.setting import Setting
from fedveil.core.stage import STAGES, Effect
from fedveil.defenses.base import Defense

Position = tuple[int, int]  # stage, defence: where on its way a value meets a filter


def declared(defenses: Sequence[Defense], setting: Setting) -> tuple[Release, ...]:
    """What all defences release, each as far as it holds in this company."""
    # A defence that selects clients by their losses does so for every mechanism of the round.
    chosen = any(d.reads_losses and d.fills("select") for d in defenses)
    made = []
    for number, defense in enumerate(defenses):
        for release in defense.events(setting):
            reason = release.reason or _broken(release, number, defenses, setting)
            made.append(
                replace(
                    release,
                    every_round=release.every_round or chosen,
                    client_noise_sums=release.client_noise_sums and not setting.late and _only_sums(number, defenses),
                    certifiable=release.certifiable and not reason,
                    reason=reason,
                )
            )
    return tuple(made)


def _only_sums(number: int, defenses: Sequence[Defense]) -> bool:
    """Whether nothing but sums and constant factors lies between a client's noise and the round's sum."""
    others = [d for place, d in enumerate(defenses) if place != number]
    return not any(d.fills(stage) for d in others for stage in ("batch", "update", "upload"))


def _filters(number: int, defenses: Sequence[Defense]) -> Iterator[tuple[Position, Defense, str, Effect]]:
    """The filters of all other defences, each with its position."""
    for place, defense in enumerate(defenses):
        for index, stage in enumerate(STAGES):
            if place != number and defense.fills(stage):
                yield (index, place), defense, stage, defense.effect(stage)


def _broken(release: Release, number: int, defenses: Sequence[Defense], setting: Setting) -> str:
    """Why a release does not hold in this company; empty where it does."""
    name = defenses[number].name
    clip, noise = _positions(release, number, len(defenses))
    for position, other, stage, effect in _filters(number, defenses):
        if effect is Effect.READS_DATA and position > noise:
            return f"{other.name} reads private data without noise at stage '{stage}', after the noise of {name}"
        if clip < position < noise and effect is not Effect.CONTRACTION:
            return f"{other.name} enlarges at stage '{stage}' what {name} has clipped: the bound no longer holds"
        if release.on_each and release.tap != "example" and stage == "example" and position > clip:
            return (
                f"{other.name} changes single gradients after {name}: the noise on their sum is not what was declared"
            )
    if release.stage == "aggregate" and setting.late:
        return "late answers may meet another answer of the same client in one sum"
    return ""


def _positions(release: Release, number: int, defenses: int) -> tuple[Position, Position]:
    """Where contributions are clipped and where the noise is added; noise on a sum of examples follows all of their
    filters."""
    clip = (STAGES.index(release.clip_stage or release.stage), number)
    on_examples_sum = release.stage == "example" and not release.on_each
    return clip, (STAGES.index(release.stage), defenses if on_examples_sum else number)
