# Everything a person or a machine does with this tree. Each target sets up what it needs first; see scripts/setup.
#
#   make test ARGS="-k lease"     make bench BENCH=wire     make run ARGS="--help"     S3=minio make test

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv/bin
ARGS ?=
BENCH ?=
SEEDS ?= 2000
# Test processes side by side. Four by default: tests often wait for a server. WORKERS=n changes it.
WORKERS ?= 4
MINUTES ?= 2
# Compiled modules are kept, also where the environment says otherwise: else each process of a test compiles them anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup setup-services run demo test test-clients test-kill test-storm test-spark fuzz sim chaos check format bench bench-kafka bench-s3 bench-spark docs services-up services-down lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-16s %s\n", $$1, $$2 }'

setup: ## the venv with the pinned packages, and streamhouse in it
	@scripts/setup

setup-services:
	@scripts/setup --services

run: setup ## the platform on embedded defaults, with the demo topics; Ctrl-C stops it (ARGS=…)
	@$(VENV)/streamhouse dev --demo $(ARGS)

demo: setup ## three agents share partitions; one is killed and one stops; shown step by step (ARGS=…)
	@$(VENV)/streamhouse demo $(ARGS)

test: setup-services ## every test, on a real PostgreSQL and a real S3 server (ARGS=…, WORKERS=1, S3=minio)
	@$(VENV)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-clients: ## every Kafka client × feature, on StreamHouse and on Apache Kafka; writes the page of clients (ARGS=…)
	@scripts/setup --clients
	@$(VENV)/python tests/clients/matrix.py --check $(ARGS)

test-kill: setup-services ## kill -9 a hundred times each, single nodes and fleets, at any point of the write path and under Kafka clients (KILLS=…)
	@KILLS=$${KILLS:-100} $(VENV)/python -m pytest tests/e2e/test_e2e_kill.py tests/e2e/test_e2e_kafka_kill.py $(ARGS)

test-storm: setup-services ## maintenance beside writers and readers, all killed at random, STORM_SECONDS=n on each pair of stores (SEED=…)
	@STORM_SECONDS=$${STORM_SECONDS:-300} $(VENV)/python -m pytest tests/maintenance/storm $(ARGS)

fuzz: setup ## FRAMES=n mutated Kafka requests, a million if not said, sent to servers in processes of their own (SEED=…)
	@FRAMES=$${FRAMES:-1000000} $(VENV)/python -m pytest tests/gateway/kafka/fuzz --timeout 14400 --capture no $(ARGS)

test-spark: setup-services ## the Spark tests, with driver, executor, leader and connections killed while a stream writes (SPARK_KILLS=…)
	@SPARK_KILLS=$${SPARK_KILLS:-10} $(VENV)/python -m pytest tests/spark $(ARGS)

sim: setup ## SEEDS=n seeds of the simulator: virtual time, every fault (ARGS="--seed 7 --trace" replays one)
	@$(VENV)/python -m simulator --seeds $(SEEDS) $(ARGS)

chaos: setup-services ## MINUTES=n of kills, pauses and outages under real Kafka clients, and a verdict (ARGS="--seed 7")
	@$(VENV)/streamhouse chaos --minutes $(MINUTES) $(ARGS)

check: setup ## format, lint, types, the import contract
	@failed=0; for step in "ruff format --check ." "ruff check ." mypy lint-imports; do \
		echo "check: $$step" >&2; $(VENV)/$$step || failed=1; \
	done; exit $$failed

format: setup ## put the code into shape
	@$(VENV)/ruff format .
	@$(VENV)/ruff check --fix .

bench: setup-services ## the benchmarks (BENCH=name for one)
	@$(VENV)/python bench/run.py $(BENCH)

bench-kafka: setup-services ## beside Apache Kafka 4.2, same client, alternating, in one run (ARGS="--rounds 7 --seconds 5")
	@$(VENV)/python bench/versus/compare.py $(ARGS)

bench-s3: setup-services ## one agent on PostgreSQL and S3, beside what the S3 server alone can do (ARGS="--only java,latency")
	@$(VENV)/python bench/versus/s3.py $(ARGS)

bench-spark: ## Spark: reading beside its own Kafka connector and Parquet, writing, freshness, in one run
	@scripts/setup --spark
	@$(VENV)/python bench/spark.py

docs: setup ## write the generated reference anew
	@$(VENV)/python scripts/gen_docs.py

services-up: setup-services ## PostgreSQL and S3 for a person; prints the environment to export
	@$(VENV)/python -m streamhouse.testing.services up

services-down: setup ## stop them (ARGS=--purge deletes their data)
	@$(VENV)/python -m streamhouse.testing.services down $(ARGS)

lock: setup ## pin every package anew (scripts/lock)
	@scripts/lock

clean: ## remove what was built; the venv too (running services are left alone)
	@rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests simulator bench \( -name '__pycache__' -o -name '*.so' -o -name '*.egg-info' \) -prune -exec rm -rf {} +
