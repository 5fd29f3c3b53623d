# Needs Python, make and a package index. `make` alone lists the targets.

PYTHON ?= python3
# The version the tests are run with; the package itself takes any torch >= 2.6.
TORCH ?= torch==2.13.0
EXTRAS ?= dev,ko,ja,parquet,train,gpu
WORKERS ?= 2

VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
STAMP := $(VENV)/.installed
# One thread a worker, or the workers fight over the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help install demo lint test verify docs clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-9s %s\n", $$1, $$2 }'

install: $(STAMP) ## Make .venv with torch, the package and what its tests need

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[$(EXTRAS)]"
	@touch $(STAMP)

demo: install ## Ambiguous words by layer, who is near them, a gap filled (no download)
	$(BIN)/python -m torchelmo.apps.demo

lint: install ## Style, format, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: install lint ## Lint, then every test but the long proofs
	$(PYTEST) -q

verify: install ## The long proofs
	$(BIN)/python -m pytest -q -m verify

docs: install ## Check the tables in README.md and docs/ and run their Python
	$(BIN)/python scripts/docs.py --check
	$(BIN)/python -m pytest -q tests/docs

clean: ## Remove the environment, builds and caches
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
