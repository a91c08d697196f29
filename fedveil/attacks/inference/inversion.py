"""Model inversion: the common features of a class, from a model that has learnt it (2dp-fl, sections IV.B and VI.A).

The attacker has a model: its own (`passive-local`), the one that goes out (`passive-global`) or the victim's (`active`). It
computes x = C⁻¹(y, w), an input that the model assigns to the class y, by one of two methods:

- `ascent`: maximise log p(y | x) − ‖x‖²/2 − tv·TV(x) by Adam from a nearly blank input, kept in the known range of inputs.
  The square is a standard normal prior. Without it every pixel runs to the edge of the range, whatever its weight, and
  untrained weights hide what was learnt. It also makes the result independent of the step length.
- `closed`, for logistic regression p = softmax(Wᵀx + b): W̄ and b̄ are centred over the classes, since a softmax depends on
  differences of logits alone. x = W̄(W̄ᵀW̄)⁺(t̄ − b̄) is the shortest input whose class probabilities are exactly those of
  the target, `CONFIDENCE` for y and the rest shared evenly; t is their logarithm. It is then stretched to the range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from fedveil.attacks.base import ONCE, Execution
from fedveil.attacks.inference.base import InversionAttack
from fedveil.attacks.observation import InversionObservation, ModelObservation
from fedveil.core.errors import ConfigError
from fedveil.core.system import Lazy
from fedveil.models.layers import Array, Dense, Flatten, Params, Shape
from fedveil.models.net import Model, Net

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax, jnp = Lazy("jax"), Lazy("jax.numpy")

FAINT = 0.01  # the start, as a share of the range: at zero a network without biases has no gradient
CONFIDENCE = 0.99  # the probability that the closed form asks of the model
AT_ONCE = 16  # federations whose inputs are computed together
METHODS = {
    "ascent": "gradient ascent on the class's log-probability",
    "closed": "logistic regression solved for its input",
}


@dataclass(frozen=True)
class Inversion(InversionAttack):
    """Gradient ascent on the class probability, or logistic regression solved in closed form."""

    method: Annotated[str, Field(description="how inputs are found")] = "ascent"
    iterations: Annotated[int, Field(ge=1, le=10_000_000, description="steps of the ascent")] = 500
    lr: Annotated[float, Field(gt=0, description="step length of the ascent")] = 0.1
    tv: Annotated[float, Field(ge=0, description="weight of the total variation in the ascent, for images")] = 0.0

    name: ClassVar[str] = "inversion"
    summary: ClassVar[str] = "common features of a class, from a model that has learnt it (2dp-fl, section IV.B)"
    choices: ClassVar[Mapping[str, Mapping[str, str]]] = {"method": METHODS}

    def check(self) -> None:
        super().check()
        if self.method == "ascent":
            return
        for key in ("iterations", "lr", "tv"):
            if getattr(self, key) != getattr(Inversion, key):
                takes = f"is not read by method '{self.method}': leave it out"
                raise ConfigError(f"attack.{key}", getattr(self, key), takes)

    def run(self, observation: InversionObservation, execution: Execution = ONCE) -> np.ndarray:
        """[federations, classes, ...shape] float64: an input of each class, from the last model of each federation.

        A model that is not finite gives blank inputs.
        """
        seen = observation.federations
        models = jax.tree.map(lambda *each: np.stack(each), *[one.last for one in seen])
        finite = [np.isfinite(a).reshape(len(a), -1).all(axis=1) for a in jax.tree.leaves(models)]
        usable = np.stack(finite).all(axis=0)
        models = jax.tree.map(lambda a: np.where(usable.reshape(-1, *[1] * (a.ndim - 1)), a, 0), models)
        found = SOLVERS[self.method](seen[0], models, np.asarray(observation.classes, np.int32), self)
        return np.where(usable.reshape(-1, *[1] * (found.ndim - 1)), found, 0.0)


def ascent(seen: ModelObservation, models: Params, classes: np.ndarray, settings: Inversion) -> np.ndarray:
    """Gradient ascent for all classes of all federations (models [federations, ...]) in one program."""
    precision = jax.tree.leaves(models)[0].dtype
    how = _Ascent(seen.model, tuple(seen.shape), seen.span, settings.iterations, settings.lr, settings.tv)
    with jax.enable_x64(precision == np.float64), jax.default_matmul_precision("highest"):
        return np.asarray(_compiled()(how, models, classes), np.float64)


@dataclass(frozen=True)
class _Ascent:
    """What is the same for every class and federation: static under jit."""

    model: Model
    shape: Shape
    span: tuple[float, float] | None
    iterations: int
    lr: float
    tv: float


@cache
def _compiled() -> Any:
    """The jitted `_ascend_all`; made on first use, because JAX is imported on first use."""
    return jax.jit(_ascend_all, static_argnums=0)


def _ascend_all(how: _Ascent, models: Params, labels: Array) -> Array:
    each = jax.vmap(partial(_ascend, how), in_axes=(None, 0))
    return jax.lax.map(lambda params: each(params, labels), models, batch_size=AT_ONCE)


def _ascend(how: _Ascent, params: Params, label: Array) -> Array:
    """The input of one class under one model, by Adam. The step length decays to zero, so that Adam converges."""
    import optax

    from fedveil.attacks.reconstruction.regularise import total_variation

    low, high = how.span if how.span is not None else (-np.inf, np.inf)

    def loss(x: Array) -> Array:
        value = -jax.nn.log_softmax(how.model.apply(params, x[None])[0])[label] + jnp.sum(x * x) / 2
        return value + how.tv * total_variation(x[None, None])[0] if how.tv else value

    def step(_: int, at: tuple[Array, Any]) -> tuple[Array, Any]:
        x, memory = at
        moved, memory = adam.update(jax.grad(loss)(x), memory)
        return jnp.clip(x + moved, low, high), memory

    adam = optax.adam(optax.linear_schedule(how.lr, 0.0, how.iterations))
    faint = np.clip(0.0, low, high) + FAINT * (high - low if how.span is not None else 1.0)
    start = jnp.full(how.shape, faint, jax.tree.leaves(params)[0].dtype)
    return jax.lax.fori_loop(0, how.iterations, step, (start, adam.init(start)))[0]


def closed(seen: ModelObservation, models: Params, classes: np.ndarray, settings: Inversion) -> np.ndarray:
    """Inverts a logistic regression in closed form, then stretches the inputs to the range of the data."""
    layer = models[next(iter(models))]
    solved = np.stack(
        [
            solve(np.asarray(w, np.float64), np.asarray(b, np.float64), classes)
            for w, b in zip(layer["w"], layer["b"], strict=True)
        ]
    ).reshape(-1, len(classes), *seen.shape)
    if seen.span is None:
        return solved
    low, high = seen.span
    return low + (high - low) * np.stack([[stretched(x) for x in each] for each in solved])


def solve(w: np.ndarray, b: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """[classes, inputs]: the shortest x that the model assigns to each class with probability CONFIDENCE.

    The model is softmax(wᵀx + b), with w [inputs, labels] and b [labels].
    """
    labels = len(b)
    wanted = np.full((len(classes), labels), (1 - CONFIDENCE) / (labels - 1))
    wanted[np.arange(len(classes)), classes] = CONFIDENCE
    logits = np.log(wanted)
    centred = w - w.mean(axis=1, keepdims=True)
    missing = logits - logits.mean(axis=1, keepdims=True) - (b - b.mean())
    return missing @ np.linalg.pinv(centred)


def stretched(x: np.ndarray) -> np.ndarray:
    """A picture with its smallest value at 0 and its largest at 1; a constant one becomes blank."""
    low, high = float(x.min()), float(x.max())
    return (x - low) / (high - low) if high > low else np.zeros_like(x)


def is_logistic(model: Model) -> bool:
    """Whether a model is one dense layer on its input, and nothing else."""
    if not isinstance(model, Net):
        return False
    rest = [layer for layer in model.layers if not isinstance(layer, Flatten)]
    return len(rest) == 1 and isinstance(rest[0], Dense) and rest[0].bias


SOLVERS: dict[str, Callable[[ModelObservation, Params, np.ndarray, Inversion], np.ndarray]] = {
    "ascent": ascent,
    "closed": closed,
}
