# Every target does all its own set-up. `make demo` and `make test` work in a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One BLAS thread: threads that spin for each other collapse when a shared machine takes a core away.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest
STAMP := $(VENV)/.installed

# One wheel is made by each of these: 3.11 makes its own, 3.12 the one for every later Python.
WHEEL_PYTHONS ?= python3.11 python3.12

.PHONY: setup demo test check sanitize format docs wheel clean

setup: $(STAMP)

# Re-installed when the dependencies or the compiled part change; Python files are used in place.
$(STAMP): pyproject.toml CMakeLists.txt $(wildcard csrc/*)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev --editable .
	@touch $@

# Another one: make demo MODEL=qwen-coder-1.5b, or any name of `headlong models`, or a path.
demo: setup
	@$(BIN)/headlong demo $(if $(MODEL),--model "$(MODEL)")

test: check
	@tools/install_browser.sh
	$(PYTEST) --numprocesses auto --maxprocesses 4 --dist loadfile

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -q tests/test_layering.py tests/test_budgets.py

# The kernel tests under the address, undefined-behaviour and thread sanitisers.
sanitize: setup
	tools/sanitize.sh $(BIN)/python

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python tools/make_reference.py

# The source archive and wheels with the kernels inside, in dist/; each wheel is tried without a compiler.
wheel: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group release
	tools/build_wheels.sh $(BIN)/python $(WHEEL_PYTHONS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
