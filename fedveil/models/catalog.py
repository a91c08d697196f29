"""The built-in models: the section `[model]`, a table of names and summaries, and `build`, which makes the networks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field

from fedveil.core.errors import ConfigError, unknown_name
from fedveil.core.validation import Section
from fedveil.models.layers import (
    Activation,
    Conv,
    Dense,
    Dropout,
    Flatten,
    GroupNorm,
    Layer,
    MeanOverPositions,
    Pool,
    Residual,
    Shape,
)
from fedveil.models.net import Model, Net

ACTIVATION_NAMES = ("relu", "sigmoid", "tanh", "leaky-relu")
INITS = ("default", "uniform-0.5")
POOLINGS = ("none", "max", "mean")


class ModelConfig(Section):
    """`[model]`: the network."""

    name: str | None = Field(
        None, description="network (cnn for images, mlp for attributes), or your own: FILE.safetensors, or MODULE:NAME"
    )
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


def is_own(name: object) -> bool:
    """Whether a name is that of a file or of Python code, and not in the table."""
    return isinstance(name, str) and (name.endswith(".safetensors") or ":" in name)


def digest_of_own(name: str) -> str:
    """The digest of the file that `name` leads to: the network, or the source of the code."""
    if not name.endswith(".safetensors"):
        from fedveil.models.code import digest_of

        return digest_of(name)
    try:
        return hashlib.sha256(Path(name).expanduser().read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError("model.name", name, f"cannot be read ({error.strerror})") from None


def build_any(name: str, shape: Shape, classes: int, given: ModelConfig) -> Model:
    """The network called `name`: of the table, of a file, or of Python code."""
    if not is_own(name):
        return build(name, shape, classes, given)
    if name.endswith(".safetensors"):
        from fedveil.models.kept import read_network

        return read_network(Path(name).expanduser())
    from fedveil.models.code import load_code

    return load_code(name)


def build(name: str, shape: Shape, classes: int, given: ModelConfig | None = None) -> Net:
    """The network called `name` for examples of `shape`, with one logit per class. Unset keys take the model's default."""
    if name not in MODELS:
        raise unknown_name("model.name", name, MODELS)
    info, given = MODELS[name], given or ModelConfig()
    if info.images and len(shape) != 3:
        raise ConfigError("model.name", name, f"takes images; examples have shape {shape}: use 'mlp' or 'logistic'")
    defaults = {"activation": given.activation or info.activation, "pooling": given.pooling or info.pooling}
    layers = _BUILDERS[name](shape, classes, given.model_copy(update=defaults))
    _check_sizes(name, layers, shape)
    return Net(layers, shape, given.init or "default")


def _check_sizes(name: str, layers: tuple[Layer, ...], shape: Shape) -> None:
    current = shape
    for layer in layers:
        current = layer.out_shape(current)
        if min(current) < 1:
            raise ConfigError("model.name", name, f"needs larger images than {shape}: nothing is left after pooling")


def _head(first: Layer, classes: int, chosen: ModelConfig, *, bias: bool = True) -> tuple[Layer, ...]:
    """The layer that makes one row of features, dropout where asked, and the last dense layer."""
    drop: tuple[Layer, ...] = (Dropout(chosen.dropout),) if chosen.dropout else ()
    return (first, *drop, Dense("dense", classes, bias))


def _cnn(shape: Shape, classes: int, chosen: ModelConfig) -> tuple[Layer, ...]:
    act = Activation(chosen.activation or "relu")
    # The authors' convolutions are unpadded; images under 10 pixels would vanish, so those are padded.
    padding = 1 if min(shape[:2]) < 10 else 0
    pool: tuple[Layer, ...] = () if chosen.pooling == "none" else (Pool(chosen.pooling or "max"),)
    first = Conv("conv1", 32, 3, padding=padding, bias=False)
    second = Conv("conv2", 64, 3, padding=padding, bias=False)
    return (first, act, *pool, second, act, *pool, *_head(Flatten(), classes, chosen, bias=False))


def _lenet(strides: tuple[int, ...], channels: int, classes: int, chosen: ModelConfig) -> tuple[Layer, ...]:
    """5×5 convolutions, padding 2. With pooling, a stride of 2 becomes a stride of 1 and a pooling layer."""
    act = Activation(chosen.activation or "sigmoid")
    pooled = chosen.pooling not in (None, "none")
    layers: list[Layer] = []
    for number, stride in enumerate(strides, start=1):
        layers += [Conv(f"conv{number}", channels, 5, 1 if pooled else stride, padding=2), act]
        if pooled and stride == 2:
            layers.append(Pool(chosen.pooling or "max"))
    return (*layers, *_head(Flatten(), classes, chosen))


def _mlp(hidden: list[int], shape: Shape, classes: int, chosen: ModelConfig) -> tuple[Layer, ...]:
    """Dense layers of these widths; without any, logistic regression."""
    layers: list[Layer] = [Flatten()] if len(shape) > 1 else []
    for number, units in enumerate(hidden, start=1):
        layers += [Dense(f"hidden{number}", units), Activation(chosen.activation or "relu")]
        if chosen.dropout:
            layers.append(Dropout(chosen.dropout, number))
    return (*layers, Dense("dense", classes))


def _resnet20(shape: Shape, classes: int, chosen: ModelConfig) -> tuple[Layer, ...]:
    act = Activation(chosen.activation or "relu")
    layers: list[Layer] = [Conv("conv0", 16, 3, padding=1, bias=False), GroupNorm("norm0", 8), act]
    channels = 16
    for stage, width in enumerate((16, 32, 64), start=1):
        for block in (1, 2, 3):
            tag = f"{stage}.{block}"
            stride = 2 if width != channels else 1
            body: tuple[Layer, ...] = (
                Conv(f"conv{tag}a", width, 3, stride, padding=1, bias=False),
                GroupNorm(f"norm{tag}a", 8),
                act,
                Conv(f"conv{tag}b", width, 3, padding=1, bias=False),
                GroupNorm(f"norm{tag}b", 8),
            )
            layers += [Residual(body), act]
            channels = width
    return (*layers, *_head(MeanOverPositions(), classes, chosen))


_BUILDERS: dict[str, Callable[[Shape, int, ModelConfig], tuple[Layer, ...]]] = {
    "cnn": _cnn,
    "lenet-cpl": lambda shape, classes, chosen: _lenet(
        (2, 2, 1, 1), chosen.channels or (12 if max(shape[:2]) < 64 else 256), classes, chosen
    ),
    "lenet-dlg": lambda shape, classes, chosen: _lenet((2, 2, 1), chosen.channels or 12, classes, chosen),
    "dpfl-net": lambda shape, classes, chosen: _lenet((2, 2, 1) if shape[-1] == 3 else (2, 2), 12, classes, chosen),
    "mlp": lambda shape, classes, chosen: _mlp(chosen.hidden, shape, classes, chosen),
    "logistic": partial(_mlp, []),
    "resnet20": _resnet20,
}
