# Every target sets up what it needs: only Python 3.11+ and make are assumed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= 2

.PHONY: help demo test test-peers torture bench build docs docs-serve lock lint types coverage setup programs check-wheel clean

help:  ## Show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml $(wildcard constraints-dev.txt)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[all]" --group dev $(if $(wildcard constraints-dev.txt),--constraint constraints-dev.txt)
	$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/.installed-peers: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group peers
	@touch $@

demo: $(VENV)/.installed  ## Play a short real tour and open the app on it, with a small model, fetched once (100 MB)
	@$(BIN)/sessiontree models get local || echo "demo: goes on without the model"
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/sessiontree demo --app; else $(BIN)/sessiontree demo; fi

test: lint types coverage  ## Style, types, and all tests with the coverage gate

lint: $(VENV)/.installed
	$(BIN)/ruff check src tests examples bench scripts
	$(BIN)/ruff format --check src tests examples bench scripts

types: $(VENV)/.installed
	$(BIN)/pyright

# Programs of the system that some tests use: to make system calls fail, to open pages, to keep sessions, to confine agents.
SUDO = $(shell [ "$$(id -u)" = 0 ] || echo sudo)
define find_missing
missing=""; \
for program in strace:strace chromium:chromium bwrap:bubblewrap pgbouncer:pgbouncer; do \
  command -v $${program%%:*} >/dev/null || missing="$$missing $${program#*:}"; \
done; \
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$$missing postgresql"
endef

setup:  ## Install the Debian packages that the tests use: strace, Chromium, PostgreSQL, PgBouncer, bubblewrap
	@$(find_missing); \
	if [ -z "$$missing" ]; then echo "setup: everything is installed"; \
	else $(SUDO) apt-get update --quiet && $(SUDO) apt-get install --yes --quiet --no-install-recommends $$missing; fi

# As root, or in CI, missing programs are installed. Elsewhere the tests that need them are skipped with a sentence.
programs:
	@$(find_missing); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if command -v apt-get >/dev/null && { [ "$$(id -u)" = 0 ] || [ -n "$$CI" ]; }; then \
	  echo "installing$$missing"; \
	  $(SUDO) apt-get install --yes --quiet --no-install-recommends $$missing >/dev/null 2>&1 \
	    || { $(SUDO) apt-get update --quiet >/dev/null 2>&1 \
	         && $(SUDO) apt-get install --yes --quiet --no-install-recommends $$missing >/dev/null 2>&1; } \
	    || echo "could not install$$missing"; \
	else echo "missing:$$missing. The tests that need them are skipped; to install them, run: make setup"; fi

coverage: $(VENV)/.installed programs
	$(BIN)/python -m pytest -m "not peers and not torture" -n $(JOBS) --cov --cov-report=
	$(BIN)/coverage report --include='*/sessiontree/core/*,*/sessiontree/format/*' --fail-under=100
	$(BIN)/coverage report --format=total --fail-under=93

test-peers: $(VENV)/.installed-peers  ## Both ways against the real pi
	$(BIN)/python -m pytest -m peers

# A group at a time: what cannot be installed is left out, and its tests are skipped with a sentence.
$(VENV)/.installed-torture: $(VENV)/.installed
	@for package in atheris mfusepy "patroni[etcd3]"; do \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check "$$package" \
	    || echo "torture: $$package cannot be installed here"; \
	done
	@! command -v apt-get >/dev/null \
	  || apt-get install --yes --quiet --no-install-recommends libfuse3-3 fuse3 e2fsprogs btrfs-progs iproute2 etcd-server >/dev/null 2>&1 || true
	@touch $@

torture: $(VENV)/.installed-torture programs  ## The reliability tests many times over: about two hours
	SESSIONTREE_TORTURE=1 $(BIN)/python -m pytest tests/reliability tests/files tests/store/test_postgres.py tests/agent/test_soak.py tests/export/test_hostile.py tests/swarm/test_simulation.py tests/swarm/test_durable.py tests/interop/test_mutated.py -n $(JOBS) --dist worksteal --durations=0 --durations-min=60

# A peer that cannot be installed is left out, and the table says so.
bench/.venv-peers/.installed: bench/peers.txt
	$(PYTHON) -m venv bench/.venv-peers
	@while read -r peer; do \
	  bench/.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check "$$peer" \
	    || echo "bench: $$peer cannot be installed here"; \
	done < bench/peers.txt
	@touch $@

bench: $(VENV)/.installed bench/.venv-peers/.installed  ## Speed beside the peers; ARGS=--quick takes three minutes
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group peers || echo "bench: no Node for pi"
	@$(BIN)/python bench/run.py $(ARGS)
	@$(BIN)/python bench/adapters.py $(if $(filter --quick --tiny,$(ARGS)),--turns 5)

docs: $(VENV)/.installed  ## Build the site in build/site
	$(BIN)/python scripts/build_site.py

docs-serve: $(VENV)/.installed  ## Show the site at http://localhost:8000
	$(BIN)/python scripts/build_site.py serve

lock: $(VENV)/.installed  ## Write the installed versions to constraints-dev.txt
	@{ echo "# The versions that the tests ran with. \`make lock\` writes this file; delete it to use the newest versions."; \
	  $(BIN)/python -m pip freeze --exclude-editable | grep -v " @ "; } > constraints-dev.txt

build: $(VENV)/.installed  ## Make the sdist and the wheel in dist/
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	@rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

check-wheel: build  ## Install the wheel into a fresh environment for each extra, and use it
	$(BIN)/python scripts/check_wheel.py

clean:  ## Remove what the other targets made
	rm -rf $(VENV) .peers .models bench/data bench/.venv-peers .coverage* .hypothesis
