"""Private steps written in plain PyTorch, the two ways that come to mind: a loop over examples, and `vmap` over clients.

Both clip each layer (its weights and bias together) of each example's gradient and add noise to the sum, as Fed-CDP does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np


def tensors(torch: Any, x: np.ndarray, y: np.ndarray, device: str) -> tuple[Any, Any]:
    """Examples as torch wants them: images channels first."""
    images = torch.tensor(np.moveaxis(x, -1, 1).copy() if x.ndim == 4 else x)
    return images.to(device), torch.tensor(y.astype(np.int64)).to(device)


def loop_steps(
    model: Any, x: np.ndarray, y: np.ndarray, batch: int, clip: float, noise: float, lr: float, device: str = "cpu"
) -> Callable[[int], float]:
    """A function that makes so many steps of one client, each example's gradient by a backward pass of its own; it changes
    the model."""
    import torch

    inputs, labels = tensors(torch, x, y, device)
    model = model.to(device)
    layers = [list(m.parameters()) for m in model.modules() if list(m.parameters(recurse=False))]
    starts = range(0, len(y) - batch + 1, batch)

    def one(at: int) -> None:
        sums = [[torch.zeros_like(p) for p in layer] for layer in layers]
        for example in range(at, at + batch):
            loss = torch.nn.functional.cross_entropy(model(inputs[example][None]), labels[example][None])
            found = iter(torch.autograd.grad(loss, [p for layer in layers for p in layer]))
            for total, layer in zip(sums, layers, strict=True):
                each = [next(found) for _ in layer]
                norm = torch.sqrt(sum((g * g).sum() for g in each))
                scale = torch.clamp(clip / (norm + 1e-30), max=1.0)
                for t, g in zip(total, each, strict=True):
                    t += g * scale
        with torch.no_grad():
            for total, layer in zip(sums, layers, strict=True):
                for t, p in zip(total, layer, strict=True):
                    p -= lr * (t + noise * clip * torch.randn_like(t)) / batch

    def steps(count: int) -> float:
        started = time.perf_counter()
        for number in range(count):
            one(starts[number % len(starts)])
        _wait(torch, device)
        return time.perf_counter() - started

    return steps


def vmap_steps(
    model: Any,
    x: np.ndarray,
    y: np.ndarray,
    clients: int,
    batch: int,
    clip: float,
    noise: float,
    lr: float,
    device: str = "cpu",
) -> Callable[[int], float]:
    """A function that makes so many steps of all clients at once: `vmap` over clients, and over examples within. Its
    `params` are all clients' parameters."""
    import torch
    from torch.func import functional_call, grad, vmap

    inputs, labels = tensors(torch, x, y, device)
    model = model.to(device)
    own = {name: p.detach() for name, p in model.named_parameters()}
    params = {name: p.repeat(clients, *[1] * p.ndim) for name, p in own.items()}
    layers: dict[str, list[str]] = {}
    for name in own:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    rounds = len(y) // (clients * batch)

    def loss(p: Any, image: Any, label: Any) -> Any:
        return torch.nn.functional.cross_entropy(functional_call(model, p, (image[None],)), label[None])

    gradients = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))

    def one(at: int) -> None:
        x_now = inputs[at : at + clients * batch].unflatten(0, (clients, batch))
        y_now = labels[at : at + clients * batch].unflatten(0, (clients, batch))
        each = gradients(params, x_now, y_now)
        for names in layers.values():
            squares = sum(each[n].flatten(2).square().sum(2) for n in names)
            scale = torch.clamp(clip / (torch.sqrt(squares) + 1e-30), max=1.0)
            for n in names:
                total = torch.einsum("kb...,kb->k...", each[n], scale)
                params[n] = params[n] - lr * (total + noise * clip * torch.randn_like(total)) / batch

    def steps(count: int) -> float:
        started = time.perf_counter()
        for number in range(count):
            one(clients * batch * (number % rounds))
        _wait(torch, device)
        return time.perf_counter() - started

    steps.params = params  # type: ignore[attr-defined]
    return steps


def _wait(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
