# `make demo` and `make test` set up everything they need: Python and a package index are all they assume.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test slow lint unit setup dev clean

setup: $(VENV)/.installed
dev: $(VENV)/.installed-dev

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@ $(VENV)/.installed

demo: setup
	$(BIN)/fedveil demo

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two workers share two cores, so each of them is quickest with one thread for XLA: a quarter less time in all. A flag that a
# version does not know ends the process; these are known to be there in 0.10.
QUICK := --xla_cpu_multi_thread_eigen=false --xla_cpu_parallel_codegen_split_count=1
KNOWN := from importlib.metadata import version; print(version('jax').startswith('0.10.') and '$(QUICK)' or '')

unit: dev
	XLA_FLAGS="$$XLA_FLAGS $$($(BIN)/python -c "$(KNOWN)")" $(BIN)/python -m pytest -n 2 --dist worksteal

test: lint unit

# What takes long to compile and is left out above.
slow: dev
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
