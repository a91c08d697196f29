"""Settings of all tests in this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def quick_compilation() -> Iterator[None]:
    """XLA skips most optimisations: these tests spend their time on compiling programs that run once."""
    import jax

    set_option: Callable[..., None] = jax.config.update
    before = jax.config.read("jax_disable_most_optimizations")
    set_option("jax_disable_most_optimizations", True)
    yield
    set_option("jax_disable_most_optimizations", before)
