"""The first two convolutions in one step, as on a GPU: against the layers one by one, and clipped against example
by example. Weights and data are small whole numbers, which bfloat16 holds exactly, so what is compared is exact, too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedveil.kernels import clipping, gpu, pallas
from fedveil.kernels.clipping import FusedContext, training_context
from fedveil.kernels.gpu import Pair
from fedveil.mechanisms import clip
from fedveil.models.catalog import build
from fedveil.models.layers import Activation, Context, Conv, Pool

CLIENTS, BATCH = 2, 3


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """As if on a GPU; the kernels run as plain JAX here."""
    monkeypatch.setattr(clipping, "suits_gpu", lambda conv, x: clipping.suits(conv, x.shape[-1]))
    monkeypatch.setattr(pallas, "INTERPRET", True)


def layers(bias, kinds, kernel=3, padding=0):
    found = []
    for conv, kind in zip((Conv("a", 16, 3, 1, padding, bias), Conv("b", 32, kernel, 1, 0, bias)), kinds, strict=True):
        found += [conv, *([] if kind is None else [Activation(kind)]), Pool()]
    return tuple(found)


def pair_of(*choices, **more):
    (found,) = gpu.paired(layers(*choices, **more))
    assert isinstance(found, Pair)
    return found


def whole_numbers(pair, shape, seed=0):
    """Clients' weights and data, and what their outputs are weighed with."""
    rng = np.random.default_rng(seed)
    like = pair.init(jax.random.key(0), shape)

    def few(size, most, share):
        numbers = rng.integers(-most, most + 1, size) * (rng.random(size) < share)
        return jnp.asarray(numbers, jnp.float32)

    params = jax.tree.map(lambda a: few((CLIENTS, *a.shape), 1, 0.3), like)
    return params, few((CLIENTS, BATCH, *shape), 2, 0.8), few((CLIENTS, BATCH, *pair.out_shape(shape)), 1, 0.2)


def gradients(pair, context, params, x, weights):
    def value(p, data, weight):
        return (pair.apply(p, data, context) * weight).sum()

    return jax.jit(jax.vmap(jax.value_and_grad(value)))(params, x, weights)


def same(got, want, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, want)


RELUS = ("relu", "relu")


@pytest.mark.parametrize(
    ("shape", "pair"),
    [
        ((16, 17, 1), pair_of(False, RELUS)),
        ((12, 12, 3), pair_of(True, RELUS)),
        pytest.param((28, 28, 1), pair_of(False, RELUS), marks=pytest.mark.slow),
        pytest.param((14, 12, 1), pair_of(True, (None, "tanh"), padding=1), marks=pytest.mark.slow),
        pytest.param((13, 12, 2), pair_of(False, ("relu", None), kernel=2), marks=pytest.mark.slow),
    ],
)
def test_value_and_gradient_are_those_of_the_layers_one_by_one(shape, pair):
    numbers = whole_numbers(pair, shape)
    assert gpu.suits_both(pair, numbers[1][0])
    got = gradients(pair, FusedContext(), *numbers)
    want = gradients(pair, Context(), *numbers)
    exact = pair.second.activation is None or pair.second.activation.kind == "relu"
    same(got, want, rtol=1e-6 if exact else 2e-2, atol=1e-6 if exact else 2e-2)
    assert all(np.abs(a).max() > 0 for a in jax.tree.leaves(got))


@pytest.mark.parametrize("bias", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_clipped_inside_equals_clipped_one_by_one(bias):
    pair, shape, bound = pair_of(bias, RELUS), (12, 12, 1), 3.0
    params, x, weights = whole_numbers(pair, shape)
    _, got = gradients(pair, FusedContext(bound=jnp.asarray(bound)), params, x, weights)
    for client in range(CLIENTS):
        own = jax.tree.map(lambda a, c=client: a[c], params)
        alone = jax.tree.map(lambda a: jnp.stack([a] * BATCH), own)
        _, each = gradients(pair, Context(), alone, x[client][:, None], weights[client][:, None])
        norms = clip.layer_norms(each)
        assert all((norm > bound).any() for norm in norms.values())
        clipped = jax.tree.map(lambda a: a.sum(axis=0), clip.clip_examples(each, bound, "layerwise"))
        # room for a rounding is left in the second layer: 2⁻⁸ of the bound
        same(jax.tree.map(lambda a, c=client: a[c], got), clipped, rtol=5e-3, atol=1e-4)


@pytest.mark.optimised  # which may reorder or contract sums
@pytest.mark.parametrize("bound", [1e-3, pytest.param(0.3, marks=pytest.mark.slow)])
def test_the_bound_holds_with_any_numbers_and_what_is_no_number_is_left_out(bound):
    pair, shape = pair_of(True, RELUS), (12, 12, 1)
    rng = np.random.default_rng(1)
    params = jax.vmap(lambda key: pair.init(key, shape))(jax.random.split(jax.random.key(3), CLIENTS))
    x = jnp.asarray(rng.random((CLIENTS, 1, *shape)) * 10, jnp.float32).at[0, 0, 3, 3, 0].set(jnp.nan)
    weights = jnp.asarray(rng.normal(size=(CLIENTS, 1, *pair.out_shape(shape))) * 1e3, jnp.float32)
    _, got = gradients(pair, FusedContext(bound=jnp.asarray(bound)), params, x, weights)
    for layer in got.values():
        norms = np.sqrt(sum(np.square(a).reshape(CLIENTS, -1).sum(axis=1) for a in map(np.asarray, layer.values())))
        assert norms[0] == 0.0
        assert bound * 0.99 < norms[1] <= bound


def test_shapes_and_layers_that_do_not_suit_are_computed_one_by_one():
    shape = (12, 12, 1)
    assert gpu.suits_kernels(pair_of(False, RELUS), shape)
    assert not gpu.suits_kernels(pair_of(False, ("tanh", "relu")), shape)
    assert not gpu.suits_kernels(pair_of(False, RELUS, kernel=5), shape)
    assert not gpu.suits_kernels(pair_of(False, RELUS), (60, 60, 1))
    first, second = Conv("a", 12, 3), Conv("b", 32, 3)
    (odd,) = gpu.paired((first, Pool(), second, Pool()))
    assert not gpu.suits_kernels(odd, shape)
    mean = (first, Pool("mean"), second, Pool())
    assert not any(isinstance(layer, Pair) for layer in gpu.paired(mean))


@pytest.mark.parametrize(("rows", "length", "columns"), [(5, 1600, 10), (1, 513, 32), (8, 600, 1)])
def test_a_thin_product_is_a_matrix_product(rows, length, columns):
    rng = np.random.default_rng(4)
    x, w = rng.normal(size=(2, rows, length)), rng.normal(size=(2, length, columns))
    x, w = x.astype(np.float32), w.astype(np.float32)
    assert clipping.is_thin(jnp.asarray(x[0]), jnp.asarray(w[0]))
    np.testing.assert_allclose(jax.vmap(pallas.thin)(x, w), x @ w, rtol=1e-4, atol=1e-3)
    y, squares = jax.vmap(pallas.thin_and_squares)(x, w)
    np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(squares, np.square(x).sum(axis=-1), rtol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_a_thin_layer_is_clipped_by_the_squares_that_its_product_gives(bias, monkeypatch):
    rng = np.random.default_rng(6)
    params = {"w": jnp.asarray(rng.normal(size=(600, 10)), jnp.float32), **({"b": jnp.ones(10)} if bias else {})}
    x = jnp.asarray(rng.normal(size=(5, 600)), jnp.float32).at[3, 7].set(jnp.inf)
    bound = 0.7

    def gradient():
        linear = clipping.clipping_linear(jnp.asarray(bound))
        return jax.jit(jax.grad(lambda p: (linear("", p, x) * jnp.arange(10.0)).sum()))(params)

    want = gradient()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    got = gradient()
    same(got, want, rtol=1e-4, atol=1e-6)
    norm = np.sqrt(sum(np.square(np.asarray(a)).sum() for a in got.values()))
    assert 0 < norm <= 4 * bound  # one of five is not finite and left out


@pytest.mark.parametrize("clipped", [False, True])
def test_a_training_step_lowers_for_a_gpu(clipped, a_card, monkeypatch):
    monkeypatch.undo()
    net = build("cnn", (28, 28, 1), 10)
    params = jax.vmap(net.init)(jax.random.split(jax.random.key(0), 2))
    x = jnp.zeros((2, 5, 28, 28, 1))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    context = training_context(None, jnp.asarray(1.0) if clipped else None, bfloat16=True)
    step = jax.jit(jax.vmap(jax.grad(lambda p, v: jnp.square(net.apply(p, v, context)).sum())))
    with a_card:
        text = step.trace(params, x).lower(lowering_platforms=("cuda",)).as_text()
    for kernel in ("pooled", "first_by_example", "thin", "by_example" if clipped else "summed"):
        assert f'name = "{kernel}"' in text
