"""Opacus on the work of `bench round`: the same layers, batch size, layerwise clip and noise, one client after another."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np

from benchmarks.peers.torch_nets import sequential
from benchmarks.peers.torch_round import tensors
from fedveil.models.net import Net


def missing() -> str:
    """What is not installed, or the empty string."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import opacus  # noqa: F401
            import torch  # noqa: F401
    except ImportError as error:
        return str(error.name or error)
    return ""


def private_steps(
    net: Net, x: np.ndarray, y: np.ndarray, batch: int, clip: float, noise: float, lr: float, device: str = "cpu"
) -> Callable[[int], float]:
    """A function that makes so many private steps and says how many seconds they took; its `model` is what it trains.

    x: [count, ...] as we hold it.
    """
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPPerLayerOptimizer

    inputs, labels = tensors(torch, x, y, device)
    model = GradSampleModule(sequential(net).to(device))
    plain = torch.optim.SGD(model.parameters(), lr=lr)
    bounds = [clip] * sum(1 for _ in model.parameters())
    optimizer = DPPerLayerOptimizer(plain, noise_multiplier=noise, max_grad_norm=bounds, expected_batch_size=batch)
    loss_of = torch.nn.CrossEntropyLoss()
    starts = range(0, len(y) - batch + 1, batch)

    def steps(count: int) -> float:
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hooks on inputs that need no gradient
            for number in range(count):
                at = starts[number % len(starts)]
                optimizer.zero_grad()
                loss_of(model(inputs[at : at + batch]), labels[at : at + batch]).backward()
                optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    steps.model = model  # type: ignore[attr-defined]
    return steps
