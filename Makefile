# Kronos's commands. The first use of any of them sets up .venv; `make` alone lists them.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
SETUP = @command -v python3 >/dev/null 2>&1 || { echo "Kronos needs Python 3.11 or newer as python3; install it and try again." >&2; exit 1; }; \
	python3 -I operator/kronos/local/bootstrap.py

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test up down env setup crds lint format pytest clean kind-demo cluster-up cluster-down cluster-env test-cluster images bench exact races

help: ## List the commands
	@echo "Kronos: train models on shared clusters. Commands:"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

demo: setup ## Watch two jobs train on a real local control plane, from kubectl apply to Complete
	@exec $(BIN)/python -m kronos.local.demo

kind-demo: setup ## The same in containers, on a cluster of kind; ARGS=--help lists options
	@exec manifests/kind/demo.sh $(ARGS)

test: lint pytest ## Check everything: style, types, import arrows, CRDs, then all tests

up: setup ## Start a local cluster with the operator, to play with
	@trap '$(BIN)/python -m kronos.local down; exit 130' INT TERM; \
	$(BIN)/python -m kronos.local up --process "operator=$(BIN)/python -m kronos.local.install run" && \
	eval "$$($(BIN)/python -m kronos.local env)" && \
	$(BIN)/python -m kronos.local.install wait && \
	echo "The operator runs and the fabric is applied. Here: eval \"\$$(make env)\", then kubectl apply -f a job."

down: setup ## Stop the local cluster
	@exec $(BIN)/python -m kronos.local down

env: setup ## Print the line that points kubectl at the local cluster
	@exec $(BIN)/python -m kronos.local env

cluster-up: setup ## Start a cluster of real nodes (kubelet and containerd; root) with the operator in a pod
	@exec $(BIN)/python -m kronos.local.kubelets up

cluster-down: setup ## Stop the cluster of real nodes
	@exec $(BIN)/python -m kronos.local.kubelets down

cluster-env: setup ## Print the line that points kubectl at the cluster of real nodes
	@exec $(BIN)/python -m kronos.local.kubelets env

test-cluster: setup ## Run the tests that need real nodes; exit code 4 where the machine can't run them
	@$(BIN)/python -m kronos.local.kubelets check && exec $(BIN)/pytest tests/real_nodes

setup: ## Create or refresh .venv (every other command does this first)
	$(SETUP)

images: setup ## Build the operator's and the trainer's image, and print their archives
	@exec $(BIN)/python -m kronos.local.images

crds: setup ## Write crds/ from the models
	@exec $(BIN)/python -m kronos.api.crd crds

lint: setup ## Check style, types, import arrows and that crds/ matches the models
	@echo "== style" && $(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .
	@echo "== types" && $(BIN)/mypy
	@echo "== import arrows" && $(BIN)/lint-imports --no-logo
	@echo "== CRDs" && $(BIN)/python -m kronos.api.crd crds --check

format: setup ## Format the code and mend what can be mended
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format .

pytest: setup ## Run all tests but those that need real nodes
	@# Two files at a time, since many tests wait for processes; whole files, since some share a cluster.
	@# Programs first: where they must be built, that takes minutes, which no test has.
	@echo "== tests" && $(BIN)/python -m kronos.local programs && exec $(BIN)/pytest -n 2 --dist loadfile --ignore=tests/real_nodes

bench: setup ## Measure how long planning takes, as JSON
	@PYTHONPATH=tests exec $(BIN)/python -m bench

exact: setup ## Place a thousand generated gangs and compare with the best there is, as JSON; SEED=n repeats a run
	@PYTHONPATH=tests exec $(BIN)/python -m bench.exact $(SEED)

races: setup ## Let 200 interleavings of two big jobs and a tenant race for nodes; SEED=n repeats a run
	@KRONOS_RACES=200 KRONOS_SEED=$(SEED) exec $(BIN)/pytest -q -s tests/races

clean: ## Remove what the commands made in this folder (stop the local cluster first)
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find operator trainer_image tests -name __pycache__ -prune -exec rm -rf {} +
