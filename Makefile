# Everything starts from here: `make demo`, `make test`, `make check`, `make site`, `make site-version`, `make bench`, `make soak`,
# `make test-matrix`, `make test-lowest`, `make test-deploy`, `make mutants`, `make sbom`.
# Each target makes the virtual environment it needs, from Python 3.11 to 3.15 (another one: `make PYTHON=… test`).

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?=
PYTEST_ARGS ?=
# Most tests wait for something rather than compute. 0 = one after the other, in one process.
TEST_PROCESSES ?= 6
# Tests start hundreds of processes: without bytecode on disk, each of them would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
# Material tells of its successor in each build.
export NO_MKDOCS_2_WARNING := 1
# Of `make site-version`.
VERSION ?= 0.2
SOAK_MINUTES ?= 30
SOAK_SEED ?= 1
# Options of `python -m tests.simulation.mutants`: --only NAME, --jobs N, --near, …
MUTANTS ?=
# Seconds in which faults are drawn, for each seed and mode.
SOAK_CHAOS ?= 60
SOAK_STORIES ?= 20000
# Plays of the explorer, in each of its configurations.
SOAK_PLAYS ?= 20000
# Stories of long jobs while the server fails, of replicas and of workers that recover by themselves.
SOAK_LONG_STORIES ?= 300

# Stamps: an extra is installed once per change of pyproject.toml. Stamps lie in the environment and vanish with it.
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev
MUTMUT := $(VENV)/.installed-mutmut
DOCS := $(VENV)/.installed-docs
RECIPES := $(VENV)/.installed-recipes
SITE := $(BIN)/mkdocs build --strict -f .mkdocs.yml
# Environments of their own: the lowest versions, what the image has, and the program that lists it.
LOWEST := .venv-lowest
IMAGE := .venv-image
SBOM := .venv-sbom
# It compares the image's constraints with the dependencies of what is installed. The lowest versions need others.
NOT_LOWEST := tests/deploy/test_container.py::test_every_version_in_it_is_named
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input

PYTHONS := 3.11 3.12 3.13 3.14 3.15
# A candidate must really run (a version manager's shim may not), fit, and be able to make environments.
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 15))
CANDIDATES := $(if $(PYTHON),$(PYTHON),$(addprefix python,$(PYTHONS)) python3 python)

.PHONY: help demo test check site site-version bench soak test-matrix test-lowest test-deploy mutants sbom clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo: $(DEMO)  ## show crashes without recovery, with the reaper, and embedded, on a server of its own (about a minute)
	@$(BIN)/reaper demo

test: $(DEV) $(if $(findstring --matrix,$(PYTEST_ARGS)),$(RECIPES))  ## run the tests on the packaged Valkey, contracts with the server on every one at hand (some minutes)
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

check: $(DEV) $(DOCS)  ## lint, formatting, types, import contracts, generated documentation, plain English, links of the site
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python docs/configuration.py --check
	@$(BIN)/python docs/prose.py
	@$(SITE) --site-dir site >site.log 2>&1 || { cat site.log >&2; exit 1; }; rm -f site.log

site: $(DOCS)  ## build the documentation as a site, in the folder site/; every link is checked, and nothing is fetched
	@$(SITE) --site-dir site

site-version: $(DOCS)  ## commit the site as VERSION, and as the latest one, to the branch pages (VERSION=0.2)
	@PATH="$(abspath $(BIN)):$$PATH" mike deploy -F .mkdocs.yml -b pages --update-aliases "$(VERSION)" latest
	@PATH="$(abspath $(BIN)):$$PATH" mike set-default -F .mkdocs.yml -b pages latest

bench: $(DEV)  ## measure; writes docs/internals/benchmarks.md
	@$(BIN)/python -m tests.benchmarks

soak: $(DEV)  ## play 40,600 simulated stories; kill the ingester 20 times; disturb replicas that share groups; then chaos for SOAK_MINUTES or until one fails
	@play="$(BIN)/python -m tests.simulation --processes $$(nproc 2>/dev/null || echo 2)"; \
	for first in $(SOAK_SEED) $$((10000000 + $(SOAK_SEED))); do \
	  $$play $$first --count $(SOAK_STORIES) || exit 1; \
	done; \
	for first in $$((20000000 + $(SOAK_SEED))) $$((30000000 + $(SOAK_SEED))); do \
	  $$play $$first --count $(SOAK_LONG_STORIES) || exit 1; \
	done
	@$(BIN)/python -m tests.explorer --first $(SOAK_SEED) --count $(SOAK_PLAYS)
	@STREAM_REAPER_KILL_ROUNDS=20 $(BIN)/python -m pytest -q --matrix -k valkey tests/pipeline/test_kill.py
	@STREAM_REAPER_SHARING_SEEDS=20 $(BIN)/python -m pytest -q -s --matrix -k valkey tests/soak/test_sharing.py
	@mkdir -p soak; end=$$(( $$(date +%s) + $(SOAK_MINUTES) * 60 )); seed=$(SOAK_SEED); \
	while [ "$$(date +%s)" -lt "$$end" ]; do \
	  for mode in reaper embedded; do \
	    play="$(BIN)/python -m tests.soak --recovery $$mode --chaos $(SOAK_CHAOS) --seed $$seed"; \
	    $$play --output "soak/$$mode-$$seed.json" >"soak/$$mode-$$seed.log" 2>&1 \
	      || { tail -n 40 "soak/$$mode-$$seed.log"; \
	           echo "soak: seed $$seed failed; replay it with: $$play" >&2; exit 1; }; \
	    echo "soak: seed $$seed balanced, $$mode"; \
	  done; seed=$$(( seed + 1 )); \
	done

test-matrix:  ## run everything on every server and Python (3.11 to 3.15) at hand, clusters and kills included (long)
	@ran=; for version in $(PYTHONS); do \
	  if python$$version -c '$(FITS)' 2>/dev/null; then \
	    echo "== Python $$version"; ran=1; \
	    $(MAKE) --no-print-directory VENV=.venv-$$version PYTHON=python$$version \
	      PYTEST_ARGS='--matrix $(PYTEST_ARGS)' test || exit 1; \
	  else echo "== Python $$version: not at hand"; fi; \
	done; \
	[ -n "$$ran" ] || { echo "make: no Python of $(PYTHONS) (with venv) was found on the PATH." >&2; exit 1; }

test-deploy: $(DEV)  ## run what deploy/ ships, in containers and under systemd; writes its record into docs/internals/deployment-record.md
	@$(BIN)/python -m pytest --deploy --record $(PYTEST_ARGS) tests/deploy/real

test-lowest:  ## run the tests with the lowest version of each dependency that pyproject.toml allows
	@[ -x $(LOWEST)/bin/python ] || $(MAKE) --no-print-directory VENV=$(LOWEST) $(LOWEST)/bin/python
	@$(LOWEST)/bin/python -m pip --quiet --disable-pip-version-check install uv
	@VIRTUAL_ENV=$(LOWEST) $(LOWEST)/bin/uv pip install --quiet --resolution lowest-direct -e '.[dev]'
	@$(LOWEST)/bin/python -m pytest -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder --deselect $(NOT_LOWEST) $(PYTEST_ARGS)

sbom:  ## list what the container image installs, as CycloneDX, in dist/stream-reaper.cdx.json
	@[ -x $(SBOM)/bin/python ] || $(MAKE) --no-print-directory VENV=$(SBOM) $(SBOM)/bin/python
	@$(SBOM)/bin/python -m pip --quiet --disable-pip-version-check install 'cyclonedx-bom>=7,<8'
	@$(SBOM)/bin/python -m venv --clear --without-pip $(IMAGE)
	@$(SBOM)/bin/python -m pip --python $(IMAGE) --quiet --disable-pip-version-check install -c deploy/container/constraints.txt '.[telemetry,web]'
	@mkdir -p dist
	@$(SBOM)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file dist/stream-reaper.cdx.json $(IMAGE)/bin/python
	@echo "dist/stream-reaper.cdx.json"

mutants: $(MUTMUT)  ## break one thing after the other, and see which test finds it; writes docs/internals/mutants.md (hours)
	@$(BIN)/python -m tests.simulation.mutants --pure $(MUTANTS)

clean:  ## remove what the other targets made
	rm -rf .venv $(addprefix .venv-,$(PYTHONS)) $(LOWEST) $(IMAGE) $(SBOM) build dist site soak .mutants *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find reaper workers tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c '$(FITS)' 2>/dev/null; then \
	    exec "$$candidate" -m venv $(VENV); \
	  fi; \
	done; \
	echo "make: Python 3.11 to 3.15 with its venv module is needed, and none of these is one: $(CANDIDATES)." \
	  "Install it (Debian 12: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3.12 …" >&2; \
	exit 1

$(DEMO): pyproject.toml | $(BIN)/python
	@[ $(DEV) -nt pyproject.toml ] || { echo "make: installing into $(VENV) …"; $(PIP) install -e '.[demo]'; }
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "make: installing into $(VENV) …"
	@$(PIP) install -e '.[dev]'
	@touch $@

$(DOCS): pyproject.toml | $(BIN)/python
	@$(PIP) install -e '.[docs]'
	@touch $@

# Other people's frameworks, which only the matrix runs.
$(RECIPES): pyproject.toml $(wildcard docs/examples/*.go) | $(DEV)
	@$(PIP) install -e '.[recipes]'
	@if command -v npm >/dev/null; then \
	  npm install --silent --no-audit --no-fund --prefix $(VENV)/node ioredis redis redis-streams-broker; \
	else echo "make: no npm, so the recipes for Node are not run"; fi
	@command -v go >/dev/null || echo "make: no go, so the recipes for Go are not run"
	@! command -v go >/dev/null || { mkdir -p $(VENV)/go && cd $(VENV)/go && { [ -e go.mod ] || go mod init recipes; } && \
	  go get github.com/redis/go-redis/v9 github.com/ThreeDotsLabs/watermill-redisstream && \
	  go build -o go_redis $(CURDIR)/docs/examples/go_redis_worker.go && \
	  go build -o watermill $(CURDIR)/docs/examples/watermill_worker.go; } || \
	  echo "make: go cannot get its modules or build with them, so the recipes for Go are not run"
	@php -r "require 'Symfony/Component/Messenger/Bridge/Redis/autoload.php';" >/dev/null 2>&1 || \
	  echo "make: no PHP with Debian's php-symfony-redis-messenger, so the recipe for Symfony is not run"
	@touch $@

# A tool of its own, with many dependencies that nothing else here needs.
$(MUTMUT): $(DEV)
	@$(PIP) install 'mutmut>=3.8,<4'
	@touch $@
