# The whole developer interface. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
PYTEST := $(BIN)/python -m pytest
SOURCES := labctl tests bench scripts examples roles playbooks

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## Two machines, provisioned, checked, the experiment run: all from nothing
	@scripts/demo.sh

.PHONY: setup
setup: $(VENV)/.ready ## Make .venv with labctl and all its tools

$(VENV)/.ready: requirements/bootstrap.txt requirements/dev.txt pyproject.toml
	@scripts/make_venv.sh "$(PYTHON)" "$(VENV)"
	@touch $@

.PHONY: host-packages
host-packages: ## Install what rehearsal machines need on this host (root or sudo)
	@scripts/host_packages.sh --tests

.PHONY: test
test: setup ## All tests, those on rehearsal machines included where root allows
	@scripts/host_packages.sh --tests || echo 'test: the tests on machines will be skipped, and named' >&2
	$(PYTEST)

.PHONY: test-unit
test-unit: setup ## Unit tests only: no process, no socket, seconds
	$(PYTEST) tests/unit

.PHONY: test-quick
test-quick: setup ## All but the tests on rehearsal machines
	$(PYTEST) -m "not e2e"

.PHONY: rehearse-aws
rehearse-aws: setup ## Show a lab on AWS from plan to receipt: the cloud is on loopback, its machines rehearsal machines (root)
	$(PYTEST) -q -s tests/e2e/test_cloud_path.py

.PHONY: rehearse-gcp
rehearse-gcp: setup ## Show the same on Google Cloud, whose API is a stand-in on loopback (root)
	$(PYTEST) -q -s tests/e2e/test_cloud_path_gcp.py

.PHONY: bench-explain
bench-explain: setup ## How long why, report and trace take on large records, and how that grows
	$(BIN)/python -m bench.explain

.PHONY: cuda-wheels
cuda-wheels: setup ## Install the real CUDA wheels (gigabytes) on a machine of their own and open every library (root)
	@scripts/cuda_wheels.sh

.PHONY: driver-packages
driver-packages: setup ## Resolve Debian's real driver packages on a machine of their own, install what it can have (root)
	@scripts/driver_packages.sh

.PHONY: lint
lint: setup ## What CI holds: ruff, mypy, ansible-lint, yamllint, shellcheck, generated docs fresh
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/yamllint --strict .
	ANSIBLE_INVENTORY=inventory/example PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline --strict
	$(BIN)/shellcheck scripts/*.sh .ci/run
	$(BIN)/python scripts/cli_docs.py --check
	$(BIN)/python scripts/role_docs.py --check

.PHONY: format
format: setup ## Format the sources
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

.PHONY: docs
docs: setup ## Regenerate docs/cli.md and the roles' variable tables
	$(BIN)/python scripts/cli_docs.py
	$(BIN)/python scripts/role_docs.py

.PHONY: lock
lock: setup ## Pin the requirements again, with hashes
	$(UV) pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --quiet -o requirements/dev.txt
	$(UV) pip compile requirements/bootstrap.in --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --no-header --quiet -o requirements/bootstrap.txt

.PHONY: clean
clean: ## Remove .venv and caches; labs and their records stay
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .ansible .hypothesis dist build
