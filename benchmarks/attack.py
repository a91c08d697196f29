"""The cost of an attack: a batch of ours against torch's L-BFGS and against `breaching`, one image at a time.

All sides have the same network and weights, the same images and starts, and the same number of attack iterations. They take
turns in one process, after compilation. Each turn gives one ratio of seconds per attacked image; a row has their median
and quartiles. The ratio is ours over theirs: under 1 ours is faster. The other side attacks fewer images in a turn, because
its cost per image does not depend on their number.

| row | ours | theirs |
|---|---|---|
| `attack/lfw` | cpl on 32×32 in colour, 106 classes | torch's L-BFGS, label given |
| `attack/mnist` | cpl on 28×28 in grey, 10 classes | likewise |
| `attack/breaching/NAME` | NAME on 32×32 in colour, 106 classes | breaching's configuration of NAME |
| `attack/breaching/NAME/alone` | the images that the other side attacks, also one at a time | likewise |

Rows of breaching time whole calls, which also infer labels and draw starts. They have the quality of both sides on the
images that both attacked: the means of `mse`, of `ssim`, and of `evaluations`, the number of gradients computed (L-BFGS may
converge before its last iteration).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import breaching_attack, torch_attack
from benchmarks.rows import row
from fedveil.attacks.base import Reconstruction
from fedveil.attacks.observation import GradientObservation
from fedveil.attacks.reconstruction import inits
from fedveil.attacks.reconstruction.cpl import CPL
from fedveil.attacks.reconstruction.dlg import DLG
from fedveil.attacks.reconstruction.engine import reconstruct
from fedveil.attacks.reconstruction.inverting import Inverting
from fedveil.attacks.reconstruction.matching import GradientMatching
from fedveil.attacks.score import ssim
from fedveil.models.catalog import ModelConfig, build
from fedveil.models.layers import Array, Params, Shape
from fedveil.models.net import Net
from fedveil.simulation.client import cross_entropy


@dataclass(frozen=True)
class Case:
    """Images of one shape, and a number of attack iterations within which no attack converges."""

    shape: tuple[int, ...]
    classes: int
    iterations: int


CASES = {"lfw": Case((32, 32, 3), 106, 10), "mnist": Case((28, 28, 1), 10, 5)}
BREACHING = {"inverting": Case((32, 32, 3), 106, 200), "dlg": Case((32, 32, 3), 106, 10)}
SAME: dict[str, Callable[[int], GradientMatching]] = {  # our attacks with breaching's settings
    "inverting": lambda iterations: Inverting(iterations=iterations, tv=0.2),
    "dlg": lambda iterations: DLG(iterations=iterations),
}
THEIRS = 3  # images that the other side attacks in a turn


@dataclass(frozen=True)
class Work:
    """The victims: a network, its parameters, the images and labels, and what the attacker observes."""

    net: Net
    params: Params
    x: np.ndarray
    y: np.ndarray
    observation: GradientObservation


def run(
    images: int = 100, repeats: int = 5, progress: Callable[[str], None] = lambda line: None
) -> Iterator[dict[str, object]]:
    """The rows of the module's table: none without torch, and none of breaching where it is not installed."""
    absent = torch_attack.missing()
    if absent:
        progress(f"bench attack: {absent} is not installed: pip install 'fedveil[bench]'")
        return
    for name, case in CASES.items():
        progress(f"bench attack: {name}")
        with torch_attack.threads_kept():
            made = _against_torch(name, case, images, repeats)
        yield made
    absent = breaching_attack.missing()
    if absent:
        what = f"no comparison with breaching, {absent} is not installed"
        progress(f"bench attack: {what}: pip install 'fedveil[bench]'")
        return
    for name, case in BREACHING.items():
        progress(f"bench attack: {name} of breaching")
        with torch_attack.threads_kept():
            several = _against_breaching(name, case, images, repeats)
        yield from several


def _against_torch(name: str, case: Case, images: int, repeats: int) -> dict[str, object]:
    work, chosen = victims(case, images, noise), CPL(iterations=case.iterations)
    ours, theirs = as_a_batch(work, chosen), _theirs(work, chosen)
    ours(), theirs()  # the first turn compiles and warms up
    turns = [(ours(), theirs()) for _ in range(repeats)]
    return row(f"attack/{name}", [a for a, _ in turns], [b for _, b in turns])


def _against_breaching(name: str, case: Case, images: int, repeats: int) -> list[dict[str, object]]:
    work, chosen = victims(case, images, _smooth), SAME[name](case.iterations)
    starts, both = _starts(work, chosen), range(min(THEIRS, images))
    attack = breaching_attack.attacks(
        name, work.net, work.params, work.x, work.y, starts, case.iterations, _torch_device()
    )
    together, apart = _whole(work, chosen), [_whole(_only(work, number), chosen) for number in both]
    # The first turn compiles and warms up, and gives the quality of both sides.
    quality = _quality(work, reconstruct(work.observation, chosen), [attack(number) for number in both])
    for ours in apart:
        ours()
    turns = [
        (together(), fmean(ours() for ours in apart), fmean(attack(number).seconds for number in both))
        for _ in range(repeats)
    ]
    batch, alone, theirs = (list(side) for side in zip(*turns, strict=True))
    title = f"attack/breaching/{name}"
    return [row(title, batch, theirs) | quality, row(f"{title}/alone", alone, theirs) | quality]


def victims(case: Case, images: int, draw: Callable[[np.random.Generator, int, Shape], np.ndarray]) -> Work:
    """Images from `draw` with random labels, and the gradient that each victim shares."""
    net = build("lenet-cpl", case.shape, case.classes, ModelConfig(init="uniform-0.5"))
    params = net.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    x, y = draw(rng, images, case.shape), rng.integers(0, case.classes, images)

    def loss(params: Params, x: Array, y: Array) -> Array:
        return cross_entropy(net.apply(params, x[None]), y[None])[0]

    gradients = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))(params, jnp.asarray(x), jnp.asarray(y))
    ids = np.arange(images)
    seen = GradientObservation(net, params, jax.tree.map(np.asarray, gradients), ids, case.shape, case.classes)
    return Work(net, params, x, y, seen)


def noise(rng: np.random.Generator, images: int, shape: Shape) -> np.ndarray:
    return rng.random((images, *shape), np.float32)


def _smooth(rng: np.random.Generator, images: int, shape: Shape) -> np.ndarray:
    """Noise of 5×5 pixels, enlarged. Neighbouring pixels are similar as in photographs, as total variation assumes."""
    coarse = rng.random((images, 5, 5, shape[2]), np.float32)
    return np.asarray(jax.image.resize(coarse, (images, *shape), "linear"))


def _only(work: Work, number: int) -> Work:
    """The work with a single victim."""
    at, seen = slice(number, number + 1), work.observation
    one = replace(seen, gradients=jax.tree.map(lambda g: g[at], seen.gradients), ids=seen.ids[at])
    return replace(work, x=work.x[at], y=work.y[at], observation=one)


def as_a_batch(work: Work, chosen: GradientMatching) -> Callable[[], float]:
    """A function that attacks all images as one batch and returns seconds per image, from first to last iteration."""
    return lambda: reconstruct(work.observation, chosen).seconds / len(work.x)


def _whole(work: Work, chosen: GradientMatching) -> Callable[[], float]:
    """A function that returns seconds per image of the whole call, as breaching is timed, without compilation."""

    def call() -> float:
        started = time.perf_counter()
        compiling = reconstruct(work.observation, chosen).compile_seconds
        return (time.perf_counter() - started - compiling) / len(work.x)

    return call


def _theirs(work: Work, chosen: GradientMatching) -> Callable[[], float]:
    starts, device = _starts(work, chosen), _torch_device()
    attack = torch_attack.attacks(work.net, work.params, work.x, work.y, starts, chosen.iterations, device)
    count = min(THEIRS, len(work.x))
    return lambda: sum(attack(number) for number in range(count)) / count


def _starts(work: Work, chosen: GradientMatching) -> np.ndarray:
    """The images that our attacks start from, [images, ...shape]."""
    keys = [(int(i), 0, 0) for i in work.observation.ids]
    return inits.starts(chosen, work.observation, work.y[:, None], keys, "float32")[:, 0]


def _torch_device() -> str:
    return "cuda" if jax.default_backend() == "gpu" else "cpu"


def _quality(work: Work, ours: Reconstruction, theirs: list[breaching_attack.Found]) -> dict[str, object]:
    """The errors of both sides on the images that both attacked, and the gradients they computed."""
    real = work.x[: len(theirs)].astype(np.float64)
    images = {"ours": ours.inputs[: len(theirs), 0].astype(np.float64), "theirs": np.stack([f.image for f in theirs])}
    found: dict[str, object] = {}
    for side, image in images.items():
        found[f"mse_{side}"] = float(np.square(image - real).mean())
        found[f"ssim_{side}"] = fmean(ssim(a, b) for a, b in zip(image, real, strict=True))
    found["evaluations_ours"] = float(ours.evaluations[: len(theirs)].mean())
    found["evaluations_theirs"] = fmean(f.evaluations for f in theirs)
    return found
