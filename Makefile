# Needs Python 3.11 or newer and make. Everything else is installed into .venv, once.

VENV := .venv
BIN := $(VENV)/bin
TESTS := tests
WORKERS := 3

# The first Python that is new enough; `make PYTHON=/path/to/python3.12 test` chooses one.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if $$python -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then echo $$python; exit; fi; done)

.PHONY: help demo test lint pytest soak transformers bench docs clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r target what; do \
		printf '  make %-14s%s\n' "$$target" "$$what"; done

demo: $(VENV)/.demo  ## the whole path once, small
	$(BIN)/srmlab demo

# One thread a worker: more only fight for the cores. Three workers on two cores, since tests wait for browsers and
# processes a sixth of the time. Worksteal gives each worker its share of the files, in order, and the slowest one's last
# tests to the others: what a file's tests share is made once, not in every worker.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not soak" $(TESTS)

# The type checker takes a core most of a minute: it runs beside the tests, and reports after them.
test: $(VENV)/.dev  ## lint, and all tests but the soak tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@types=$$(mktemp); trap 'rm -f "$$types"' EXIT; \
	$(BIN)/pyright >"$$types" 2>&1 & pyright=$$!; \
	echo '$(PYTEST)'; $(PYTEST); tests=$$?; \
	echo '$(BIN)/pyright'; wait $$pyright; found=$$?; cat "$$types"; \
	[ $$tests -eq 0 ] && [ $$found -eq 0 ]

lint: $(VENV)/.dev  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

pytest: $(VENV)/.dev  ## the tests alone; TESTS=tests/models for some of them
	$(PYTEST)

soak: $(VENV)/.dev  ## the tests that take minutes
	$(BIN)/python -m pytest -m soak $(TESTS)

# Their common tests of a model are in the source archive of the version that is installed, not in its wheel. What they
# need besides goes into build/, not into .venv.
transformers: $(VENV)/.dev  ## transformers' own tests of a model, on ours; fetches its source archive
	version=$$($(BIN)/pip show transformers | sed -n 's/^Version: //p') && \
	$(BIN)/pip download --quiet --no-deps --no-binary transformers --dest build transformers==$$version && \
	$(BIN)/pip install --quiet --upgrade --target build/parameterized parameterized && \
	tar xf build/transformers-$$version.tar.gz -C build && \
	TRANSFORMERS_SOURCE=build/transformers-$$version PYTHONPATH=build/parameterized$${PYTHONPATH:+:$$PYTHONPATH} OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -n $(WORKERS) tests/interop/test_transformers_own.py

bench: $(VENV)/.dev  ## time the models side by side
	$(BIN)/srmlab bench

docs: $(VENV)/.dev  ## the API reference, from the docstrings, into site/
	$(BIN)/python scripts/make_docs.py site

clean:  ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist site
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp file says what is installed; it is older than the files it depends on when they change.

$(VENV)/.python:
	@if [ -z '$(PYTHON)' ]; then \
		echo 'make: Python 3.11 or newer not found; install it, or name it: make PYTHON=/path/to/python3.11' >&2; exit 1; fi
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { \
		echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1), too old; needs Python 3.11 or newer" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.python
	$(call install,demo)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.python
	$(call install,dev)
	@touch $@ $(VENV)/.demo

# An installation that was interrupted leaves a package without its version, over which pip stumbles ever after.
define install
@echo 'Installing into $(VENV); the first time takes minutes.'
$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(1)]" || \
	{ echo 'make: the installation failed; if an earlier one was interrupted, run "make clean" and try again' >&2; exit 1; }
endef
