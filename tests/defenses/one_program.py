"""Runs a stage of a defence as one compiled program: called bare, each of its operations is compiled by itself."""

import dataclasses

import jax


def at_stage(stage, *values, point):
    """What a defence makes of values at a stage. It is traced anew in each call, so that a mutation is seen."""
    key = point.key
    run = jax.jit(lambda key, *v: stage(*v, dataclasses.replace(point, key=key, shared=key)))
    return run(key, *values)
