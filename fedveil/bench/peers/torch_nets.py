"""Built-in networks as torch modules, for the peers that are written in torch."""

from __future__ import annotations

from typing import Any

from fedveil.models.layers import Activation, Conv, Dense, Flatten, Layer, Pool, Shape
from fedveil.models.net import Net


def sequential(net: Net) -> Any:
    """The same network in torch. Only the layers that the benchmarked models have."""
    import torch

    made, shape = [], net.input_shape
    for layer in net.layers:
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
    raise TypeError(f"no torch module is known for {type(layer).__name__}")
