"""Where an attack starts: one small function per name, drawn from the attack's key (cpl, section 3.1)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.observation import GradientObservation
from fedveil.attacks.reconstruction.matching import GradientMatching
from fedveil.core.errors import ConfigError
from fedveil.core.keys import generator
from fedveil.models.layers import Array, Shape

START, LABELS, PICK = 1, 2, 3  # purposes of an attack's draws


def attack_key(identity: int | Array, seed: int | Array, restart: int | Array, purpose: int) -> Array:
    """The key of one attack, by its victim and restart; its index in a batch does not enter."""
    key = jax.random.key(seed, impl="threefry2x32")
    for number in (identity, restart, purpose):
        key = jax.random.fold_in(key, number)
    return key


def starts(
    settings: GradientMatching,
    observation: GradientObservation,
    labels: np.ndarray,
    keys: list[tuple[int, int, int]],
    dtype: str,
) -> np.ndarray:
    """[attacks, examples, ...shape]: the start of each attack; `keys` (victim, seed, restart), `labels` as inferred."""
    name = settings.init
    if name in _DRAWN:
        columns = (jnp.asarray(column, jnp.uint32) for column in zip(*keys, strict=True))
        return np.array(_draw_all(name, observation.shape, observation.examples, dtype, *columns))
    if name in ("optimal", "optimal-any"):
        return _borrowed(name, observation, labels, keys).astype(dtype)
    picture = _read(settings.file, observation.shape) if name == "file" else _plain(name, observation.shape)
    return np.broadcast_to(picture, (len(keys), observation.examples, *observation.shape)).astype(dtype)


def label_logits(keys: list[tuple[int, int, int]], size: int, dtype: str) -> np.ndarray:
    """[attacks, size]: the start of labels that are optimised too."""
    columns = (jnp.asarray(column, jnp.uint32) for column in zip(*keys, strict=True))
    return np.asarray(_normal_all(size, dtype, *columns))


@partial(jax.jit, static_argnums=(0, 1))
def _normal_all(size: int, dtype: str, identity: Array, seed: Array, restart: Array) -> Array:
    def draw(identity: Array, seed: Array, restart: Array) -> Array:
        return jax.random.normal(attack_key(identity, seed, restart, LABELS), (size,), dtype)

    return jax.vmap(draw)(identity, seed, restart)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _draw_all(
    name: str, shape: Shape, examples: int, dtype: str, identity: Array, seed: Array, restart: Array
) -> Array:
    """[attacks, examples, ...shape]: random starts, each from its own key."""

    def one(identity: Array, seed: Array, restart: Array) -> Array:
        key = attack_key(identity, seed, restart, START)
        each = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(examples, dtype=jnp.uint32))
        return jax.vmap(lambda own: _DRAWN[name](own, shape, dtype))(each)

    return jax.vmap(one)(identity, seed, restart)


def _patterned(parts: int) -> Callable[[Array, Shape, str], Array]:
    """Noise on a tile, repeated `parts` times along height and width; a vector gets parts² tiles."""

    def draw(key: Array, shape: Shape, dtype: str) -> Array:
        if len(shape) == 3:
            tile = (math.ceil(shape[0] / parts), math.ceil(shape[1] / parts), shape[2])
            repeated = jnp.tile(jax.random.uniform(key, tile, dtype), (parts, parts, 1))
            return repeated[: shape[0], : shape[1]]
        size = math.prod(shape)
        tile_size = math.ceil(size / parts**2)
        repeated = jnp.tile(jax.random.uniform(key, (tile_size,), dtype), parts**2)
        return repeated[:size].reshape(shape)

    return draw


_DRAWN: dict[str, Callable[[Array, Shape, str], Array]] = {
    "patterned-2x2": _patterned(2),
    "patterned-4x4": _patterned(4),
    "random-normal": lambda key, shape, dtype: jax.random.normal(key, shape, dtype),
    "random-uniform": lambda key, shape, dtype: jax.random.uniform(key, shape, dtype),
}


def _plain(name: str, shape: Shape) -> np.ndarray:
    if name in ("dark", "light"):
        return np.full(shape, float(name == "light"))
    if len(shape) != 3 or shape[2] != 3:
        raise ConfigError("attack.init", name, f"needs images of three colours; examples have shape {shape}")
    picture = np.zeros(shape)
    picture[..., ("red", "green", "blue").index(name)] = 1.0
    return picture


def _borrowed(
    name: str, observation: GradientObservation, labels: np.ndarray, keys: list[tuple[int, int, int]]
) -> np.ndarray:
    """Examples of the attacker's auxiliary data, of the inferred class or of any."""
    held = observation.auxiliary
    if held is None or len(held.y) == 0:
        takes = "needs auxiliary examples that the attacker holds, and none were granted"
        raise ConfigError("attack.init", name, takes)
    found = np.empty((len(keys), observation.examples, *observation.shape))
    for row, (identity, seed, restart) in enumerate(keys):
        rng = generator(seed, PICK, identity, restart)
        for i in range(observation.examples):
            rows = np.arange(len(held.y)) if name == "optimal-any" else np.flatnonzero(held.y == labels[row, i])
            if len(rows) == 0:
                rows = np.arange(len(held.y))
            found[row, i] = held.x[rng.choice(rows)]
    return found


def _read(file: str | None, shape: Shape) -> np.ndarray:
    """A picture scaled to the examples' size with values in [0, 1], or an array unchanged."""
    path = Path(file or "")
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False).astype(float)
        else:
            from PIL import Image

            mode = "RGB" if shape[-1] == 3 else "L"
            with Image.open(path) as picture:
                sized = picture.convert(mode).resize((shape[1], shape[0]) if len(shape) == 3 else picture.size)
            array = np.asarray(sized, float) / 255.0
    except (OSError, ValueError) as error:
        raise ConfigError("attack.file", str(file), f"cannot be read: {error}") from None
    if array.size != math.prod(shape):
        raise ConfigError("attack.file", str(file), f"has shape {array.shape}; examples have {shape}")
    return array.reshape(shape)
