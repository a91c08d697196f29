"""These tests compile many small programs that run once: let the compiler hurry."""

import jax
import pytest


@pytest.fixture(autouse=True)
def quick_compile():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
