"""The package `breaching` on the same victims: its attacks with its own configurations, one image after another.

| our attack | configuration of `breaching` |
|---|---|
| `inverting` | `invertinggradients`: cosine distance, signed Adam, total variation; images of three colours only |
| `dlg` | `deepleakage`: squared L2 distance, L-BFGS, label optimised jointly |
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.peers import torch_attack
from fedveil.models.layers import Params, Shape
from fedveil.models.net import Net

CONFIGS = {"inverting": "invertinggradients", "dlg": "deepleakage"}


@dataclass(frozen=True)
class Found:
    """The result of one attack."""

    image: np.ndarray  # [...shape], channels last, in [0, 1]
    seconds: float
    evaluations: int  # how often the gradient of the network was computed


def missing() -> str:
    """What is not installed, or the empty string."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import breaching  # noqa: F401
    except ImportError as error:
        return str(error.name or error)
    except RuntimeError as error:  # raised by a torchvision that was built for another torch
        return f"a torchvision built for this torch ({error})"
    return ""


def attacks(
    name: str,
    net: Net,
    params: Params,
    x: np.ndarray,
    y: np.ndarray,
    starts: np.ndarray,
    iterations: int,
    device: str = "cpu",
) -> Callable[[int], Found]:
    """A function that attacks the image of a given number with `breaching`'s counterpart of our attack `name`.

    x, starts [images, ...shape], channels last; y [images]. The attack infers or optimises the label; the victim's
    gradient is computed before the clock starts. Torch uses one thread or all, whichever is faster here. `device`: `cpu`
    or `cuda`.
    """
    import breaching
    import torch

    model = torch_attack.sequential(net, params).to(device)
    weights = list(model.parameters())
    payload = [{"parameters": weights, "buffers": None, "metadata": _metadata(net.input_shape, len(weights[-1]))}]
    evaluations = 0

    def loss(outputs: Any, labels: Any) -> Any:
        nonlocal evaluations
        evaluations += 1
        return torch.nn.functional.cross_entropy(outputs, labels)

    def attack(number: int, budget: int = iterations) -> Found:
        nonlocal evaluations
        label = torch.tensor([int(y[number])], device=device)
        image = torch_attack.channels_first(torch, x[number]).to(device)
        seen = [g.detach() for g in torch_attack.gradients(torch, model, weights, image, label)]
        setup = {"dtype": torch.float, "device": torch.device(device)}
        attacker = breaching.attacks.prepare_attack(model, loss, _config(name, budget), setup)
        start = torch_attack.channels_first(torch, starts[number])
        torch.manual_seed(number)  # `deepleakage` draws the start of the label
        evaluations, started = 0, time.perf_counter()
        found, _ = attacker.reconstruct(payload, _shared(seen), {}, initial_data=start)
        if device == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - started
        return Found(np.clip(torch_attack.channels_last(found["data"]), 0, 1), taken, evaluations)

    # A tenth of the iterations is enough to tell which number of threads is faster.
    torch_attack.choose_threads(torch, lambda number, budget: attack(number, budget).seconds, max(1, iterations // 10))
    return attack


def _config(name: str, iterations: int) -> Any:
    """The configuration of `breaching` with our number of iterations. Loading it prints a line, which is no JSON."""
    import breaching

    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about versions of Hydra
        return breaching.get_attack_config(CONFIGS[name], overrides=[f"optim.max_iterations={iterations}"])


def _metadata(shape: Shape, classes: int) -> Any:
    """What the server knows about the data: images with values in [0, 1]."""
    from omegaconf import OmegaConf

    height, width, colours = shape
    known = {"modality": "vision", "task": "classification", "shape": [colours, height, width], "classes": classes}
    return OmegaConf.create({**known, "mean": [0.0] * colours, "std": [1.0] * colours})


def _shared(gradients: list[Any]) -> list[dict[str, Any]]:
    """What a client sends: the gradient of one example after one step, without its label."""
    about = {"num_data_points": 1, "labels": None, "local_hyperparams": None}
    return [{"gradients": gradients, "buffers": None, "metadata": about}]
