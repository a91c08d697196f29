"""Gradients from elsewhere: a file with a model's parameters, and the gradients or the later weights that were observed.

A `.safetensors` or `.npz` file holds arrays named `params/LAYER/w`, `params/LAYER/b`, `gradients/LAYER/w` and
`gradients/LAYER/b`, in the layout of the built-in models: dense weights [inputs, outputs], convolutions
[height, width, channels in, channels out], images channels last. Gradients may have a leading axis over several attacks.

Instead of gradients it may hold `after/LAYER/w` and `after/LAYER/b`, the weights after local training. With the learning
rate η, ∇w = (w(t) − w(t+1))/η (cpl, Algorithm 1 lines 4 to 6, where the sign is missing).
"""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from fedveil.attacks.gradients import from_update
from fedveil.core.errors import ConfigError, DataError
from fedveil.models.files import check_shape, read_arrays, tree_of
from fedveil.models.layers import Params
from fedveil.models.net import Model


def read_gradients(path: Path, model: Model, lr: float | None = None, local_steps: int = 1) -> tuple[Params, Params]:
    """(params, gradients [attacks, ...]) of a file, checked against the model.

    Weights from after the training are read with the victims' learning rate `lr` and number of `local_steps`.
    """
    arrays = read_arrays(path)
    like = jax.eval_shape(model.init, jax.random.key(0))
    part = "after" if any(name.startswith("after/") for name in arrays) else "gradients"
    if part == "after" and lr is None:
        raise ConfigError("train.lr", None, f"{path} holds weights from after the training: set the victims' rate")
    params, seen = tree_of(path, arrays, "params/", like), tree_of(path, arrays, f"{part}/", like)
    counts = set()
    for layer, own in like.items():
        for name, leaf in own.items():
            check_shape(path, f"params/{layer}/{name}", params[layer][name].shape, leaf.shape)
            found = seen[layer][name]
            if found.ndim == len(leaf.shape):
                seen[layer][name] = found = found[None]
            check_shape(path, f"{part}/{layer}/{name}", found.shape[1:], leaf.shape)
            counts.add(found.shape[0])
    if len(counts) != 1 or 0 in counts:
        held = f"'{part}' holds {sorted(counts)} attacks"
        raise DataError(f"{path}: {held}: give the same number for all layers, at least one")
    for what, tree in (("params", params), (part, seen)):
        for leaf in jax.tree.leaves(tree):
            if not np.isfinite(leaf).all():
                raise DataError(f"{path}: {what} hold values that are not finite: nothing can be matched to them")
    if part == "gradients" or lr is None:
        return params, seen
    return params, from_update(jax.tree.map(lambda new, old: np.float64(new) - old, seen, params), lr, local_steps)
