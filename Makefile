# Every target but help and clean sets the repository up first, in .venv; a
# finished set-up takes no time. PYTHON names the interpreter to use, TORCH another
# version of torch than the pinned one.

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-nightly test-all lint types clean

# Handed to the set-up only when given: it finds a fitting Python by itself.
PYTHON ?=
TORCH ?=
# make would pass it on to every command, and the tools would take it for .venv's.
unexport PYTHON
run := PATH="$(CURDIR)/.venv/bin:$$PATH"

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' \
		$(MAKEFILE_LIST)

setup: ## Install everything into .venv (PYTHON=, TORCH=2.15.0 choose versions)
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" bash tools/setup/setup.sh

demo: setup ## Generate a data set, train on two ranks, evaluate
	$(run) bash tools/demo.sh

# Three on two cores, since tests of several ranks often wait; the nightly ones
# have more ranks.
pytest := python -m pytest --dist loadfile --no-loadscope-reorder

test: setup ## Run the tests; about 9 minutes on two cores
	$(run) $(pytest) -n 3 -m 'not nightly'

test-fast: setup ## Of these, the ones that take less than about 10 seconds
	$(run) $(pytest) -n 3 -m 'not slow and not nightly'

test-nightly: setup ## Those of machines, installs and long runs
	$(run) $(pytest) -n 2 -m nightly

test-all: setup ## All of them
	$(run) $(pytest) -n 2

lint: setup ## Check style and formatting
	$(run) ruff check .
	$(run) ruff format --check .

types: setup ## Check the package's types
	$(run) mypy

clean: ## Remove .venv; the built mmcv wheel stays in its cache
	rm -rf .venv .venv.lock *.egg-info
