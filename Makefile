# `make` alone lists the targets. PYTHON=/path/to/python3.11 picks the interpreter of `make setup`.
SHELL := /bin/bash
BIN := .venv/bin
FIND_PYTHON = for p in python3.11 python3.12 python3.13 python3; do \
	  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	  && { echo $$p; break; }; done
PYTHON ?= $(shell $(FIND_PYTHON))

.DEFAULT_GOAL := help
.PHONY: help setup lock demo sweep study docs check test test-thorough test-fast bench ui image report clean have-python
.PHONY: test-units test-contracts test-integration test-lab test-extras test-ray mutants
.PHONY: lab-up lab-down lab-status lab-shell cluster-up cluster-status cluster-down submit

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: have-python ## Make .venv: locked packages, Horovod built here; EXTRAS=fabric,accelerate
	@EXTRAS='$(EXTRAS)' $(PYTHON) deploy/setup_venv.py

have-python:
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11 to 3.13 found;" \
	  "on Debian or Ubuntu: apt-get install python3.11 python3.11-venv;" \
	  "or: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }

lock: have-python ## Resolve pyproject.toml anew; UPGRADE=1 takes the newest versions
	@$(PYTHON) deploy/lock_requirements.py $(if $(UPGRADE),--upgrade)

demo: setup ## Train and compare on this machine, and write the report
	$(BIN)/raysuite run experiments/quickstart.yaml

sweep: setup ## Search rate, batch and schedule of a small network, twelve trials, and write the report
	$(BIN)/raysuite sweep experiments/sweep-quickstart.yaml

STUDIES = $(filter-out sweep-%,$(sort $(basename $(notdir $(wildcard experiments/*.yaml)))))
study: setup ## A paper's study: STUDY=aach2023-throughput SCALE=laptop; RESUME=1 goes on with it
	@test -f "experiments/$(STUDY).yaml" || { echo "study: no study '$(STUDY)';" \
	  "valid are $(STUDIES), as in: make study STUDY=$(firstword $(STUDIES)) SCALE=laptop" >&2; exit 2; }
	$(BIN)/raysuite data make experiments/$(STUDY).yaml $(if $(SCALE),--scale $(SCALE))
	$(BIN)/raysuite run experiments/$(STUDY).yaml $(if $(SCALE),--scale $(SCALE)) \
	  $(if $(RESUME),--resume)

docs: setup ## The documentation site in build/site; a broken link is an error
	$(BIN)/sphinx-build -W --keep-going -q -d build/doctrees docs build/site
	@echo "file://$(CURDIR)/build/site/index.html"

check: setup ## Lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Rows of seconds by test are added to this file by every pytest that `make` starts.
export RAYSUITE_TEST_DURATIONS ?= build/test-durations.csv
IN_STREAMS = $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
ONE_BY_ONE = $(BIN)/pytest
PARTS = check docs test-units test-contracts test-integration test-lab
test: ## What CI checks: lint, types, and all tests but the thorough ones; minutes by part
	@minutes=; trap 'printf "%b" "$$minutes"' EXIT; \
	for part in $(PARTS); do \
	  began=$$SECONDS; code=0; $(MAKE) --no-print-directory $$part || code=$$?; \
	  took=$$(( SECONDS - began )); \
	  minutes+=$$(printf '%-18s %2d:%02d min%s' $$part $$(( took / 60 )) $$(( took % 60 )) \
	    "$$([ $$code = 0 ] || echo ', failed')")'\n'; \
	  [ $$code = 0 ] || exit $$code; \
	done

test-units: setup
	$(IN_STREAMS) tests/unit tests/test_layers.py -m 'not thorough'

test-contracts: setup
	$(IN_STREAMS) tests/contract tests/gpu -m 'not thorough'

test-integration: setup
	$(IN_STREAMS) tests/integration -m 'not thorough'

test-lab: setup
	$(ONE_BY_ONE) tests/lab -m 'not thorough'

ASKED ?= fabric,accelerate,tensorflow,jax,tensorboard,wandb
ON_REQUEST = rebuilt or fabric-2 or accelerate-2 or tensorflow-2 or keras-2 or jax-2 or loggers
test-extras: ## The parts of `make setup EXTRAS=...`, which it installs: 2 workers each; ASKED=fabric
	@$(MAKE) --no-print-directory setup EXTRAS=$(ASKED)
	RAYSUITE_REQUIRE="$$RAYSUITE_REQUIRE,$(ASKED)" $(IN_STREAMS) -m 'not thorough' \
	  tests/contract/test_rebuilt.py tests/contract/test_strategies.py \
	  tests/unit/parallel/test_rebuilt.py \
	  tests/unit/track/test_loggers.py -k '$(ON_REQUEST)'

RAY ?= 2.55.1
ANOTHER_RAY = build/ray-$(RAY)
test-ray: setup ## The tests that start Ray, with another version of it: RAY=2.55.1
	$(BIN)/python -c 'import sys; sys.path.insert(0, "deploy"); import setup_venv as s; \
	  uv = s.private_uv(); s.run(uv, "pip", "install", "--python", sys.executable, "--no-deps", \
	  "--target", "$(ANOTHER_RAY)", "ray==$(RAY)", env=s.uv_environment(uv))'
	PYTHONPATH="$(CURDIR)/$(ANOTHER_RAY)" $(ONE_BY_ONE) -m 'not thorough' \
	  -W ignore::pytest.PytestUnraisableExceptionWarning \
	  tests/unit/cluster/test_ray_shortcuts.py tests/unit/orchestrate tests/contract/test_ray_data.py \
	  $(addprefix tests/integration/test_,$(addsuffix .py,run interruption sweep scale trials))

test-thorough: setup ## The tests that CI has no time for
	$(ONE_BY_ONE) tests -m thorough

test-fast: setup ## Unit tests alone, under a minute
	$(BIN)/pytest tests/unit -m 'not integration and not slow and not thorough'

mutants: setup ## Defects of one token that no unit test finds: MUTANTS='records/statistics optim/*'
	set -f; $(BIN)/python tests/mutants/one_token.py $(MUTANTS)

bench: setup ## What orchestration and measuring cost, and how fast images are loaded
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/measurement.py
	$(BIN)/python benchmarks/script_overhead.py
	$(BIN)/python benchmarks/loaders.py

ui: setup ## MLflow's pages, for you alone: a link to the newest experiment's runs
	$(BIN)/raysuite ui

IMAGE ?= raysuite.sif
VARIANT ?= cpu
image: setup ## An Apptainer image of this checkout: IMAGE=raysuite.sif VARIANT=cpu
	$(BIN)/raysuite image build $(IMAGE) --variant $(VARIANT) --force

report: setup ## Write the report of the runs on record
	$(BIN)/raysuite report results

LAB = $(BIN)/python deploy/lab
lab-up: setup ## A SLURM site of HOSTS=3 hosts on this machine (root; docs/how-to/lab.md)
	$(LAB) up $(if $(HOSTS),--nodes $(HOSTS))

lab-down: ## End that site and all that it left
	$(LAB) down

lab-status: ## Its hosts, and what SLURM says of them
	$(LAB) status

lab-shell: ## A shell as an ordinary user of it: LAB_USER=hpc1
	$(LAB) as $(or $(LAB_USER),hpc1)

CLUSTER = $(BIN)/raysuite cluster
cluster-up: setup ## A Ray cluster: SITE=local NODES= NAME=; RESUME=1 goes on with its suites
	@$(CLUSTER) up $(if $(SITE),--site '$(SITE)') $(if $(NODES),--nodes '$(NODES)') \
	  $(if $(NAME),--name '$(NAME)') $(if $(RESUME),--resume)

cluster-status: ## Its nodes and jobs: NAME=
	@$(CLUSTER) status $(if $(NAME),'$(NAME)')

submit: ## A spec as a job on the cluster: SPEC=experiments/quickstart.yaml SCALE= NAME=
	@set -e; settings="$$($(CLUSTER) env $(if $(NAME),'$(NAME)'))"; eval "$$settings"; \
	  $(BIN)/ray job submit -- raysuite run '$(abspath $(or $(SPEC),experiments/quickstart.yaml))' \
	  $(if $(SCALE),--scale '$(SCALE)')

cluster-down: ## End it, and nothing else: NAME=
	@$(CLUSTER) down $(if $(NAME),'$(NAME)')

clean: ## Remove .venv and caches; runs and their records stay
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
