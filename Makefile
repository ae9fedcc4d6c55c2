# Penstock. `make serve` and `make test` are all that a newcomer needs; `make help` lists the rest.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUST   := $(shell git ls-files '*.rs' '*Cargo.toml' Cargo.lock pyproject.toml 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help serve test rust-test extension-test python-test gpu-test client-test mutants lint fmt bench proto openapi wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.release ## build, then serve the model that ships with Penstock on 127.0.0.1:3000
	$(BIN)/penstock serve

test: lint rust-test python-test ## everything that CI runs

rust-test: ## Rust unit, simulation and integration tests
	cargo test --quiet --workspace --exclude penstock-python

extension-test: $(VENV)/.tools ## Rust unit tests of the Python extension: they link with the interpreter's library
	PYO3_PYTHON=$(abspath $(BIN))/python cargo test --quiet -p penstock-python

python-test: $(VENV)/.dev ## Python tests: kernels, worker, parity, contract, end to end, tidy
	$(BIN)/python -m pytest

gpu-test: $(VENV)/.dev ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

client-test: $(VENV)/.dev ## tests with large clients: LangChain, LiteLLM, instructor, pydantic-ai, lm-eval, text-generation, node's openai
	. $(BIN)/activate && PIP_QUIET=1 maturin develop --quiet --extras test,clients
	$(BIN)/pip install --quiet --no-deps text-generation
	$(BIN)/python -m pytest -rs $(addprefix tests/contract/test_,langchain.py litellm.py instructor.py pydantic_ai.py lm_eval.py text_generation_client.py node_client.py)

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

lint: $(VENV)/.dev ## formatting, clippy, ruff, mypy
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
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
	cargo run --quiet -p penstock-router --example openapi > docs/openapi.json

wheel: $(VENV)/.tools ## one wheel with everything, in dist/
	$(BIN)/maturin build --release --out dist

clean: ## remove the environment and all builds
	rm -rf $(VENV) target dist kernels/build

$(VENV)/.tools:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip 'maturin>=1.9,<2'
	touch $@

# One extension at a time lives in the source tree: a build of one kind outdates the other's stamp.
$(VENV)/.release: $(VENV)/.tools $(RUST)
	. $(BIN)/activate && PIP_QUIET=1 maturin develop --quiet --release
	rm -f $(VENV)/.dev && touch $@

$(VENV)/.dev: $(VENV)/.tools $(RUST)
	. $(BIN)/activate && PIP_QUIET=1 maturin develop --quiet --extras test
	rm -f $(VENV)/.release && touch $@
