# `make demo` and `make test` set up everything they need: Python and a package index are all they assume.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test slow lint unit quick rounding docs notebooks setup dev lock release clean

setup: $(VENV)/.installed
dev: $(VENV)/.installed-dev

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Every package comes with the hash that `make lock` has seen. The lock files name all packages, so pip resolves nothing: older
# versions of pip look past a pin when another package asks for the same package with an extra.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
LOCAL = --no-build-isolation -e .

$(VENV)/.installed: $(BIN)/python pyproject.toml requirements/run.txt
	$(PIP) --require-hashes -r requirements/run.txt
	$(PIP) $(LOCAL)
	touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml requirements/dev.txt
	$(PIP) --require-hashes -r requirements/dev.txt
	$(PIP) $(LOCAL)
	touch $@ $(VENV)/.installed

demo: setup
	$(BIN)/fedveil demo

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests compile thousands of small programs. Compiling takes half the time with XLA's older code generator, and less with one
# thread for each of the two workers. Tests of rounding (marker `codegen`) and `make slow` use the code generator that users get.
# A process ends at a flag that its XLA does not know, so the flags are tried first.
QUICK := --xla_cpu_multi_thread_eigen=false --xla_cpu_parallel_codegen_split_count=1 --xla_cpu_use_fusion_emitters=false
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

unit: dev
	$(MAKE) -j2 quick rounding

quick: dev
	flags="$$XLA_FLAGS $(QUICK)"; \
	XLA_FLAGS="$$flags" $(BIN)/python -c "import jax; jax.devices()" 2>/dev/null || flags="$$XLA_FLAGS"; \
	XLA_FLAGS="$$flags" $(PYTEST) -m "not slow and not codegen"

# Few tests: one process, beside the others.
rounding: dev
	$(BIN)/python -m pytest -m "codegen and not slow" $$(grep -rlF mark.codegen tests --include='test_*.py')

# Linter and type checker run beside the tests, then the tests of rounding: each uses one core only.
test: dev
	$(MAKE) -j2 quick lint rounding

# The documentation site, in build/site. The notebooks are executed first; a warning of mkdocs is an error.
$(VENV)/.installed-docs: $(VENV)/.installed-dev requirements/docs.txt
	$(PIP) --require-hashes -r requirements/docs.txt
	touch $@

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/run_notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Stores fresh outputs in docs/notebooks.
notebooks: $(VENV)/.installed-docs
	$(BIN)/python docs/run_notebooks.py --store

# What takes long to compile and is left out above.
slow: dev
	$(BIN)/python -m pytest -m slow

# The lock files, made anew: the newest versions that fit pyproject.toml, for every Python and platform, each with its hashes.
TOOLS := build/tools
COMPILE = $(TOOLS)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade

$(TOOLS)/.installed: requirements/tools.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.txt
	touch $@

lock: $(TOOLS)/.installed
	$(COMPILE) --extra dev --extra flower --extra lab pyproject.toml requirements/build.in -o requirements/dev.txt
	$(COMPILE) -c requirements/dev.txt pyproject.toml requirements/build.in -o requirements/run.txt
	$(COMPILE) -c requirements/dev.txt --extra docs pyproject.toml -o requirements/docs.txt
	$(COMPILE) requirements/tools.in -o requirements/tools.txt

# The wheel, the source archive, and a bill of materials (CycloneDX) of what `make demo` installs.
release: $(TOOLS)/.installed
	rm -rf dist
	$(TOOLS)/bin/python -m build --no-isolation
	$(TOOLS)/bin/cyclonedx-py requirements requirements/run.txt --pyproject pyproject.toml -o dist/fedveil.cdx.json

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
