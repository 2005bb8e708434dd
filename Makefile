# `make train`: from nothing to a trained model and its forecast. `make test`: everything that is tested without a GPU.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

.PHONY: train test check

train: $(VENV)/installed-train
	$(VENV)/bin/scalerl train $(ARGS)

test: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile $(ARGS)

check: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

$(VENV)/installed-%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Name another one: make train PYTHON=python3.12")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[train,$*]'
	touch $@
