# Everything a newcomer needs: `make demo` and `make test`. Each sets up .venv by itself, once per lock file.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_FLAGS ?= -n 2 --dist worksteal

# The stamp carries a checksum, so that a fresh checkout of the same lock reinstalls nothing.
STAMP := $(VENV)/.installed-$(shell cat requirements.lock pyproject.toml | cksum | cut -d ' ' -f 1)

.PHONY: help demo demo-flower test test-install cover lint types docs bench setup lock clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP) ## compare six methods on real data (about a minute on two cores), then say where the report is
	$(BIN)/acefl compare --out demo
	@echo "The report: $(CURDIR)/demo/report.html"

demo-flower: $(STAMP) ## a real Flower federation on this machine: one slow node, one that dies and comes back (under 5 minutes)
	$(BIN)/python examples/flower-digits/demo.py

test-install: ## the wheel in fresh environments without the lock: the newest and the lowest versions that are allowed
	$(PYTHON) tests/install/check.py

test: lint types ## lint, types, then all tests but the slow ones
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

cover: $(STAMP) ## the same tests with coverage, which makes them half as long again
	$(BIN)/python -m pytest --cov --cov-report=term $(PYTEST_FLAGS)

lint: $(STAMP) ## ruff, both the linter and the formatter, and that imports go down only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache

types: $(STAMP) ## mypy --strict on src
	$(BIN)/mypy

docs: $(STAMP) ## build the documentation into site/
	$(BIN)/mkdocs build --strict

bench: $(STAMP) ## the benchmarks: ratios against the floor, in one run
	$(BIN)/python -m benchmarks

setup: $(STAMP) ## only create .venv and install the lock and the package

$(STAMP): | requirements.lock pyproject.toml
	@test -x $(BIN)/pip || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "acefl needs Python 3.11 or newer, and '$(PYTHON)' is not; say which one: make demo PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "Installing the packages of requirements.lock into $(VENV) (the first time this takes some minutes) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.installed-* && touch $@

lock: $(STAMP) ## write requirements.lock anew from what is installed in .venv
	@{ sed -n '/^#/p' requirements.lock; \
	   $(BIN)/python -m pip freeze --all --exclude-editable $(addprefix --exclude ,acefl pip wheel pip-tools build pyproject_hooks) \
	   | sed -E 's/^(torch==[^+]*)\+.*/\1/'; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean: ## remove caches and what the commands wrote; keep .venv
	rm -rf build dist site demo demo-flower demo-flower-processes .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
