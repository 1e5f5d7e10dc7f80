# The project's commands. `make demo` and `make test` set up everything they need on a fresh machine that has
# Python 3.11+, a C++17 compiler and make.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV ?= .venv
PYTHON ?= python3
# Which torch to install; on a machine without a GPU name a CPU build here.
TORCH ?= torch==2.13.0
PYTEST_FLAGS ?= -n 2 --dist loadfile
SANITIZE_SECONDS ?= 20
# The seeds that continuous integration simulates; 0..99999 is for a machine with an hour to spare.
SEEDS ?= 0..9999

BIN := $(VENV)/bin
# Compiling every module of torch and transformers would take longer than compiling those that are used, when they are.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
PACKAGES := kv_types kv_policy kv_wire cache_l1 cache_l2 cache_l3 invalidation inference_worker sidecar stratakv benchmarks
NATIVE := CMakeLists.txt $(wildcard cache_l[23]/native/*.[ch]pp kv_policy/native/*.[ch]pp)

.PHONY: help demo test test-vllm check lint types contracts gen gen-check bench bench-vllm sim sim-hunt sanitize native clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp an extra, each extra holding those before it: the set-up runs again when its inputs change, and not otherwise.
define install
	@echo "Setting up $(VENV) with [$(1)]: torch, transformers and the native core (a few minutes the first time)"
	$(PIP) "$(TORCH)"
	$(PIP) -e ".[$(1)]"
endef

$(VENV)/.demo: pyproject.toml $(NATIVE) | $(BIN)/python
	$(call install,demo)
	@touch $@

$(VENV)/.test: pyproject.toml $(NATIVE) | $(BIN)/python
	$(call install,test)
	@touch $(VENV)/.demo $@

$(VENV)/.dev: pyproject.toml $(NATIVE) | $(BIN)/python
	$(call install,dev)
	@touch $(VENV)/.demo $(VENV)/.test $@

demo: $(VENV)/.demo ## See a real model skip most of a prefill
	$(BIN)/python examples/first_light.py $(DEMO_FLAGS)

test: $(VENV)/.test ## Run all tests
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

test-vllm: ## Run the tests with the real vLLM, in an environment of its own outside the tree
	PYTHON=$(PYTHON) tests/vllm/run.sh $(VLLM_PYTEST_FLAGS)

check: lint types contracts gen-check ## Lint, types, import contracts, generated files

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy $(PACKAGES) tests examples

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

gen: $(VENV)/.dev ## Regenerate what is generated from the proto and the settings
	$(BIN)/python -m kv_wire.generate
	$(BIN)/python docs/generate_api.py
	$(BIN)/python docs/generate_configuration.py
	$(BIN)/python docs/generate_mutations.py

gen-check: $(VENV)/.dev
	$(BIN)/python -m kv_wire.generate --check
	$(BIN)/python docs/generate_api.py --check
	$(BIN)/python docs/generate_configuration.py --check
	$(BIN)/python docs/generate_mutations.py --check

bench: $(VENV)/.demo ## Measure, and regenerate docs/benchmarks.md
	$(BIN)/python -m benchmarks.report

bench-vllm: ## Measure vLLM with and without us, and regenerate its part of docs/benchmarks.md
	PYTHON=$(PYTHON) tests/vllm/run.sh --python -m benchmarks.report --only vllm

sim: $(VENV)/.test ## Simulate fleets: SEED=n shows one history, SEEDS=a..b runs many
	$(BIN)/python -m tests.sim.run $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

sim-hunt: $(VENV)/.test ## Look for seeds that find the mutations of the simulation: all that nothing finds, or MUTATIONS="3 26"
	$(BIN)/python -m tests.sim.mutations.hunt $(MUTATIONS)
	$(BIN)/python docs/generate_mutations.py

sanitize: ## Stress the native core under ThreadSanitizer and AddressSanitizer
	tests/native/run.sh thread $(SANITIZE_SECONDS)
	tests/native/run.sh address $(SANITIZE_SECONDS)

native: | $(BIN)/python ## Rebuild the native modules into the tree (the quick inner loop)
	cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	cmake --build build/dev
	# New files: one that is overwritten in place ends who runs it.
	install -m 755 build/dev/_native*.so cache_l2/
	install -m 755 build/dev/cache_l3/_native*.so cache_l3/
	install -m 755 build/dev/kv_policy/_native*.so kv_policy/

clean: ## Remove what was built, not the environment
	rm -rf build demo-output cache_l[23]/_native*.so kv_policy/_native*.so
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
