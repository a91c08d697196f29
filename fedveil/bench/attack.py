"""What an attack costs: a batch of CPL attacks against torch's L-BFGS, one image at a time.

Same network and weights, same images, starts and labels, same number of attack iterations. Both sides take turns in one
process, after compilation. Each turn gives one ratio of seconds per attacked image; the figure is their median, with the
quartiles beside it. A ratio is ours over theirs: under 1 we are faster. Theirs attacks fewer images in a turn, because
one image costs it the same whatever stands in line.

| row | images |
|---|---|
| `attack/lfw` | 32×32 in colour, 106 classes |
| `attack/mnist` | 28×28 in grey, 10 classes |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.catalog import Settings, settings
from fedveil.attacks.observe import Observation
from fedveil.attacks.reconstruct import inits
from fedveil.attacks.reconstruct.run import reconstruct
from fedveil.bench.peers import torch_attack
from fedveil.bench.rows import row
from fedveil.models.build import Choices, build
from fedveil.models.layers import Array, Params
from fedveil.models.net import Net
from fedveil.rounds.client import cross_entropy


@dataclass(frozen=True)
class Case:
    """Images of one shape, and a budget of attack iterations after which no attack has come to rest."""

    shape: tuple[int, ...]
    classes: int
    iterations: int


CASES = {"lfw": Case((32, 32, 3), 106, 10), "mnist": Case((28, 28, 1), 10, 5)}
THEIRS = 3  # images that the other side attacks in a turn


@dataclass(frozen=True)
class Work:
    """Victims of one network."""

    net: Net
    params: Params
    x: np.ndarray
    y: np.ndarray
    observation: Observation


def run(
    images: int = 64, repeats: int = 5, progress: Callable[[str], None] = lambda line: None
) -> list[dict[str, object]]:
    """The rows of the module's table; none without torch, which is the other side."""
    absent = torch_attack.missing()
    if absent:
        progress(f"bench attack: {absent} is not installed: pip install 'fedveil[bench]'")
        return []
    rows = []
    for name, case in CASES.items():
        progress(f"bench attack: {name}")
        work, chosen = _victims(case, images), settings("cpl", iterations=case.iterations)
        ours, theirs = _ours(work, chosen), _theirs(work, chosen)
        ours(), theirs()  # the first turn compiles and warms up
        turns = [(ours(), theirs()) for _ in range(repeats)]
        rows.append(row(f"attack/{name}", [a for a, _ in turns], [b for _, b in turns]))
    return rows


def _victims(case: Case, images: int) -> Work:
    net = build("lenet-cpl", case.shape, case.classes, Choices(init="uniform-0.5"))
    params = net.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    x, y = rng.random((images, *case.shape), np.float32), rng.integers(0, case.classes, images)

    def loss(params: Params, x: Array, y: Array) -> Array:
        return cross_entropy(net.apply(params, x[None]), y[None])[0]

    gradients = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))(params, jnp.asarray(x), jnp.asarray(y))
    seen = Observation(net, params, jax.tree.map(np.asarray, gradients), np.arange(images), case.shape, case.classes)
    return Work(net, params, x, y, seen)


def _ours(work: Work, chosen: Settings) -> Callable[[], float]:
    """Seconds per image of all attacks as one batch."""
    return lambda: reconstruct(work.observation, chosen).seconds / len(work.x)


def _theirs(work: Work, chosen: Settings) -> Callable[[], float]:
    keys = [(int(i), 0, 0) for i in work.observation.ids]
    starts = inits.starts(chosen.init, work.observation, work.y[:, None], keys, None, "float32")[:, 0]
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    attack = torch_attack.attacks(work.net, work.params, work.x, work.y, starts, chosen.iterations, device)
    count = min(THEIRS, len(work.x))
    return lambda: sum(attack(number) for number in range(count)) / count
