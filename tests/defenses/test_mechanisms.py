"""Fed-SDP, Fed-CDP and 2DP-FL: clip bounds by property tests, noise by statistics, fast paths against the obvious one.

Statistical tests compare a sample variance of n values with what it must be, within 5 standard errors (√(2/n)): about one
false alarm in 1.7 million per comparison. Seeds are fixed, so a passing test keeps passing.
"""

import dataclasses
import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_program import at_stage

import fedveil
from fedveil.core.errors import ConfigError
from fedveil.core.setting import Setting
from fedveil.core.stage import StageContext
from fedveil.defenses.fed_cdp import FedCDP
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.defenses.two_dp import TwoDP
from fedveil.kernels import clipping
from fedveil.mechanisms import clip

SETTING = Setting(
    clients=50, per_round=10, rounds=11, batch=5, local_steps=1, sampling="poisson", batching="poisson",
    aggregation="fedsgd", weights="uniform", lr=0.1, layers=2,
)  # fmt: skip


def at(seed=0, round_=0, lr=0.1, setting=SETTING):
    key = jax.random.key(seed)
    return StageContext(setting, key, key, round_, lr, 5.0)


def bound_of(defense, point):
    return defense.on_sum(SETTING).clip.at(point)


def gradients(batch, scale=1.0):
    """Example gradients of two layers; a scale of zero leaves the shapes."""
    rng = np.random.default_rng(0)
    one, two = (scale * rng.standard_normal((batch, *shape), np.float32) for shape in ((40, 50), (7, 3)))
    return {"one": {"w": one, "b": np.zeros((batch, 50), np.float32)}, "two": {"w": two}}


def near(sample, deviation):
    """Whether the sample's variance is what it must be, within five standard errors."""
    sample = np.concatenate([np.asarray(a, np.float64).ravel() for a in jax.tree.leaves(sample)])
    return abs(sample.var() / deviation**2 - 1) < 5 * math.sqrt(2 / sample.size)


# --- clip bounds

VALUES = st.one_of(
    st.floats(-1e3, 1e3, width=32),
    st.sampled_from([0.0, 1e-38, 1e30, 3e38, float("nan"), float("inf"), -float("inf")]),
)


CONTRIBUTIONS = {
    "a": hnp.arrays(np.float32, (3, 4, 2), elements=VALUES),
    "b": hnp.arrays(np.float32, (3, 5), elements=VALUES),
    "bound": st.floats(1e-3, 1e3),
    "scope": st.sampled_from(["layerwise", "flat"]),
}


@settings(max_examples=150, deadline=None)
@given(**CONTRIBUTIONS)
def test_no_contribution_exceeds_the_bound(a, b, bound, scope):
    bounded(a, b, bound, scope)


def bounded(a, b, bound, scope):
    clipped = clip.clip_examples({"one": {"w": jnp.asarray(a)}, "two": {"w": jnp.asarray(b)}}, bound, scope)
    squares = {k: np.square(np.asarray(v["w"], np.float64)).reshape(3, -1).sum(axis=1) for k, v in clipped.items()}
    assert all(np.isfinite(s).all() for s in squares.values())
    if scope == "flat":
        assert (np.sqrt(squares["one"] + squares["two"]) <= bound).all()
    else:
        assert all((np.sqrt(s) <= bound).all() for s in squares.values())


@settings(max_examples=60, deadline=None)
@given(
    a=hnp.arrays(np.float32, (2, 6), elements=st.floats(-1, 1, width=32, allow_subnormal=False)),
    scope=st.sampled_from(["layerwise", "flat"]),
)
def test_what_is_within_the_bound_is_left_alone(a, scope):
    kept = clip.clip_examples({"one": {"w": jnp.asarray(a)}}, 10.0, scope)
    np.testing.assert_array_equal(kept["one"]["w"], a)


def test_a_clipped_gradient_keeps_its_direction():
    each = gradients(4, scale=3.0)
    for scope in ("layerwise", "flat"):
        clipped = jax.jit(partial(clip.clip_examples, bound=1.0, scope=scope))(each)
        for name, layer in each.items():
            ratio = np.asarray(clipped[name]["w"]) / np.asarray(layer["w"])
            assert np.allclose(ratio, ratio.reshape(4, -1)[:, :1].reshape(4, 1, 1), rtol=1e-4) and (ratio < 1).all()


@settings(max_examples=60, deadline=None)
@given(a=hnp.arrays(np.float32, 12, elements=VALUES), bound=st.floats(1e-3, 1e3))
def test_l1_bound(a, bound):
    clipped = np.asarray(clip.clip_l1({"w": jnp.asarray(a)}, bound)["w"], np.float64)
    assert np.isfinite(clipped).all() and np.abs(clipped).sum() <= bound * (1 + 1e-6)


# --- noise: variance per placement

CDP_ON_SUM = {"example": 6 * 4 * math.sqrt(5), "batch": 6 * 4, "cohort": 6 * 4 / math.sqrt(10)}


@pytest.mark.parametrize("placement", CDP_ON_SUM)
@pytest.mark.parametrize("present", [0, pytest.param(2, marks=pytest.mark.slow), 5, 8])
def test_fed_cdp_noise_on_the_sum_is_nominal_whatever_the_batch(placement, present):
    """Empty, small, nominal and large Poisson batches: the same variance, one by one, summed and fused."""
    defense = FedCDP(placement=placement)
    width = max(present, 1)
    mask = np.arange(width) < present
    each = gradients(width, scale=0.0)
    shown, rest = at_stage(defense.example, each, mask, point=at(1))
    assert near(jax.tree.map(lambda s, r: np.asarray(s).sum(axis=0) + r, shown, rest), CDP_ON_SUM[placement])
    assert near(at_stage(defense.example_sum, each, mask, point=at(2)), CDP_ON_SUM[placement])
    total = jax.tree.map(lambda a: a[0], each)
    assert near(at_stage(defense.example_on_sum, total, point=at(3)), CDP_ON_SUM[placement])


def test_fed_cdp_example_shows_every_gradient_under_its_own_noise():
    shown, _ = at_stage(FedCDP().example, gradients(8, scale=0.0), np.ones(8, bool), point=at())
    flat = np.stack([np.concatenate([np.ravel(a[i]) for a in jax.tree.leaves(shown)]) for i in range(8)])
    for i in range(8):
        assert near(flat[i], 24.0)
        for j in range(i):
            correlation = np.corrcoef(flat[i], flat[j])[0, 1]
            assert abs(correlation) < 5 / math.sqrt(flat.shape[1]), "two examples must not share noise"


@pytest.mark.parametrize(
    ("placement", "deviation"), [("server-sum", 24.0), ("server-each", 24.0 * math.sqrt(10)), ("client", None)]
)
def test_fed_sdp_noise(placement, deviation):
    defense = FedSDP(placement=placement)
    zero = jax.tree.map(lambda a: a[0], gradients(1, scale=0.0))
    updated = at_stage(defense.update, zero, point=at())
    if placement == "client":
        assert near(updated, 24.0) and not defense.fills("aggregate")
    else:
        assert near(at_stage(defense.aggregate, zero, point=at()), deviation)
        assert all((np.asarray(a) == 0).all() for a in jax.tree.leaves(updated))


def test_fed_sdp_server_noise_covers_the_largest_weight():
    heavy = dataclasses.replace(SETTING, weights="size", max_weight=3.0)
    zero = jax.tree.map(lambda a: a[0], gradients(1, scale=0.0))
    assert near(at_stage(FedSDP().aggregate, zero, point=at(setting=heavy)), 24.0 * 3.0)
    assert {r.multiplier for r in FedSDP().events(heavy)} == {6 / math.sqrt(2)}


def test_two_dp_noise():
    defense = TwoDP(clip=2.0, noise=3.0, server_noise=5.0)
    each = gradients(4, scale=0.0)
    _, rest = at_stage(defense.example, each, np.ones(4, bool), point=at())
    assert near(rest, 6.0)
    zero = jax.tree.map(lambda a: a[0], each)
    assert near(at_stage(defense.broadcast, zero, point=at()), 5.0 * 0.1 * 1 * 2.0 / 10)


# --- schedules


def test_decay_runs_from_clip_to_clip_end():
    for shape in ("linear", "staircase", "exponential", "cosine"):
        defense = FedCDP(clip=6.0, clip_end=2.0, schedule=shape)
        bounds = [float(bound_of(defense, at(round_=r))) for r in range(11)]
        assert bounds[0] == pytest.approx(6.0) and bounds[-1] == pytest.approx(2.0)
        assert all(a >= b - 1e-6 for a, b in itertools.pairwise(bounds)), shape
    assert float(bound_of(FedCDP(clip=6.0, clip_end=2.0), at(round_=5))) == pytest.approx(4.0)
    noisy, zero = FedCDP(noise=6.0, noise_end=3.0), jax.tree.map(lambda a: a[0], gradients(1, scale=0.0))
    assert near(at_stage(noisy.example_on_sum, zero, point=at(round_=10)), 3 * 4 * math.sqrt(5))


def test_clip_modes():
    assert float(bound_of(FedCDP(clip_mode="lr"), at(lr=0.05))) == pytest.approx(2.0)
    each = {"one": {"w": np.array([[3.0], [1.0], [2.0], [50.0]], np.float32)}}
    mask = np.array([True, True, True, False])
    clipped, _ = at_stage(FedCDP(clip_mode="median", noise=0.0).example, each, mask, point=at())
    np.testing.assert_allclose(np.asarray(clipped["one"]["w"]).ravel()[:3], [2.0, 1.0, 2.0], rtol=1e-5)
    assert not any(r.certifiable for r in FedCDP(clip_mode="median").events(SETTING))


def seen_norms(defense, scope="layerwise"):
    """Norms [examples] of what one client of 24 examples shows of all of them, for each clip group, before noise."""
    config = {
        "data": {"partition": "iid", "clients": 4, "per_client": 24},
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"per_round": 2, "local_steps": 2, "batch": 24, "batching": "shuffle", "noise_seed": 0},
        "defense": [defense],
        "speed": {"precision": "float64"},
    }
    simulator = fedveil.federation(config).simulator
    shown = simulator.observe(simulator.start(), 0, 3, frozenset({"example"}))["example"][0]
    squares = {
        name: sum(np.square(a).reshape(len(a), -1).sum(axis=1) for a in layer.values()) for name, layer in shown.items()
    }
    return {"*": np.sqrt(sum(squares.values()))} if scope == "flat" else {n: np.sqrt(s) for n, s in squares.items()}


@pytest.mark.parametrize("scope", ["layerwise", "flat"])
def test_a_client_median_is_that_of_all_its_examples(scope):
    plain = seen_norms({"name": "none"}, scope)
    medians = {name: np.median(norms) for name, norms in plain.items()}
    keys = {"name": "fed-cdp", "clip_mode": "client-median", "clip_scope": scope, "noise": 0.0}
    for most in (1e6, min(medians.values()) / 2):  # the median, and the bound C where that is smaller
        for name, norms in seen_norms({**keys, "clip": most}, scope).items():
            np.testing.assert_allclose(norms, np.minimum(plain[name], min(medians[name], most)), rtol=1e-6)


BY_CLIENT = {"name": "fed-cdp", "clip_mode": "client-median", "placement": "batch", "noise": 0.5}


@pytest.mark.slow  # a program for each client's number of examples; in chunks it is below
def test_a_client_median_in_both_engines():
    runs = [trained(BY_CLIENT, train={"noise_seed": 0}, **speed) for speed in ({}, {"engine": "reference"})]
    assert distance(*runs) < 1e-9


def test_a_client_median_in_chunks_and_without_the_clients_data():
    fixed = {"noise_seed": 0}
    runs = [trained(BY_CLIENT, train=fixed, **speed) for speed in ({}, {"chunk": 2})]
    assert distance(*runs) < 1e-9
    assert distance(runs[0], trained({**BY_CLIENT, "clip_mode": "median"}, train=fixed)) > 1e-6
    defense = FedCDP(clip_mode="client-median")
    with pytest.raises(ConfigError, match="needs the client's whole data"):
        at_stage(defense.example, gradients(4), np.ones(4, bool), point=at())
    assert defense.refuses_deployment().key == "clip_mode"


# --- the whole round


def trained(defense, rounds=2, model=None, train=None, **speed):
    config = {
        "data": {"partition": "dirichlet", "alpha": 0.5, "clients": 12},
        "model": model or {"name": "mlp", "hidden": [8]},
        "train": {"rounds": rounds, "per_round": 6, "local_steps": 3, "batch": 4, **(train or {})},
        "defense": defense if isinstance(defense, list) else [defense],
        "speed": {"precision": "float64", **speed},
    }
    return fedveil.train(config)


def distance(a, b):
    pairs = zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


DEFENSES = [
    {"name": "fed-sdp", "placement": "client"},
    {"name": "fed-cdp"},
    {"name": "fed-cdp", "placement": "cohort", "clip_scope": "flat"},
    {"name": "2dp-fl"},
]
MORE_DEFENSES = [  # one of each family is above
    {"name": "fed-sdp", "placement": "server-each", "clip_scope": "flat"},
    {"name": "fed-sdp", "clip_end": 2.0},
    {"name": "fed-cdp", "placement": "batch", "clip": 6.0, "clip_end": 2.0},
    {"name": "2dp-fl", "server_noise_mode": "same"},
]


@pytest.mark.parametrize(
    "defense",
    [*DEFENSES, *(pytest.param(d, marks=pytest.mark.slow) for d in MORE_DEFENSES)],
    ids=lambda d: "-".join(str(v) for v in d.values()),
)
def test_chunks_and_reference_agree_under_noise(defense):
    """Chunks of four for six clients, so that one is padded; the reference takes one client and one step at a time."""
    fixed = {"sampling": "fixed", "batching": "shuffle", "local_steps": 2}
    whole = trained(defense, train=fixed, chunk=4)
    assert distance(whole, trained(defense, train=fixed, engine="reference")) < 1e-9


def test_poisson_batches_agree_with_the_reference_under_noise():
    defense = {"name": "fed-cdp"}
    assert distance(trained(defense, chunk=4), trained(defense, engine="reference")) < 1e-9


FUSED = ["cnn", "mlp", "logistic", *(pytest.param(m, marks=pytest.mark.slow) for m in ("lenet-dlg", "resnet20"))]


@pytest.mark.parametrize("name", FUSED)
def test_fused_clipping_equals_example_by_example(name):
    """The fused backward pass and the obvious vmap over examples give the same clipped sum, and the clip bites."""
    from fedveil.models.catalog import build
    from fedveil.models.layers import Context
    from fedveil.simulation.client import cross_entropy

    net = build(name, (8, 8, 1), 10)
    with jax.enable_x64(True):
        params = jax.jit(net.init)(jax.random.key(0))
        x, y = np.random.default_rng(1).random((4, 8, 8, 1)), np.arange(4)

        def loss(p, x, y, context=None):
            return cross_entropy(net.apply(p, x, context), y).sum()

        def example_gradients(params):
            each = jax.vmap(jax.grad(lambda p, x, y: loss(p, x[None], y[None])), (None, 0, 0))(params, x, y)
            return each, clip.layer_norms(each)

        def fused_sum(params, bound):
            context = Context(linear=clipping.clipping_linear(bound), affine=clipping.clipping_affine(bound))
            return jax.grad(lambda p: loss(p, x, y, context))(params)

        each, norms = jax.jit(example_gradients)(params)
        bound = np.median(
            np.concatenate(list(norms.values()))
        )  # half of the layers of half of the examples are clipped
        fused = jax.jit(fused_sum)(params, bound)
        clipped = jax.jit(partial(clip.clip_examples, scope="layerwise"))(each, bound)
        obvious, plain = (jax.tree.map(lambda a: np.asarray(a).sum(axis=0), tree) for tree in (clipped, each))
        for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(obvious), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
        assert any(not np.allclose(a, b) for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(plain), strict=True))


@pytest.mark.parametrize("spoiled", [None, float("inf"), float("nan"), 3e38])
def test_scale_and_shift_of_each_example_are_clipped(spoiled):
    """What an example adds is at most the bound long, and nothing where its gradient is not finite."""
    x, g = (np.random.default_rng(k).standard_normal((3, 2, 2, 4), np.float32) for k in (1, 2))
    if spoiled is not None:
        g[1, 0, 1, 2] = spoiled
    params, bound = {"scale": np.full(4, 2.0, np.float32), "shift": np.zeros(4, np.float32)}, 1.5

    @jax.jit
    def summed(x, g):
        _, back = jax.vjp(lambda p, x: clipping.clipping_affine(jnp.asarray(bound))("norm", p, x), params, x)
        return back(g)

    with np.errstate(all="ignore"):
        obvious = {"scale": (g * x).sum(axis=(1, 2)), "shift": g.sum(axis=(1, 2))}
        twice = g * np.float32(2.0)
    wanted = jax.jit(partial(clip.clip_examples, scope="layerwise"))({"norm": obvious}, bound)["norm"]
    found, onward = summed(x, g)
    for name, a in found.items():
        np.testing.assert_allclose(a, np.asarray(wanted[name]).sum(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(onward, twice)
    for example in range(3):
        alone, _ = summed(x[example : example + 1], g[example : example + 1])
        length = np.sqrt(sum(np.square(np.asarray(a, np.float64)).sum() for a in alone.values()))
        assert length <= 1.5 and (length > 1.4 or (example == 1 and spoiled is not None))


def test_the_round_takes_the_fused_path_where_it_can():
    """Layerwise clipping keeps no gradient per example in the program; flat clipping and taps do."""
    from fedveil.simulation import client as part
    from fedveil.simulation.inputs import Batch, RoundContext

    def program(seen, **keys):
        config = {"model": {"name": "mlp", "hidden": [8]}, "defense": {"name": "fed-cdp", **keys}}
        simulator = fedveil.federation(config).simulator
        context = RoundContext(jax.random.key(0), jax.random.key(1), 0, jnp.asarray(0.1))
        batch = Batch(simulator.x[:4], simulator.y[:4], jnp.ones(4, bool))
        task, draws = simulator.task, part.keys_of_step(simulator.task, context, 0)
        run = lambda p: part.batch_gradient(task, p, batch, context, draws, seen)[0]  # noqa: E731
        return str(jax.make_jaxpr(run)(simulator.start().params))

    each = "f32[4,64,8]"  # example gradients of the first layer
    assert each not in program(part.CLOSED)
    assert each in program(part.CLOSED, clip_scope="flat")
    assert each in program(part.OpenTaps(frozenset({"example"})))


@pytest.mark.parametrize("name", ["fed-sdp", "fed-cdp", "2dp-fl"])
def test_no_noise_and_a_wide_clip_is_non_private_training(name):
    still = {"name": name, "clip": 1e6, "noise": 0.0} | ({"server_noise": 0.0} if name == "2dp-fl" else {})
    plain = {"sampling": "fixed", "batching": "shuffle"}
    assert distance(trained(still, train=plain), trained({"name": "none"}, train=plain)) < 1e-5


class Watched:
    """One federation, seen again and again: gradients are tiny beside the noise, so what is seen is noise."""

    def __init__(self, **defense):
        config = {
            "data": {"partition": "iid", "clients": 6, "per_client": 40},
            "model": {"name": "logistic"},
            "train": {"per_round": 3, "local_steps": 2, "batch": 4, "lr": 1e-9, "rounds": 3, "batching": "shuffle"},
            "defense": [defense],
        }
        self.simulator = fedveil.federation(config).simulator
        self.state = self.simulator.start()

    def __call__(self, tap, client=0, round_=0, step=0):
        seen = self.simulator.observe(self.state, round_, client, frozenset({tap}), steps=(step,))[tap]
        seen = seen[step] if tap in ("batch", "example") else seen
        return np.concatenate([np.ravel(a) for a in jax.tree.leaves(seen)]).astype(np.float64)


def test_noise_is_independent_across_clients_rounds_and_steps():
    seen = Watched(name="fed-cdp", clip=1e-3, placement="batch")
    base = seen("batch")
    assert np.array_equal(base, seen("batch"))
    for other in (seen("batch", client=1), seen("batch", round_=1), seen("batch", step=1)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 5 / math.sqrt(base.size)


def test_noise_is_independent_across_layers_and_within():
    """Layers of equal shape draw apart, and a layer's values are uncorrelated with their neighbours."""
    total = {name: {"w": np.zeros((60, 60), np.float32)} for name in ("a", "b")}
    drawn = at_stage(FedCDP().example_on_sum, total, point=at())
    a, b = (np.asarray(drawn[k]["w"]).ravel() for k in ("a", "b"))
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(a.size)
    assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 5 / math.sqrt(a.size)


def test_server_noise_is_shared_or_not():
    for mode, equal in (("same", True), ("distinct", False)):
        seen = Watched(name="2dp-fl", server_noise=1e6, server_noise_mode=mode)
        assert np.array_equal(seen("broadcast", client=0), seen("broadcast", client=1)) is equal


def test_what_the_example_tap_shows_is_clipped_and_noised():
    assert near(Watched(name="fed-cdp", clip=1e-3)("example"), 6e-3)


def test_an_empty_poisson_batch_is_noised():
    """A rate of 1/40 per example makes many empty batches: every step still moves the model."""
    config = {
        "data": {"partition": "iid", "clients": 4, "per_client": 40},
        "model": {"name": "logistic"},
        "train": {"per_round": 4, "local_steps": 6, "batch": 1, "rounds": 1, "lr": 1.0},
        "defense": [{"name": "fed-cdp", "placement": "batch"}],
    }
    federation = fedveil.federation(config)
    simulator = federation.simulator
    from fedveil.simulation.sampling import client_batches

    sizes = {c: [len(b) for b in client_batches(simulator.sampling, simulator.draws, 0, c, 0, 40)] for c in range(4)}
    client, step = next((c, s) for c, counts in sizes.items() for s, n in enumerate(counts) if n == 0)
    seen = simulator.observe(simulator.start(), 0, client, frozenset({"batch"}), steps=(step,))["batch"][step]
    assert near(seen, 24.0)


# --- combinations and keys


def test_combinations():
    sdp, cdp = {"name": "fed-sdp", "placement": "client"}, {"name": "fed-cdp"}
    assert np.isfinite(trained([cdp, sdp], rounds=1).loss)
    for bad, why in (
        ([cdp, {"name": "2dp-fl"}], "both add their noise at stage 'example'"),
        ([{"name": "none"}, cdp], "'none' fills in nothing"),
        ([], "is an empty list"),
    ):
        with pytest.raises(ConfigError, match=why):
            fedveil.federation({"defense": bad})


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"clip": 0}, "defense.clip"),
        ({"clip": "4"}, "defense.clip"),
        ({"noise": -1.0}, "defense.noise"),
        ({"placement": "server"}, "defense.placement"),
        ({"clip_scope": "global"}, "defense.clip_scope"),
        ({"delta": 1.0}, "defense.delta"),
        ({"clap": 1.0}, "defense.clap"),
        ({"noise": float("inf")}, "defense.noise"),
    ],
)
def test_bad_keys_are_named(keys, named):
    with pytest.raises(ConfigError, match=named):
        fedveil.federation({"defense": {"name": "fed-cdp", **keys}})


def test_private_defences_get_poisson_sampling():
    from fedveil.config import from_dict, resolve

    train = resolve(from_dict({"defense": {"name": "fed-cdp"}})).train
    assert (train.sampling, train.batching) == ("poisson", "poisson")
    asked = resolve(from_dict({"defense": {"name": "fed-cdp"}, "train": {"sampling": "fixed"}})).train
    assert (asked.sampling, asked.batching) == ("fixed", "poisson")
