"""Faults are put into the running code, so no program that was compiled before may be used."""

import jax
import pytest


@pytest.fixture
def patch(monkeypatch):
    jax.clear_caches()
    yield monkeypatch
    monkeypatch.undo()
    jax.clear_caches()
