"""No contribution exceeds its bound, over the whole range of floats, in every path; norms are computed in long double.

Each case is one example with its own magnitude and bound; the cases of a path are one `vmap` under `jit`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedveil
from fedveil.core.setting import Setting
from fedveil.core.stage import StageContext
from fedveil.defenses.fed_sdp import FedSDP
from fedveil.kernels import clipping, gpu, pallas
from fedveil.mechanisms import clip

pytestmark = pytest.mark.codegen

BOUNDS = [1e-45, 1e-40, 2e-38, 1e-30, 1e-23, 1e-22, 1e-19, 1e-10, 1e-3, 0.7, 1.0, 50.0, 1e10, 1e19, 1e30]
FAR = [1e-320, 1e-305, 1e-260, 1e-220, 1e-190, 1e-180, 1e-170, 1e-165, 1e200, 1e300]
CASES = 400


def spread(rng, shape, dtype, cases=CASES, around=None):
    """Numbers [cases, *shape] of all magnitudes: a case has one, or many. Half of the cases are a little above `around`
    [cases], where that is given: a clip has to act on them, and their squares may underflow."""
    info = np.finfo(dtype)
    low, high = info.minexp - info.nmant, info.maxexp
    wide = (cases, *(1 for _ in shape))
    centre = rng.integers(low, high, wide)
    if around is not None:
        with np.errstate(divide="ignore"):
            above = np.log2(around.astype(np.longdouble)).astype(int) + rng.integers(0, 1 - info.minexp // 10, cases)
        centre = np.where(rng.random(cases) < 0.5, above, centre.ravel()).reshape(wide)
    kind = rng.integers(0, 4, wide)
    own = rng.integers(low, high, (cases, *shape))
    near = centre - rng.integers(0, 30, (cases, *shape))
    exponent = np.where(kind == 0, own, np.where(kind == 1, near, centre))
    numbers = rng.choice([-1.0, 1.0], (cases, *shape)) * rng.uniform(1, 2, (cases, *shape))
    with np.errstate(under="ignore", over="ignore"):
        numbers = np.ldexp(numbers.astype(np.longdouble), np.clip(exponent, low, high - 1)).astype(dtype)
    spoiled = rng.random(cases) < 0.05
    flat = numbers.reshape(cases, -1)
    flat[spoiled, 0] = rng.choice([np.nan, np.inf, -np.inf], spoiled.sum())
    return flat.reshape(numbers.shape)


def bounds(rng, dtype, cases=CASES):
    """The bounds of the cases; in float64 some of far smaller and larger magnitude, too."""
    found = rng.choice(BOUNDS if dtype == np.float32 else [*BOUNDS, *FAR], cases)
    return found.astype(dtype)


def lengths(tree, order=2):
    """The norm of every case [cases], in long double."""
    leaves = [np.asarray(a).astype(np.longdouble) for a in jax.tree.leaves(tree)]
    sums = sum((np.abs(a) ** order).reshape(a.shape[0], -1).sum(axis=1) for a in leaves)
    return np.sqrt(sums) if order == 2 else sums


def holds(tree, limits, order=2, count=1):
    found = lengths(tree, order)
    assert np.isfinite(found).all()
    over = found > limits.astype(np.longdouble) * count
    assert not over.any(), f"{over.sum()} cases, by up to {(found[over] / limits[over]).max()}"


def many(function, *arrays):
    return jax.jit(jax.vmap(function))(*(jnp.asarray(a) for a in arrays))


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == np.float64):
        yield request.param


# --- gradients one by one, and whole contributions

PLAIN = {
    "layerwise": lambda tree, bound: clip.clip_one(tree, bound, "layerwise"),
    "flat": lambda tree, bound: clip.clip_one(tree, bound, "flat"),
    "l1": clip.clip_l1,
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", PLAIN)
def test_plain_clips(how, seed, dtype):
    rng = np.random.default_rng(seed)
    limits = bounds(rng, dtype)
    a, b, c = (spread(rng, shape, dtype, around=limits) for shape in ((7, 5), (5,), (9,)))
    got = many(lambda a, b, c, bound: PLAIN[how]({"one": {"w": a, "b": b}, "two": {"w": c}}, bound), a, b, c, limits)
    if how == "layerwise":
        for layer in got.values():
            holds(layer, limits)
    else:
        holds(got, limits, 1 if how == "l1" else 2)


def test_no_value_exceeds_a_clamp(dtype):
    rng = np.random.default_rng(11)
    limits = bounds(rng, dtype)
    a = spread(rng, (40,), dtype, around=limits)
    got = np.asarray(many(lambda a, bound: clip.clamp({"one": {"w": a}}, bound), a, limits)["one"]["w"])
    assert np.isfinite(got).all() and (np.abs(got) <= limits[:, None]).all()
    kept = np.isfinite(a) & (np.abs(a) <= limits[:, None] * (1 - 2.0**-19)) & (np.abs(a) > 1e-30)
    np.testing.assert_array_equal(got[kept], a[kept])
    cut = np.isfinite(a) & (np.abs(a) > limits[:, None]) & (limits[:, None] > 1e-30)
    assert cut.any() and (got * np.sign(a) >= limits[:, None] * (1 - 2.0**-19))[cut].all()
    for bound in (float("nan"), 0.0, -1.0):
        assert not np.asarray(clip.clamp({"one": {"w": jnp.ones(3)}}, bound)["one"]["w"]).any()


def test_examples_of_different_magnitude_in_one_batch(dtype):
    rng = np.random.default_rng(5)
    limits = bounds(rng, dtype)
    a = np.stack([spread(rng, (6,), dtype, around=limits) for _ in range(4)], axis=1)
    got = many(lambda a, bound: clip.clip_examples({"one": {"w": a}}, bound, "flat"), a, limits)
    for example in range(4):
        holds(got["one"]["w"][:, example], limits)


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), 0.0, -1.0, 1e39])
def test_bounds_that_are_no_ordinary_numbers(bound):
    tree = {"one": {"w": jnp.full(64, 3e38, jnp.float32)}}
    for clipped in PLAIN.values():
        found = lengths(jax.tree.map(lambda a: a[None], clipped(tree, bound)), 2)[0]
        assert found == 0 or found <= bound


def test_what_is_clipped_is_not_lost():
    """For ordinary bounds and norms of a wide range the length is the bound, or the contribution's own, nearly."""
    rng = np.random.default_rng(7)
    for bound in (1e-20, 1e-3, 1.0, 1e20):
        sizes = 2.0 ** rng.uniform(np.log2(bound) - 25, min(np.log2(bound) + 80, 120), 200)
        a = (rng.normal(size=(200, 30)) * sizes[:, None]).astype(np.float32)
        got = many(lambda a, b: clip.clip_one({"one": {"w": a}}, b, "flat"), a, np.full(200, bound, np.float32))
        wanted = np.minimum(lengths(a[:, None]), bound)
        assert (lengths(got) >= wanted * (1 - 2.0**-12)).all()


def test_many_small_squares_after_a_large_one_are_counted():
    """Added up one after another, in float32 they would all be lost."""
    a = np.full((1, 3_000_000), 2.0**-13, np.float32)
    a[0, 0] = 1.0
    for bound in (0.5, 1.0, 1.02):
        got = clip.clip_one({"one": {"w": jnp.asarray(a[0])}}, bound, "flat")
        holds(jax.tree.map(lambda a: a[None], got), np.asarray([bound]))


def test_a_long_sum_stays_in_blocks():
    """The compiler would join sums of sums; the proof needs them apart."""
    text = jax.jit(clip._total).lower(jnp.ones((2, 3 * clip._BLOCK + 5))).compile().as_text()
    assert "reduce-precision" in text


# --- the fused paths


def gradient(layer, params, *inputs):
    """What a layer's backward pass gives for its parameters: the last of `inputs` is the cotangent."""
    *x, g = inputs
    _, back = jax.vjp(lambda p: layer(p, *x), params)
    return back(g)[0]


def linear_case(inputs, outputs, bias, dtype, patches=None):
    params = {"w": jnp.ones((inputs, outputs), dtype), **({"b": jnp.zeros(outputs, dtype)} if bias else {})}

    def one(x, g, bound):
        x = x if patches is None else x.astype(patches)
        return gradient(lambda p, x: clipping.clipping_linear(bound)("", p, x), params, x, g)

    return one


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_dense(bias, seed, dtype, backend, monkeypatch):
    """As on a CPU; and with squares that the product gives, as on a GPU: that kernel runs as plain JAX here."""
    length = 9 if backend == "cpu" else 520
    monkeypatch.setattr(pallas, "INTERPRET", True)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    rng = np.random.default_rng(seed)
    limits = bounds(rng, dtype)
    x, g = spread(rng, (1, length), dtype, around=np.ones(CASES)), spread(rng, (1, 6), dtype, around=limits)
    holds(many(linear_case(length, 6, bias, dtype), x, g, limits), limits)


@pytest.mark.parametrize("bias", [False, True])
def test_dense_where_large_inputs_meet_small_cotangents(bias, dtype):
    """Products of ordinary size, of factors whose squares overflow or underflow."""
    rng = np.random.default_rng(1)
    most, edge = (37, 19) if dtype == np.float32 else (307, 154)  # at the edge, squares leave the range of floats
    exponent = rng.uniform(-most, most, CASES)
    exponent[::2] = rng.choice([-1, 1], CASES // 2) * rng.uniform(edge - 1, edge + 1, CASES // 2)
    x = (rng.uniform(0.5, 1, (CASES, 1, 12)) * 10.0 ** exponent[:, None, None]).astype(dtype)
    g = (rng.uniform(0.5, 1, (CASES, 1, 6)) * 10.0 ** -exponent[:, None, None]).astype(dtype)
    limits = rng.choice([1e-22, 1e-3, 1.0, 3.0], CASES).astype(dtype)
    got = many(linear_case(12, 6, bias, dtype), x, g, limits)
    holds(got, limits)
    ordinary = (np.abs(exponent) < 10) & (limits > 1e-20)
    assert (lengths(got)[ordinary] > limits[ordinary] * 0.99).all()


def test_a_batch_of_very_different_examples_adds_up_to_no_more_than_their_bounds(dtype):
    rng = np.random.default_rng(2)
    limits = bounds(rng, dtype)
    places = ((9, np.ones(CASES)), (6, limits))
    x, g = (np.stack([spread(rng, (k,), dtype, around=a) for _ in range(5)], axis=1) for k, a in places)
    holds(many(linear_case(9, 6, True, dtype), x, g, limits), limits, count=5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(9, 4), (4, 9)], ids=["turned", "straight"])
@pytest.mark.parametrize("patches", [None, jnp.bfloat16], ids=["own", "bfloat16"])
def test_convolution(shape, bias, patches, dtype):
    if patches is not None and dtype == np.float64:
        pytest.skip("bfloat16 goes with float32")
    rng = np.random.default_rng(3)
    limits = bounds(rng, dtype)
    x, g = (spread(rng, (1, 5, k), dtype, around=a) for k, a in zip(shape, (np.ones(CASES), limits), strict=True))
    holds(many(linear_case(*shape, bias, dtype, patches), x, g, limits), limits)


def test_scale_and_shift(dtype):
    rng = np.random.default_rng(4)
    limits = bounds(rng, dtype)
    x, g = (spread(rng, (1, 3, 3, 4), dtype, around=a) for a in (np.ones(CASES), limits))
    params = {"scale": jnp.ones(4, dtype), "shift": jnp.zeros(4, dtype)}
    one = lambda x, g, b: gradient(lambda p, x: clipping.clipping_affine(b)("", p, x), params, x, g)  # noqa: E731
    holds(many(one, x, g, limits), limits)


@pytest.mark.parametrize("bias", [False, True])
def test_first_convolution(bias, monkeypatch):
    monkeypatch.setattr(pallas, "INTERPRET", True)
    rng = np.random.default_rng(6)
    x, g = spread(rng, (1, 6, 6, 1), np.float32, 150), spread(rng, (1, 2, 2, 4), np.float32, 150)
    limits = bounds(rng, np.float32, 150)
    params = {"w": jnp.ones((3, 3, 1, 4)), **({"b": jnp.zeros(4)} if bias else {})}
    one = lambda x, g, b: gradient(lambda p, x: gpu.first(p, x, b), params, x, g)  # noqa: E731
    holds(many(one, x, g, limits), limits)


@pytest.mark.parametrize("bias", [False, True])
def test_first_two_convolutions(bias, monkeypatch):
    monkeypatch.setattr(pallas, "INTERPRET", True)
    rng = np.random.default_rng(8)
    cases = 60
    x, g = spread(rng, (1, 12, 12, 1), np.float32, cases), spread(rng, (1, 1, 1, 16), np.float32, cases)
    limits = bounds(rng, np.float32, cases)
    size = spread(rng, (), np.float32, cases)
    first = {"w": jnp.ones((3, 3, 1, 16)), **({"b": jnp.zeros(16)} if bias else {})}
    second = {"w": jnp.ones((3, 3, 16, 16)), **({"b": jnp.zeros(16)} if bias else {})}

    def one(x, g, size, bound):
        layer = lambda p, x: gpu.both((False, False), *p, x, bound)  # noqa: E731
        return gradient(layer, (first, {**second, "w": second["w"] * size}), x, g)

    for layer in many(one, x, g, size, limits):
        holds(layer, limits)


# --- products that an accelerator rounds


def tf32(a):
    """Rounded to ten bits after the first, to nearest: what a GPU makes of inputs of float32 products."""
    bits = a.view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


def test_the_bound_holds_where_a_product_rounds_its_inputs(monkeypatch):
    """Numbers just above the middle between two that TF32 holds, so that each is rounded up by nearly 2⁻¹¹."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(clipping, "outer_sum", lambda x, g: (seen.append((x, g)), x.T @ g)[1])
    seen = []
    x = np.full((9, 40), 1 + 2.0**-11 + 2.0**-23, np.float32)
    for start in np.linspace(1, 1.01, 50):
        g = np.full((9, 6), start, np.float32)
        gradient(
            lambda p, x: clipping.clipping_linear(jnp.float32(1.0))("", p, x),
            {"w": jnp.ones((40, 6))}, jnp.asarray(x), jnp.asarray(g),
        )  # fmt: skip
        a, b = (tf32(np.asarray(v)) for v in seen.pop())
        exact = np.outer(a[0].astype(np.longdouble), b[0].astype(np.longdouble))
        assert 0.995 < np.sqrt(np.square(exact).sum()) <= 1
    assert clipping.outer_margin(jnp.zeros((8, 3))) == 1.0


# --- defences

SETTING = Setting(
    clients=4, per_round=2, rounds=1, batch=5, local_steps=1, sampling="fixed", batching="shuffle",
    aggregation="fedsgd", weights="uniform", lr=0.1, layers=2,
)  # fmt: skip


def watched(defense, tap, bias):
    config = {
        "data": {"partition": "iid", "clients": 4, "per_client": 40},
        "model": {"name": "logistic"},
        "train": {"per_round": 2, "local_steps": 1, "batch": 20, "lr": 0.1, "rounds": 1, "batching": "shuffle"},
        "defense": [defense],
    }
    simulator = fedveil.federation(config).simulator
    state = simulator.start()
    params = jax.tree.map(jnp.zeros_like, state.params)
    name = next(iter(params))
    params[name]["b"] = params[name]["b"].at[0].set(bias)
    seen = simulator.observe(dataclasses.replace(state, params=params), 0, 0, frozenset({tap}), steps=(0,))[tap]
    return jax.tree.map(lambda a: np.asarray(a)[None], seen[0] if tap == "batch" else seen)


def test_a_server_cannot_read_a_record_through_a_tiny_clip_of_examples():
    """It sends a model that is sure of class 0: gradients of that class are about 1e-20 long."""
    seen = watched({"name": "fed-cdp", "clip": 1e-22, "noise": 0.0}, "batch", 46.0)
    holds(seen, np.asarray([1e-22]))


def test_nor_through_a_tiny_clip_of_updates():
    """An update of about 1e-20, as the server may provoke, through the defence's own stage."""
    defense = FedSDP(placement="client", clip=1e-22, noise=0.0)
    key = jax.random.key(0)
    update = {"one": {"w": jnp.linspace(-1e-20, 1e-20, 64)}, "two": {"w": jnp.full(9, 1e-21)}}
    sent = jax.jit(lambda u: defense.update(u, StageContext(SETTING, key, key, 0, 0.1)))(update)
    for layer in sent.values():
        holds(jax.tree.map(lambda a: a[None], layer), np.asarray([1e-22]))
