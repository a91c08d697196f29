"""Faults are put into the running code, so no program that was compiled or kept before may be used."""

import jax
import pytest

from fedveil import kept


@pytest.fixture
def patch(monkeypatch):
    monkeypatch.setattr(kept, "_store", None)
    jax.clear_caches()
    yield monkeypatch
    monkeypatch.undo()
    jax.clear_caches()
