"""Private steps in plain PyTorch, in two common ways: a loop over examples, and `vmap` over clients and examples.

Both clip each layer (its weights and bias together) of each example's gradient and add noise to the sum, as Fed-CDP does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers.private_step import PrivateStep


def tensors(torch: Any, x: np.ndarray, y: np.ndarray, device: str) -> tuple[Any, Any]:
    """Examples as torch tensors on a device; images [count, height, width, channels] get their channels first."""
    images = torch.tensor(np.moveaxis(x, -1, 1).copy() if x.ndim == 4 else x)
    return images.to(device), torch.tensor(y.astype(np.int64)).to(device)


def loop_steps(
    model: Any, x: np.ndarray, y: np.ndarray, step: PrivateStep, device: str = "cpu"
) -> Callable[[int], float]:
    """A function that makes `count` steps of one client and returns the seconds they took.

    Each example's gradient takes one backward pass. The steps change `model`.
    """
    import torch

    inputs, labels = tensors(torch, x, y, device)
    model = model.to(device)
    layers = [list(m.parameters()) for m in model.modules() if list(m.parameters(recurse=False))]
    starts = range(0, len(y) - step.batch + 1, step.batch)

    def one(at: int) -> None:
        sums = [[torch.zeros_like(p) for p in layer] for layer in layers]
        for example in range(at, at + step.batch):
            loss = torch.nn.functional.cross_entropy(model(inputs[example][None]), labels[example][None])
            found = iter(torch.autograd.grad(loss, [p for layer in layers for p in layer]))
            for total, layer in zip(sums, layers, strict=True):
                each = [next(found) for _ in layer]
                norm = torch.sqrt(sum((g * g).sum() for g in each))
                scale = torch.clamp(step.clip / (norm + 1e-30), max=1.0)
                for t, g in zip(total, each, strict=True):
                    t += g * scale
        with torch.no_grad():
            for total, layer in zip(sums, layers, strict=True):
                for t, p in zip(total, layer, strict=True):
                    p -= step.lr * (t + step.noise * step.clip * torch.randn_like(t)) / step.batch

    def steps(count: int) -> float:
        started = time.perf_counter()
        for number in range(count):
            one(starts[number % len(starts)])
        _wait(torch, device)
        return time.perf_counter() - started

    return steps


class VmapSteps:
    """Steps of all clients at once: `vmap` over clients, and over the examples of each.

    `params` are the parameters of all clients, {name: [clients, ...]}.
    """

    def __init__(
        self, model: Any, x: np.ndarray, y: np.ndarray, clients: int, step: PrivateStep, device: str = "cpu"
    ) -> None:
        import torch

        self.torch, self.clients, self.step, self.device = torch, clients, step, device
        self.inputs, self.labels = tensors(torch, x, y, device)
        model = model.to(device)
        own = {name: p.detach() for name, p in model.named_parameters()}
        self.params = {name: p.repeat(clients, *[1] * p.ndim) for name, p in own.items()}
        self.layers: dict[str, list[str]] = {}  # parameter names by layer: weights and bias are clipped together
        for name in own:
            self.layers.setdefault(name.rpartition(".")[0], []).append(name)
        self.gradients = _example_gradients(torch, model)

    def __call__(self, count: int) -> float:
        """Makes `count` steps of every client and returns the seconds they took."""
        examples = self.clients * self.step.batch
        batches = len(self.labels) // examples
        started = time.perf_counter()
        for number in range(count):
            self._one(slice(examples * (number % batches), examples * (number % batches + 1)))
        _wait(self.torch, self.device)
        return time.perf_counter() - started

    def _one(self, rows: slice) -> None:
        step, shape = self.step, (self.clients, self.step.batch)
        each = self.gradients(self.params, self.inputs[rows].unflatten(0, shape), self.labels[rows].unflatten(0, shape))
        for names in self.layers.values():
            squares = sum(each[n].flatten(2).square().sum(2) for n in names)
            scale = self.torch.clamp(step.clip / (self.torch.sqrt(squares) + 1e-30), max=1.0)
            for n in names:
                total = self.torch.einsum("kb...,kb->k...", each[n], scale)
                noisy = total + step.noise * step.clip * self.torch.randn_like(total)
                self.params[n] = self.params[n] - step.lr * noisy / step.batch


def _example_gradients(torch: Any, model: Any) -> Callable[..., Any]:
    """The gradient of each example at its client's parameters: {name: [clients, batch, ...]}."""
    from torch.func import functional_call, grad, vmap

    def loss(params: Any, image: Any, label: Any) -> Any:
        return torch.nn.functional.cross_entropy(functional_call(model, params, (image[None],)), label[None])

    return vmap(vmap(grad(loss), in_dims=(None, 0, 0)))


def _wait(torch: Any, device: str) -> None:
    """Waits until the device has finished: CUDA calls return before their work is done."""
    if device == "cuda":
        torch.cuda.synchronize()
