# Every target sets up what it needs: only Python 3.11+ and make are assumed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= 2

.PHONY: help demo test test-peers bench lint types coverage clean

help:  ## Show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/.installed-peers: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group peers
	@touch $@

demo: $(VENV)/.installed  ## Play a short real tour
	@$(BIN)/sessiontree demo

test: lint types coverage  ## Style, types, and all tests with the coverage gate

lint: $(VENV)/.installed
	$(BIN)/ruff check src tests examples bench
	$(BIN)/ruff format --check src tests examples bench

types: $(VENV)/.installed
	$(BIN)/pyright

coverage: $(VENV)/.installed
	$(BIN)/python -m pytest -m "not peers" -n $(JOBS) --cov --cov-report=
	$(BIN)/coverage report --include='*/sessiontree/core/*,*/sessiontree/format/*' --fail-under=100

test-peers: $(VENV)/.installed-peers  ## Both ways against the real pi
	$(BIN)/python -m pytest -m peers

# A peer that cannot be installed is left out, and the table says so.
bench/.venv-peers/.installed: bench/peers.txt
	$(PYTHON) -m venv bench/.venv-peers
	@while read -r peer; do \
	  bench/.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check "$$peer" \
	    || echo "bench: $$peer cannot be installed here"; \
	done < bench/peers.txt
	@touch $@

bench: $(VENV)/.installed bench/.venv-peers/.installed  ## Speed beside the peers; ARGS=--quick takes two minutes
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group peers || echo "bench: no Node for pi"
	@$(BIN)/python bench/run.py $(ARGS)

clean:  ## Remove what the other targets made
	rm -rf $(VENV) .peers bench/data bench/.venv-peers .coverage* .hypothesis
