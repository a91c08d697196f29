"""The built-in models: names, summaries and keys, and `build`, which makes the networks of the four papers."""

from __future__ import annotations

from dataclasses import dataclass

from fedveil.core.errors import ConfigError, unknown_name
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
from fedveil.models.net import Net

ACTIVATION_NAMES = ("relu", "sigmoid", "tanh", "leaky-relu")
INITS = ("default", "uniform-0.5")
POOLINGS = ("none", "max", "mean")

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


@dataclass(frozen=True)
class Choices:
    """The keys of `[model]`; None takes the model's default."""

    activation: str | None = None
    init: str = "default"
    dropout: float = 0.0
    hidden: tuple[int, ...] = (64, 32)
    pooling: str | None = None
    channels: int | None = None


def build(name: str, shape: Shape, classes: int, choices: Choices | None = None) -> Net:
    """The network called `name` for examples of `shape`, with one logit per class."""
    if name not in MODELS:
        raise unknown_name("model.name", name, MODELS)
    info, choices = MODELS[name], choices or Choices()
    if info.images and len(shape) != 3:
        raise ConfigError("model.name", name, f"takes images; examples have shape {shape}: use 'mlp' or 'logistic'")
    chosen = Choices(
        activation=choices.activation or info.activation,
        init=choices.init,
        dropout=choices.dropout,
        hidden=choices.hidden,
        pooling=choices.pooling or info.pooling,
        channels=choices.channels,
    )
    layers = _BUILDERS[name](shape, classes, chosen)
    _check_sizes(name, layers, shape)
    return Net(layers, shape, chosen.init)


def _check_sizes(name: str, layers: tuple[Layer, ...], shape: Shape) -> None:
    current = shape
    for layer in layers:
        current = layer.out_shape(current)
        if min(current) < 1:
            raise ConfigError("model.name", name, f"needs larger images than {shape}: nothing is left after pooling")


def _head(classes: int, choices: Choices, *, bias: bool = True) -> tuple[Layer, ...]:
    """Flatten, dropout where asked, and the last dense layer."""
    drop: tuple[Layer, ...] = (Dropout(choices.dropout),) if choices.dropout else ()
    return (Flatten(), *drop, Dense("dense", classes, bias))


def _cnn(shape: Shape, classes: int, choices: Choices) -> tuple[Layer, ...]:
    act = Activation(choices.activation or "relu")
    # The authors' convolutions are unpadded; images under 10 pixels would vanish, so those are padded.
    padding = 1 if min(shape[:2]) < 10 else 0
    pool: tuple[Layer, ...] = () if choices.pooling == "none" else (Pool(choices.pooling or "max"),)
    first = Conv("conv1", 32, 3, padding=padding, bias=False)
    second = Conv("conv2", 64, 3, padding=padding, bias=False)
    return (first, act, *pool, second, act, *pool, *_head(classes, choices, bias=False))


def _lenet(strides: tuple[int, ...], channels: int, classes: int, choices: Choices) -> tuple[Layer, ...]:
    """5×5 convolutions, padding 2. With pooling, a stride of 2 becomes a stride of 1 and a pooling layer."""
    act = Activation(choices.activation or "sigmoid")
    pooled = choices.pooling not in (None, "none")
    layers: list[Layer] = []
    for number, stride in enumerate(strides, start=1):
        layers += [Conv(f"conv{number}", channels, 5, 1 if pooled else stride, padding=2), act]
        if pooled and stride == 2:
            layers.append(Pool(choices.pooling or "max"))
    return (*layers, *_head(classes, choices))


def _lenet_cpl(shape: Shape, classes: int, choices: Choices) -> tuple[Layer, ...]:
    channels = choices.channels or (12 if max(shape[:2]) < 64 else 256)
    return _lenet((2, 2, 1, 1), channels, classes, choices)


def _lenet_dlg(shape: Shape, classes: int, choices: Choices) -> tuple[Layer, ...]:
    return _lenet((2, 2, 1), choices.channels or 12, classes, choices)


def _dpfl_net(shape: Shape, classes: int, choices: Choices) -> tuple[Layer, ...]:
    return _lenet((2, 2, 1) if shape[-1] == 3 else (2, 2), 12, classes, choices)


def _flat(shape: Shape) -> tuple[Layer, ...]:
    return (Flatten(),) if len(shape) > 1 else ()


def _mlp(shape: Shape, classes: int, choices: Choices) -> tuple[Layer, ...]:
    layers: list[Layer] = list(_flat(shape))
    for number, units in enumerate(choices.hidden, start=1):
        layers += [Dense(f"hidden{number}", units), Activation(choices.activation or "relu")]
        if choices.dropout:
            layers.append(Dropout(choices.dropout, number))
    return (*layers, Dense("dense", classes))


def _logistic(shape: Shape, classes: int, choices: Choices) -> tuple[Layer, ...]:
    return (*_flat(shape), Dense("dense", classes))


def _resnet20(shape: Shape, classes: int, choices: Choices) -> tuple[Layer, ...]:
    act = Activation(choices.activation or "relu")
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
    drop: tuple[Layer, ...] = (Dropout(choices.dropout),) if choices.dropout else ()
    return (*layers, MeanOverPositions(), *drop, Dense("dense", classes))


_BUILDERS = {
    "cnn": _cnn,
    "lenet-cpl": _lenet_cpl,
    "lenet-dlg": _lenet_dlg,
    "dpfl-net": _dpfl_net,
    "mlp": _mlp,
    "logistic": _logistic,
    "resnet20": _resnet20,
}
