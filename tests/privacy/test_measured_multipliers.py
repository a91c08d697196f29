"""For every defence, placement and stage: the noise measured in what is released over the sensitivity measured by
worst-case neighbours is the multiplier that the event declares.

Noise: the standard deviation (Laplace: the mean absolute value) of what the stage adds to zeros, over 60,000 numbers, so
with a relative error of 0.3 % (Laplace 0.4 %); 1.5 % is allowed. Sensitivity: the largest change of the value that is
noised when one unit's contribution, far beyond every bound and in the worst direction, is put in place of nothing. Both
are measured by calling the stages that a round calls; only the multiplier comes from the declaration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedveil
from fedveil.core.setting import Setting
from fedveil.core.stage import StageContext
from fedveil.defenses.base import Defense
from fedveil.defenses.catalog import DEFENSES
from fedveil.defenses.dpfl import DPFL
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.defenses.lip import LIP
from fedveil.defenses.nbafl import NbAFL
from fedveil.defenses.two_dp import TwoDP

LAYERS, SHAPE = 3, (100, 200)
ERROR = 0.015
HUGE = 1e6
SETTING = Setting(
    clients=40, per_round=8, rounds=11, batch=5, local_steps=4, sampling="fixed", batching="shuffle",
    aggregation="fedsgd", weights="size", lr=0.2, lr_end=0.05, max_weight=1.7, min_weight=0.4, smallest=30,
    layers=LAYERS, sizes=((30, 4), (90, 4)), max_share=0.31, values=LAYERS * SHAPE[0] * SHAPE[1],
)  # fmt: skip


def tree(value: Any, *lead: int) -> Any:
    return {f"layer{n}": {"w": jnp.full((*lead, *SHAPE), value, jnp.float32)} for n in range(LAYERS)}


def at(number: int, seed: int = 0) -> StageContext:
    key = jax.random.key(seed)
    return StageContext(SETTING, key, key, number, SETTING.lr_at(number))


def noise_of(value: Any, distribution: str) -> float:
    flat = np.concatenate([np.ravel(a) for a in jax.tree.leaves(value)]).astype(np.float64)
    return float(np.abs(flat).mean() if distribution == "laplace" else np.sqrt(np.square(flat).mean()))


def size_of(value: Any, norm: str = "l2") -> float:
    flat = np.concatenate([np.ravel(a) for a in jax.tree.leaves(value)]).astype(np.float64)
    return float(np.abs(flat).sum() if norm == "l1" else np.sqrt(np.square(flat).sum()))


@dataclass(frozen=True)
class Measured:
    noise: float
    sensitivity: float


def _example(defense: Any, number: int, single: bool) -> Measured:
    """Stage `example`: of one gradient as the tap shows it, or of a batch's sum."""
    quiet = defense.silenced()
    each = jax.tree.map(lambda a: a.at[1:].set(0.0), tree(HUGE, 5))
    mask = jnp.ones(5, bool)
    if single:
        shown, _ = defense.example(tree(0.0, 5), mask, at(number))
        bounded, _ = quiet.example(each, mask, at(number))
        one = jax.tree.map(lambda a: a[0], shown)
        return Measured(noise_of(one, "gaussian"), size_of(jax.tree.map(lambda a: a[0], bounded)))
    total = defense.example_sum(tree(0.0, 5), mask, at(number))
    return Measured(noise_of(total, "gaussian"), size_of(quiet.example_sum(each, mask, at(number))))


def _fused(defense: Any, number: int, single: bool) -> Measured:
    """The fused stage: the bound handed to the backward pass, and the noise on its sum."""
    total = defense.example_on_sum(tree(0.0), at(number))
    bound = float(defense.example_bound(at(number)))
    return Measured(noise_of(total, "gaussian"), bound * np.sqrt(LAYERS))


def _update(defense: Any, number: int, single: bool) -> Measured:
    noise = noise_of(defense.update(tree(0.0), at(number)), "gaussian")
    return Measured(noise, size_of(defense.silenced().update(tree(HUGE), at(number))))


def _aggregate(defense: Any, number: int, single: bool) -> Measured:
    """The heaviest client's clipped update in the weighted sum."""
    noise = noise_of(defense.aggregate(tree(0.0), at(number)), "gaussian")
    clipped = defense.silenced().update(tree(HUGE), at(number))
    return Measured(noise, SETTING.max_weight * size_of(clipped))


def _upload_model(defense: Any, number: int, single: bool) -> Measured:
    point = replace(at(number), setting=replace(SETTING, aggregation="fedavg"))
    noise = noise_of(defense.upload(tree(0.0), point), "gaussian")
    loud = defense.upload(tree(HUGE), point)
    same = defense.upload(tree(0.0), point)  # the same key draws the same noise
    return Measured(noise, size_of(jax.tree.map(lambda a, b: a - b, loud, same)))


def _upload_laplace(defense: Any, number: int, single: bool) -> Measured:
    shares = {f"layer{n}": jnp.asarray(1.0 / LAYERS) for n in range(LAYERS)}
    quiet, _ = defense.apply_with_state("upload", tree(0.0), shares, at(number))
    one = jax.tree.map(lambda a: a.at[0, 0].set(HUGE), tree(0.0))
    neighbours = (one, tree(HUGE), tree(-HUGE))  # one large value, or all of them
    louds = [defense.apply_with_state("upload", neighbour, shares, at(number))[0] for neighbour in neighbours]
    moves = [size_of(jax.tree.map(lambda a, b: a - b, loud, quiet), "l1") for loud in louds]
    return Measured(noise_of(quiet, "laplace"), max(moves))


def _broadcast(defense: Any, number: int, single: bool) -> Measured:
    """What one client of the largest share moved the model by, with every step's gradient at its bound."""
    noise = noise_of(defense.broadcast(tree(0.0), at(number)), "gaussian")
    gradient = replace(defense, noise=0.0).example_sum(tree(HUGE, 1), jnp.ones(1, bool), at(number))
    moved = SETTING.lr_at(number - 1) * SETTING.local_steps * size_of(gradient)
    return Measured(noise, SETTING.max_share * moved)


CASES: list[tuple[Any, str, Any]] = []
for scope in ("layerwise", "flat"):
    for changes in ({}, {"clip_end": 1.0}, {"noise_end": 2.0}, {"clip_mode": "lr"}):
        for placement in ("example", "batch", "cohort"):
            made: Any = FedCDP(placement=placement, clip_scope=scope, **changes)  # type: ignore[arg-type]
            CASES.append((made, "client", _example))
            if scope == "layerwise":
                CASES.append((made, "client", _fused))
            if placement == "example":
                CASES.append((made, "example", _example))
    for changes in ({}, {"clip_end": 1.0}, {"noise_end": 2.0}):
        for placement in ("client", "server-each", "server-sum"):
            sdp: Any = FedSDP(placement=placement, clip_scope=scope, **changes)  # type: ignore[arg-type]
            stage = _update if placement == "client" else _aggregate
            CASES.append((sdp, "client" if placement == "client" else "release", stage))
CASES += [
    (TwoDP(clip=0.7, noise=3.0, server_noise_mode=mode), "client", _example) for mode in ("distinct", "same", "none")
]
CASES += [
    (TwoDP(clip=0.7, noise=3.0, noise_factors=(2.0, 0.5)), "client", _example),
    (TwoDP(clip=0.7, omega=0.5, epsilon=4.0), "client", _example),
    (TwoDP(clip=0.7, omega=0.5, epsilon=4.0, server_noise=2.0), "broadcast", _broadcast),
]
CASES += [
    (TwoDP(clip=0.7, server_noise=3.0, server_noise_mode=mode), "broadcast", _broadcast)
    for mode in ("distinct", "same")
]
CASES += [
    (NbAFL(clip=2.0), "server", _upload_model),
    (DPFL(clip=0.5, allocation="even", selection="uniform"), "server", _upload_laplace),
    (DPFL(clip=0.5, clip_norm="value", allocation="even", selection="uniform"), "server", _upload_laplace),
]


def _scheduled(defense: Any) -> bool:
    """Whether noise or bound change from round to round: then several rounds are looked at, else one."""
    return isinstance(defense, TwoDP) or "_end=" in repr(defense).replace("_end=None", "") or "'lr'" in repr(defense)


ROUNDS = [(d, tap, m, number) for d, tap, m in CASES for number in ((1, 10) if _scheduled(d) else (6,))]


@pytest.mark.parametrize(("defense", "tap", "measure", "number"), ROUNDS)
def test_noise_over_sensitivity_is_the_multiplier(defense: Any, tap: str, measure: Any, number: int) -> None:
    placed = next(p for p in defense.mechanisms(SETTING) if p.tap == tap)
    found = measure(defense, number, tap == "example")
    declared = placed.multiplier_at(SETTING, number, SETTING.lr_at(number))
    assert found.noise / found.sensitivity == pytest.approx(declared, rel=ERROR)
    release = next(r for r in defense.events(SETTING) if r.tap == tap)
    planned = release.by_round[number] if release.by_round else release.multiplier
    assert planned == pytest.approx(declared, rel=1e-6)


def test_noise_by_client_is_accounted_by_the_smallest() -> None:
    """2dp-fl's σ_k: client k has the factor k mod 3, and a client that is not known the smallest."""
    defense = TwoDP(clip=0.7, noise=2.0, noise_factors=(2.0, 0.5, 1.0))
    (placed,) = (p for p in defense.mechanisms(SETTING) if p.tap == "client")
    assert placed.multiplier_at(SETTING, 6, 0.1) == 1.0
    for client, sigma in ((0, 4.0), (1, 1.0), (5, 2.0), (None, 1.0)):
        point = replace(at(6), client=client)
        noise = noise_of(defense.example_sum(tree(0.0, 5), jnp.ones(5, bool), point), "gaussian")
        assert noise == pytest.approx(0.7 * sigma, rel=ERROR)
    assert defense.noise_levels() == (1.0,)  # what a node's limits look at


def test_every_client_gets_the_noise_of_its_factor_in_a_round() -> None:
    """Client 1 is as without factors; the noise of client 0 is twenty times as large."""

    def steps(factors: list[float] | None) -> list[Any]:
        found = fedveil.federation(
            {
                "data": {"clients": 2, "per_client": 40, "partition": "iid"},
                "model": {"name": "logistic"},
                "train": {"rounds": 1, "per_round": 2, "local_steps": 1, "noise_seed": 3},
                "defense": {"name": "2dp-fl", "noise_factors": factors},
            }
        ).simulator
        state = found.start()
        return [found.observe(state, 0, client, frozenset({"batch"}))["batch"] for client in (0, 1)]

    plain, factored = steps(None), steps([20.0, 1.0])
    size = lambda value: noise_of(value, "gaussian")  # noqa: E731
    assert size(plain[1]) == size(factored[1])
    assert 15 < size(factored[0]) / size(plain[0]) < 25


def test_every_mechanism_of_every_defence_is_measured() -> None:
    """A new defence, or a new place for its noise, needs a case here."""
    measured = {(type(d).name, tap) for d, tap, _ in CASES}
    for name, kind in DEFENSES.items():
        placements: list[Defense] = [kind()]
        if kind in (FedCDP, FedSDP):
            choices = ("example", "batch", "cohort") if kind is FedCDP else ("client", "server-each", "server-sum")
            placements = [kind(placement=choice) for choice in choices]  # type: ignore[call-arg]
        for defense in placements:
            for placed in defense.mechanisms(SETTING):
                assert (name, placed.tap) in measured or isinstance(defense, LIP), f"{name} at {placed.tap}"
