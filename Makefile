# The virtual environment lives in the checkout. A stamp file records what was installed into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORDS ?=

.PHONY: install demo test test-long check format wheel clean

install: $(VENV)/.all

demo: $(VENV)/.demo
	$(BIN)/gemrl demo $(WORDS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(WORDS)

test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -m "long or not long" $(WORDS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel --outdir dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"gemrl needs Python 3.11 to 3.13, and $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[eval,report]'
	@touch $@

$(VENV)/.all: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) dist build
