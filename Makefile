# Two commands: `make setup` (or go straight to `make quickstart`) and `make test`.
PYTHON ?= python3
VENV   := .venv
# The environment of a CPU set-up, else the Python that holds the user's own stack (GPU machines: no .venv is made).
PY      = $(shell test -x $(VENV)/bin/python && echo $(VENV)/bin/python || echo $(PYTHON))
TREE   := build/tree

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test lint matrix lock clean

help:          ## show this text
	@echo 'make TARGET [DEVICE=auto|cpu|cuda|rocm] [PYTHON=python3] [ARGS=...]'
	@sed -n 's/^\([a-z]*\): .*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup:         ## install what is missing; returns at once when nothing is
	@PYTHON="$(PYTHON)" "$(PYTHON)" launch/bootstrap.py $(if $(DEVICE),--device $(DEVICE))

quickstart: setup ## train a small policy on this machine: april quickstart $(ARGS)
	@$(PY) -m april.launch.cli quickstart $(ARGS)

test: setup    ## all tests, the end-to-end ones too: pytest $(ARGS)
	@$(PY) -m pytest $(ARGS)

lint: setup    ## ruff, mypy --strict, import-linter
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@rm -rf $(TREE) && mkdir -p $(TREE)
	@cp -rs $(CURDIR)/april $(CURDIR)/specrollout $(TREE)/
	@for folder in patches launch configs; do cp -rs $(CURDIR)/$$folder $(TREE)/april/$$folder; done
	@$(PY) -m mypy --strict -p april -p specrollout
	@cd $(TREE) && $(abspath $(PY)) -c 'from importlinter.cli import lint_imports_command as run; run()' \
	  ../../pyproject.toml --cache-dir ../import-linter

matrix: setup  ## check the patches against every version that we support (downloads their wheels)
	@$(PY) -m april.launch.cli patch check --matrix

LOCK = $(PY) -m uv pip compile --quiet --config-file configs/locks/lock.toml --python-version 3.11 \
       --generate-hashes --no-header --no-emit-index-url
lock: setup    ## turn configs/locks/*.in into *.txt; versions already there are kept (ARGS=--upgrade moves them)
	@$(LOCK) $(ARGS) --no-emit-package torch -c configs/locks/torch.in configs/locks/cpu.in -o configs/locks/cpu.txt >/dev/null
	@$(LOCK) $(ARGS) -c configs/locks/cpu.txt configs/locks/dev.in -o configs/locks/dev.txt >/dev/null
	@$(LOCK) $(ARGS) -c configs/locks/cpu.txt configs/locks/tools.in -o configs/locks/tools.txt >/dev/null
	@$(LOCK) $(ARGS) --no-deps configs/locks/miles.in -o configs/locks/miles.txt >/dev/null

clean:         ## remove what these targets made
	rm -rf $(VENV) build *.egg-info .pytest_cache .hypothesis .ruff_cache
