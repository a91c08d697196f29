"""Observations made from the taps of a federation."""

from functools import cache

import numpy as np
import pytest

from fedveil.attacks import taps
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.attacks.score import score
from fedveil.core.errors import RunError
from fedveil.federation import federation as federation_of


@cache
def federation(defense="none", model="logistic", **train):
    return federation_of(
        {
            "data": {"clients": 20, "per_client": 12},
            "model": {"name": model, "init": "uniform-0.5"},
            "train": {"local_steps": 1, "batch": 2, "lr": 0.1, "batching": "shuffle", **train},
            "defense": {"name": defense},
        }
    )


@pytest.mark.parametrize(
    "tap,attacks,examples", [("example", 4, 1), ("batch", 2, 2), ("client", 2, 2), ("server", 2, 2)]
)
@pytest.mark.parametrize("aggregation", ["fedsgd", "fedavg"])
def test_every_tap_shows_the_gradient(tap, attacks, examples, aggregation):
    ready = federation(aggregation=aggregation)
    state = ready.simulator.start()
    seen = taps.from_tap(ready, state, 0, [3, 5], tap)
    x, y = taps.truth_at_tap(ready, 0, [3, 5], tap)
    assert len(seen) == attacks == len(x) and seen.examples == examples == x.shape[1] and seen.span == (0.0, 1.0)
    from attack_helpers import mean_gradients

    real = mean_gradients(seen.model, seen.params, x.astype(np.float32), y)
    assert np.allclose(real["dense"]["w"], seen.gradients["dense"]["w"], atol=1e-4)


def test_an_undefended_example_is_recovered_and_a_noised_one_is_not():
    rates = []
    for defense in ("none", "fed-cdp"):
        ready = federation(defense)
        seen = taps.from_tap(ready, ready.simulator.start(), 0, [3], "example")
        found = CPL(iterations=30).run(seen)
        rates.append(score(found, *taps.truth_at_tap(ready, 0, [3], "example")).summary()["success_rate"])
    assert rates == [1.0, 0.0]


def test_clients_of_2dp_fl_receive_models_of_their_own():
    ready = federation("2dp-fl")
    seen = taps.from_tap(ready, ready.simulator.start(), 0, [3, 5], "batch")
    assert seen.own_params and seen.params["dense"]["w"].shape[0] == 2


def test_several_steps_are_behind_an_update():
    ready = federation(local_steps=3)
    seen = taps.from_tap(ready, ready.simulator.start(), 0, [3], "server")
    assert seen.examples == 6 and seen.local_steps == 3 and seen.order == ((0, 1), (2, 3), (4, 5)) and seen.lr == 0.1


def test_taps_without_gradients_are_refused():
    ready = federation()
    with pytest.raises(RunError, match="gradients are seen at"):
        taps.from_tap(ready, ready.simulator.start(), 0, [3], "release")
    adam = federation(optimizer="adam")
    with pytest.raises(RunError, match="no sum of gradients"):
        taps.from_tap(adam, adam.simulator.start(), 0, [3], "server")


@pytest.mark.parametrize("tap", ["example", "batch", "server"])
def test_a_client_watched_among_others_shows_what_it_shows_alone(tap):
    """Noise included: what is drawn for a client does not depend on who else is watched."""
    ready = federation("fed-cdp", batching="poisson", local_steps=2)
    state, watched = ready.simulator.start(), frozenset({tap})
    sizes = {c: tuple(len(b) for b in taps.drawn_rows(ready, 0, c)) for c in range(20)}
    same = max(([c for c in sizes if sizes[c] == size] for size in set(sizes.values())), key=len)[:3]
    assert len(same) > 1
    many = ready.simulator.observe_many(state, 0, same, watched)
    for index, client in enumerate(same):
        alone = ready.simulator.observe(state, 0, client, watched)[tap]
        among = many[tap][0] if tap != "server" else many[tap]
        alone = alone[0] if tap != "server" else alone
        assert np.allclose(alone["dense"]["w"], among["dense"]["w"][index], atol=1e-5)


def test_watching_one_tap_computes_no_more_than_it_needs():
    """What a client receives is the same whatever else is watched, and steps after the watched one are not made."""
    ready = federation("2dp-fl", local_steps=3)
    state = ready.simulator.start()
    received = ready.simulator.observe(state, 0, 4, frozenset({"broadcast"}))["broadcast"]
    both = ready.simulator.observe(state, 0, 4, frozenset({"broadcast", "batch", "client"}), steps=(0, 2))
    assert np.array_equal(received["dense"]["w"], both["broadcast"]["dense"]["w"])
    assert set(both["batch"]) == {0, 2}
    first = ready.simulator.observe(state, 0, 4, frozenset({"batch"}))["batch"]
    assert np.allclose(first[0]["dense"]["w"], both["batch"][0]["dense"]["w"], atol=1e-6)
