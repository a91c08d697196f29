"""What an attack costs: a batch of ours against torch's L-BFGS and against `breaching`, one image at a time.

Same network and weights, same images and starts, same number of attack iterations. All sides take turns in one process,
after compilation. Each turn gives one ratio of seconds per attacked image; the figure is their median, with the quartiles
beside it. A ratio is ours over theirs: under 1 we are faster. Theirs attacks fewer images in a turn, because one image
costs it the same whatever stands in line.

| row | ours | theirs |
|---|---|---|
| `attack/lfw` | cpl on 32×32 in colour, 106 classes | torch's L-BFGS, label given |
| `attack/mnist` | cpl on 28×28 in grey, 10 classes | likewise |
| `attack/breaching/NAME` | NAME on 32×32 in colour, 106 classes | breaching's own configuration of NAME |
| `attack/breaching/NAME/alone` | the same images that theirs attacks, one at a time too | likewise |

Rows of breaching count whole calls, in which labels and starts are found too. They say how well both sides did on the
images that both attacked: means of `mse` and `ssim`, and of `evaluations`, the gradients that were computed (L-BFGS may
come to rest before its budget is spent).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean

import jax
import jax.numpy as jnp
import numpy as np

from fedveil.attacks.catalog import Settings, settings
from fedveil.attacks.observe import Observation
from fedveil.attacks.reconstruction import inits
from fedveil.attacks.reconstruction.run import Reconstruction, reconstruct
from fedveil.attacks.score import ssim
from fedveil.bench.peers import breaching_attack, torch_attack
from fedveil.bench.rows import row
from fedveil.models.build import build
from fedveil.models.catalog import ModelConfig
from fedveil.models.layers import Array, Params, Shape
from fedveil.models.net import Net
from fedveil.simulation.client import cross_entropy


@dataclass(frozen=True)
class Case:
    """Images of one shape, and a budget of attack iterations after which no attack has come to rest."""

    shape: tuple[int, ...]
    classes: int
    iterations: int


CASES = {"lfw": Case((32, 32, 3), 106, 10), "mnist": Case((28, 28, 1), 10, 5)}
BREACHING = {"inverting": Case((32, 32, 3), 106, 200), "dlg": Case((32, 32, 3), 106, 10)}
SAME = {"inverting": {"tv": 0.2}, "dlg": {}}  # what breaching's configuration sets otherwise than our default
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
    images: int = 100, repeats: int = 5, progress: Callable[[str], None] = lambda line: None
) -> Iterator[dict[str, object]]:
    """The rows of the module's table; none without torch, and none of breaching without it."""
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
    work, chosen = victims(case, images, noise), settings("cpl", iterations=case.iterations)
    ours, theirs = as_a_batch(work, chosen), _theirs(work, chosen)
    ours(), theirs()  # the first turn compiles and warms up
    turns = [(ours(), theirs()) for _ in range(repeats)]
    return row(f"attack/{name}", [a for a, _ in turns], [b for _, b in turns])


def _against_breaching(name: str, case: Case, images: int, repeats: int) -> list[dict[str, object]]:
    work, chosen = victims(case, images, _smooth), settings(name, iterations=case.iterations, **SAME[name])
    starts, both = _starts(work, chosen), range(min(THEIRS, images))
    attack = breaching_attack.attacks(
        name, work.net, work.params, work.x, work.y, starts, case.iterations, _torch_device()
    )
    together, apart = _whole(work, chosen), [_whole(_only(work, number), chosen) for number in both]
    # The first turn compiles, warms up, and shows how well both sides do.
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
    net = build("lenet-cpl", case.shape, case.classes, ModelConfig(init="uniform-0.5"))
    params = net.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    x, y = draw(rng, images, case.shape), rng.integers(0, case.classes, images)

    def loss(params: Params, x: Array, y: Array) -> Array:
        return cross_entropy(net.apply(params, x[None]), y[None])[0]

    gradients = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))(params, jnp.asarray(x), jnp.asarray(y))
    seen = Observation(net, params, jax.tree.map(np.asarray, gradients), np.arange(images), case.shape, case.classes)
    return Work(net, params, x, y, seen)


def noise(rng: np.random.Generator, images: int, shape: Shape) -> np.ndarray:
    return rng.random((images, *shape), np.float32)


def _smooth(rng: np.random.Generator, images: int, shape: Shape) -> np.ndarray:
    """Noise of 5×5 pixels, enlarged: neighbours are alike as in photographs, which total variation counts on."""
    coarse = rng.random((images, 5, 5, shape[2]), np.float32)
    return np.asarray(jax.image.resize(coarse, (images, *shape), "linear"))


def _only(work: Work, number: int) -> Work:
    """One of the victims, alone."""
    at, seen = slice(number, number + 1), work.observation
    one = replace(seen, gradients=jax.tree.map(lambda g: g[at], seen.gradients), ids=seen.ids[at])
    return replace(work, x=work.x[at], y=work.y[at], observation=one)


def as_a_batch(work: Work, chosen: Settings) -> Callable[[], float]:
    """Seconds per image of all attacks as one batch, from the first iteration to the last."""
    return lambda: reconstruct(work.observation, chosen).seconds / len(work.x)


def _whole(work: Work, chosen: Settings) -> Callable[[], float]:
    """Seconds per image of the whole call, which is how breaching is timed too; compiling the attack does not count."""

    def call() -> float:
        started = time.perf_counter()
        compiling = reconstruct(work.observation, chosen).compile_seconds
        return (time.perf_counter() - started - compiling) / len(work.x)

    return call


def _theirs(work: Work, chosen: Settings) -> Callable[[], float]:
    starts, device = _starts(work, chosen), _torch_device()
    attack = torch_attack.attacks(work.net, work.params, work.x, work.y, starts, chosen.iterations, device)
    count = min(THEIRS, len(work.x))
    return lambda: sum(attack(number) for number in range(count)) / count


def _starts(work: Work, chosen: Settings) -> np.ndarray:
    """Where our attacks start [images, ...shape]."""
    keys = [(int(i), 0, 0) for i in work.observation.ids]
    return inits.starts(chosen.init, work.observation, work.y[:, None], keys, None, "float32")[:, 0]


def _torch_device() -> str:
    return "cuda" if jax.default_backend() == "gpu" else "cpu"


def _quality(work: Work, ours: Reconstruction, theirs: list[breaching_attack.Found]) -> dict[str, object]:
    """How near both sides came to the images that both attacked, and after how many gradients."""
    real = work.x[: len(theirs)].astype(np.float64)
    images = {"ours": ours.inputs[: len(theirs), 0].astype(np.float64), "theirs": np.stack([f.image for f in theirs])}
    found: dict[str, object] = {}
    for side, image in images.items():
        found[f"mse_{side}"] = float(np.square(image - real).mean())
        found[f"ssim_{side}"] = fmean(ssim(a, b) for a, b in zip(image, real, strict=True))
    found["evaluations_ours"] = float(ours.evaluations[: len(theirs)].mean())
    found["evaluations_theirs"] = fmean(f.evaluations for f in theirs)
    return found
