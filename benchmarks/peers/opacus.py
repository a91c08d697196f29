"""Opacus on the work of `bench round`: the same layers, batch size, layerwise clip and noise, one client after another."""

from __future__ import annotations

import time
import warnings

import numpy as np

from benchmarks.peers.private_step import PrivateStep
from benchmarks.peers.torch_nets import sequential
from benchmarks.peers.torch_round import tensors
from fedveil.models.net import Net


def missing() -> str:
    """The name of the first package that is not installed, or the empty string."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import opacus  # noqa: F401
            import torch  # noqa: F401
    except ImportError as error:
        return str(error.name or error)
    return ""


class OpacusSteps:
    """Private steps of one client by Opacus, which train `model`."""

    def __init__(self, net: Net, x: np.ndarray, y: np.ndarray, step: PrivateStep, device: str = "cpu") -> None:
        """x: [count, ...shape] as our models take it."""
        import torch
        from opacus import GradSampleModule
        from opacus.optimizers import DPPerLayerOptimizer

        self.torch, self.batch, self.device = torch, step.batch, device
        self.inputs, self.labels = tensors(torch, x, y, device)
        self.model = GradSampleModule(sequential(net).to(device))
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = DPPerLayerOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=step.lr),
            noise_multiplier=step.noise,
            max_grad_norm=[step.clip] * sum(1 for _ in self.model.parameters()),
            expected_batch_size=step.batch,
        )

    def __call__(self, count: int) -> float:
        """Makes `count` steps and returns the seconds they took."""
        starts = range(0, len(self.labels) - self.batch + 1, self.batch)
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of hooks on inputs that need no gradient
            for number in range(count):
                at = starts[number % len(starts)]
                self.optimizer.zero_grad()
                logits = self.model(self.inputs[at : at + self.batch])
                self.loss(logits, self.labels[at : at + self.batch]).backward()
                self.optimizer.step()
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter() - started
