"""Our built-in networks as torch modules, for the peers that use torch."""

from __future__ import annotations

from typing import Any

from fedveil.models.layers import (
    Activation,
    Conv,
    Dense,
    Flatten,
    GroupNorm,
    Layer,
    MeanOverPositions,
    Pool,
    Residual,
    Shape,
)
from fedveil.models.net import Net


def sequential(net: Net) -> Any:
    """The same network in torch, with fresh weights. It knows only the layers of the benchmarked models."""
    import torch

    return _row(torch, net.layers, net.input_shape)


def _row(torch: Any, layers: tuple[Layer, ...], shape: Shape) -> Any:
    made = []
    for layer in layers:
        made.append(_module(torch, layer, shape))
        shape = layer.out_shape(shape)
    return torch.nn.Sequential(*made)


def _module(torch: Any, layer: Layer, shape: Shape) -> Any:
    nn = torch.nn
    match layer:
        case Conv():
            return nn.Conv2d(shape[-1], layer.channels, layer.kernel, layer.stride, layer.padding, bias=layer.bias)
        case Dense():
            return nn.Linear(shape[0], layer.units, bias=layer.bias)
        case Pool():
            return nn.MaxPool2d(2) if layer.kind == "max" else nn.AvgPool2d(2)
        case Activation():
            return {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}[layer.kind]()
        case Flatten():
            return nn.Flatten()
        case GroupNorm():
            return nn.GroupNorm(layer.groups, shape[-1])
        case MeanOverPositions():
            return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        case Residual():
            return _residual(torch, _row(torch, layer.body, shape))
    raise TypeError(f"no torch module is known for {type(layer).__name__}")


def _residual(torch: Any, body: Any) -> Any:
    """`body(x) + shortcut(x)`, with the shortcut of our `Residual`."""

    class Shortcut(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Any) -> Any:
            y = self.body(x)
            stride = -(-x.shape[2] // y.shape[2])
            short = x[:, :, ::stride, ::stride]
            return y + torch.nn.functional.pad(short, (0, 0, 0, 0, 0, y.shape[1] - short.shape[1]))

    return Shortcut()
