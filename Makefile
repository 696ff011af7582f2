# `make` targets for people and for CI. Everything installs into .venv from uv.lock.
SHELL := /bin/bash
PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
SYNC := UV_PROJECT_ENVIRONMENT=$(VENV) $(UV) sync --locked --quiet --inexact

# The tests start hundreds of processes. Each one compiles all modules that it imports, for about a
# second, where the environment forbids to keep the result.
unexport PYTHONDONTWRITEBYTECODE

WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 1) + 1)
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal

SOURCES := raftmq tests bench demo docs/generate.py docs/chapters.py

.PHONY: help setup test campaign all-tests demo demo-pipeline check fix chaos soak mutants known-bugs seeds peers bench bench-alone docs chapters clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(UV):
	$(PY) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check 'uv>=0.9'

$(VENV)/.dev: $(UV) uv.lock pyproject.toml
	$(SYNC)
	touch $@

setup: $(VENV)/.dev  ## make .venv with the locked dependencies
	@$(SYNC)  # `pip install .` in .venv puts a copy of the code there, which tests would import

test: tools  ## run the tests, all but the campaigns
	$(PYTEST) -m "not campaign"

campaign: tools  ## run the long tests: random faults for minutes, mutants of whole brokers, killed drivers
	$(PYTEST) -m campaign

all-tests: tools  ## both in one run: the campaigns use the time that the others wait
	$(PYTEST) --durations=30 --durations-min=20

.PHONY: tools
tools: setup
	@if pkg-config --exists fuse3; then $(SYNC) --extra chaos-disk; fi
	@$(BIN)/raftmq pipeline prepare || echo 'the tests that start Spark take longer'

demo: setup  ## kill a leader mid-stream, prove that nothing is lost (ARGS="--rows 20000")
	$(SYNC) --group demo
	$(BIN)/python -m demo $(ARGS)

demo-pipeline: setup  ## the same through Spark: kill the leader and both drivers, prove that all is exact
	$(SYNC) --group demo
	$(BIN)/python -m demo.pipeline $(ARGS)

check: setup  ## read-only gate: format, lint, types, import contracts, fast tests, docs
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -m "not process and not campaign"
	$(SYNC) --group docs
	$(BIN)/zensical build --strict

fix: setup  ## edit what the formatter and the linter can mend
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

chaos: setup  ## play seeds in both simulators, keep what fails in build/chaos (ARGS="--seeds 1..9")
	$(BIN)/raftmq chaos run --world core --seeds 1..500 --artifacts build/chaos/core $(ARGS)
	$(BIN)/raftmq chaos run --world sim --seeds 1..100 --artifacts build/chaos/sim $(ARGS)

soak: setup  ## play runs of every kind for an hour, add a row to docs/chaos/soak.* (ARGS="--hours 6")
	$(BIN)/raftmq chaos soak --artifacts build/soak --book docs/chaos/soak.json $(ARGS)

peers: setup  ## fetch the brokers that raftmq is measured beside into build/peers (ARGS="nats kafka")
	$(SYNC) --group bench
	$(BIN)/python -m bench.peers.install $(ARGS)

bench: setup  ## measure raftmq, the floor and the peers; writes docs/benchmarks.* (ARGS="--help")
	$(SYNC) --group bench
	$(BIN)/python -m bench.run $(ARGS)

bench-alone: setup  ## measure filters, popping, security, embedding and pipeline; writes docs/benchmarks-*.json
	$(SYNC) --group bench
	$(BIN)/python -m bench.cores.filters --json docs/benchmarks-filters.json
	$(BIN)/python -m bench.alone.subscriptions --json docs/benchmarks-subscriptions.json
	$(BIN)/python -m bench.alone.popping --json docs/benchmarks-popping.json
	$(BIN)/python -m bench.alone.security --json docs/benchmarks-security.json
	$(BIN)/python -m bench.alone.embedded --json docs/benchmarks-embedded.json
	$(BIN)/python -m bench.pipeline.source_and_sink --json docs/benchmarks-pipeline.json
	$(BIN)/python -m bench.pipeline.jobs --json docs/benchmarks-pipeline-jobs.json
	$(BIN)/python -m bench.pipeline.live --json docs/benchmarks-pipeline-live.json
	$(BIN)/python -m bench.pipeline.check

mutants: setup  ## plant each known bug and hunt it, writes docs/chaos/mutants.* (ARGS="44 45")
	$(BIN)/python -m tests.quality.mutants $(ARGS)

known-bugs: setup  ## hunt the published bugs of pysyncobj, writes docs/chaos/known-bugs.*
	$(BIN)/python -m bench.known_bugs $(ARGS)

seeds: setup  ## clean seeds of the core simulator: no false alarm (ARGS="--seeds 10000")
	$(BIN)/python -m bench.cores.simulator $(ARGS)

docs: setup  ## write the reference pages from the code, build the site into site/
	$(BIN)/python docs/generate.py
	$(SYNC) --group docs
	$(BIN)/zensical build --strict --clean

chapters: setup  ## play what the chapters on chaos tell, and print it on them (ARGS="a-bug")
	$(BIN)/python docs/chapters.py $(ARGS)

clean:  ## remove .venv and caches
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
