"""The built-in models: the section `[model]`, and a table of names, summaries and keys. `build.py` makes the networks.

Cheap to import: no JAX.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from fedveil.core.validation import Section

ACTIVATION_NAMES = ("relu", "sigmoid", "tanh", "leaky-relu")
INITS = ("default", "uniform-0.5")
POOLINGS = ("none", "max", "mean")


class ModelConfig(Section):
    """`[model]`: the network."""

    name: str | None = Field(None, description="network (cnn for images, mlp for attributes)")
    activation: str | None = Field(None, description="relu, sigmoid, tanh or leaky-relu (by model)")
    init: str | None = Field(None, description="default (Glorot) or uniform-0.5 (default; fedveil attack: see there)")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of features dropped in training")
    hidden: list[int] = Field([64, 32], min_length=1, max_length=8, description="widths of the MLP's hidden layers")
    pooling: str | None = Field(None, description="none, max or mean (by model)")
    channels: int | None = Field(None, ge=1, le=4096, description="channels of the LeNets (12; 256 from 64 px on)")


_COMMON = ("activation", "init", "dropout")


@dataclass(frozen=True)
class ModelInfo:
    """One model: what it is, which keys of `[model]` it reads, whether it needs images."""

    name: str
    summary: str
    keys: tuple[str, ...]
    images: bool
    activation: str = "relu"
    pooling: str = "none"


MODELS: dict[str, ModelInfo] = {
    info.name: info
    for info in (
        ModelInfo(
            "cnn",
            "fed-cdp's network: conv 3×3×32, pool, conv 3×3×64, pool, dense; no biases, three layers",
            (*_COMMON, "pooling"),
            images=True,
            pooling="max",
        ),
        ModelInfo(
            "lenet-cpl",
            "cpl's LeNet: four 5×5 convolutions of 12 channels (256 from 64 pixels on), then dense",
            (*_COMMON, "pooling", "channels"),
            images=True,
            activation="sigmoid",
        ),
        ModelInfo(
            "lenet-dlg",
            "DLG's LeNet: three 5×5 convolutions of 12 channels, then dense",
            (*_COMMON, "pooling", "channels"),
            images=True,
            activation="sigmoid",
        ),
        ModelInfo(
            "dpfl-net",
            "dpfl's network: two 5×5 convolutions (three for colour images), then dense",
            (*_COMMON, "pooling"),
            images=True,
            activation="sigmoid",
        ),
        ModelInfo(
            "mlp", "fully connected; `hidden` gives the widths of the hidden layers", (*_COMMON, "hidden"), images=False
        ),
        ModelInfo("logistic", "multinomial logistic regression", ("init",), images=False),
        ModelInfo(
            "resnet20",
            "ResNet-20 with group normalisation (batch normalisation would mix examples)",
            ("activation", "init", "dropout"),
            images=True,
        ),
    )
}
