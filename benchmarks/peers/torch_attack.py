"""Gradient matching as public code does it: torch's L-BFGS with its defaults, one image after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.peers import torch_nets
from fedveil.models.layers import Conv, Dense, Params, Shape
from fedveil.models.net import Net


def missing() -> str:
    """The name of the first package that is not installed, or the empty string."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return str(error.name or error)
    return ""


def attacks(
    net: Net, params: Params, x: np.ndarray, y: np.ndarray, starts: np.ndarray, iterations: int, device: str = "cpu"
) -> Callable[[int], float]:
    """A function that attacks the image of a given number and returns the seconds it took.

    x, starts [images, ...shape], channels last; y [images]. The label is given, and the victim's gradient is computed
    before the clock starts. Torch uses one thread or all, whichever is faster here. `device`: `cpu` or `cuda`.
    The function's attribute `found` is the last reconstruction [...shape].
    """
    import torch

    model = sequential(net, params).to(device)
    weights = list(model.parameters())

    def attack(number: int, budget: int = iterations) -> float:
        label = torch.tensor([int(y[number])], device=device)
        image = channels_first(torch, x[number]).to(device)
        seen = [g.detach() for g in gradients(torch, model, weights, image, label)]
        dummy = channels_first(torch, starts[number]).to(device).requires_grad_()
        optimizer = torch.optim.LBFGS([dummy])

        def closure() -> Any:
            optimizer.zero_grad()
            found = gradients(torch, model, weights, dummy, label, create_graph=True)
            distance = sum(((a - b) ** 2).sum() for a, b in zip(found, seen, strict=True))
            distance.backward()
            return distance

        started = time.perf_counter()
        for _ in range(budget):
            optimizer.step(closure)
        if device == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - started
        attack.found = channels_last(dummy)  # type: ignore[attr-defined]
        return taken

    choose_threads(torch, attack)
    return attack


def sequential(net: Net, params: Params) -> Any:
    """The same network in torch, with the same weights."""
    import torch

    model = torch_nets.sequential(net)
    modules = iter(m for m in model if any(True for _ in m.parameters()))
    shape: Shape = net.input_shape
    image = shape
    for layer in net.layers:
        image = shape if len(shape) == 3 else image
        if isinstance(layer, Conv | Dense):
            module, own = (
                next(modules),
                {key: np.asarray(value, np.float32) for key, value in params[layer.name].items()},
            )
            w = own["w"]
            if isinstance(layer, Conv):
                w = w.transpose(3, 2, 0, 1)
            else:  # torch flattens an image with its channels first
                features = w.shape[0]
                if features == int(np.prod(image)):
                    w = w.reshape(*image, -1).transpose(2, 0, 1, 3).reshape(features, -1)
                w = w.T
            with torch.no_grad():
                module.weight.copy_(torch.tensor(w.copy()))
                if "b" in own:
                    module.bias.copy_(torch.tensor(own["b"]))
        shape = layer.out_shape(shape)
    return model


def gradients(torch: Any, model: Any, weights: Any, x: Any, label: Any, create_graph: bool = False) -> Any:
    """The gradient of the loss with respect to the weights."""
    loss = torch.nn.functional.cross_entropy(model(x), label)
    return torch.autograd.grad(loss, weights, create_graph=create_graph)


def channels_first(torch: Any, image: np.ndarray) -> Any:
    """One image [height, width, channels] as a batch of one, channels first."""
    return torch.tensor(np.moveaxis(image.astype(np.float32), -1, 0)[None].copy())


def channels_last(image: Any) -> np.ndarray:
    """The image [height, width, channels] of a batch of one."""
    return np.moveaxis(image.detach().cpu().numpy()[0], 0, -1)


def choose_threads(torch: Any, attack: Callable[[int, int], float], budget: int = 1) -> None:
    """Sets torch to one thread or to all it has now, whichever attacks image 0 faster within `budget` iterations."""
    every = torch.get_num_threads()
    seconds = {}
    for threads in (every, 1):
        torch.set_num_threads(threads)
        attack(0, budget)
        seconds[threads] = attack(0, budget)
    torch.set_num_threads(min(seconds, key=lambda threads: seconds[threads]))


@contextmanager
def threads_kept() -> Iterator[None]:
    """Restores torch's number of threads at the end: after a choice of one thread the next could only be one."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
