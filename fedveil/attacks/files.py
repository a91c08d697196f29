"""Gradients from elsewhere: a file with a model's parameters and the gradients that were observed.

A `.safetensors` or `.npz` file holds arrays named `params/LAYER/w`, `params/LAYER/b`, `gradients/LAYER/w` and
`gradients/LAYER/b`, in the layout of the built-in models: dense weights [inputs, outputs], convolutions
[height, width, channels in, channels out], images channels last. Gradients may have a leading axis over several attacks.
"""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from fedveil.core.errors import DataError
from fedveil.models.files import check_shape, read_arrays, tree_of
from fedveil.models.layers import Params
from fedveil.models.net import Model


def read_gradients(path: Path, model: Model) -> tuple[Params, Params]:
    """(params, gradients [attacks, ...]) of a file, checked against the model."""
    arrays = read_arrays(path)
    like = jax.eval_shape(model.init, jax.random.key(0))
    params = tree_of(path, arrays, "params/", like)
    gradients = tree_of(path, arrays, "gradients/", like)
    counts = set()
    for layer, own in like.items():
        for name, leaf in own.items():
            check_shape(path, f"params/{layer}/{name}", params[layer][name].shape, leaf.shape)
            found = gradients[layer][name]
            if found.ndim == len(leaf.shape):
                gradients[layer][name] = found = found[None]
            check_shape(path, f"gradients/{layer}/{name}", found.shape[1:], leaf.shape)
            counts.add(found.shape[0])
    if len(counts) != 1 or 0 in counts:
        held = f"the gradients hold {sorted(counts)} attacks"
        raise DataError(f"{path}: {held}: give the same number for all layers, at least one")
    for part, tree in (("params", params), ("gradients", gradients)):
        for leaf in jax.tree.leaves(tree):
            if not np.isfinite(leaf).all():
                raise DataError(f"{path}: {part} hold values that are not finite: nothing can be matched to them")
    return params, gradients
