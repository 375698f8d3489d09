# Every command a developer needs; CI runs these same targets, cheapest first (.ci/run).
PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
TEST    := $(BIN)/pytest --durations=8 --durations-min=1
UV      := $(shell command -v uv 2>/dev/null || echo $(BIN)/uv)
COMPILE := $(UV) pip compile -q --generate-hashes --no-emit-index-url --no-header --python-version 3.11
# Thread counts are fixed so that figures and golden values mean the same on any machine.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
# As the launcher sets it for workers.
export GOMP_SPINCOUNT ?= 1000
export TOKENIZERS_PARALLELISM ?= true

.PHONY: help install lock check format generate test-unit test-simulations test-local test-chaos test-cluster test-cluster-long test cluster-up cluster-down simulate bench-loop bench-overhead bench-save bench-activations bench-data bench-order bench-draw kill-resume prepare-kills store-outage form-groups bench-coordinator coordinator-kills chaos bench-replicate bench-losses bench-goodput bench-fingerprint bench-reconfigure bench-compare bench-plugs cluster-storm bench-kwok

help:            ## this list
	@grep -E '^[a-z-]+: *.*##' $(MAKEFILE_LIST) | sed -E 's/: *[a-z -]*##/ -/' | sort

$(VENV)/.made: requirements/all.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	command -v uv >/dev/null || $(BIN)/python -m pip install -q uv
	VIRTUAL_ENV=$(abspath $(VENV)) $(UV) pip sync -q --compile-bytecode --require-hashes requirements/all.txt
	VIRTUAL_ENV=$(abspath $(VENV)) $(UV) pip install -q --no-deps --no-build-isolation -e .
	touch $@

install: $(VENV)/.made   ## .venv with everything: base, train, and what checks and tests need

lock:            ## pin and hash every dependency anew (requirements/*.txt)
	$(COMPILE) pyproject.toml -o requirements/base.txt
	cd bench/compare && $(COMPILE) requirements.in -o requirements.txt
	$(COMPILE) --extra train --extra hub --extra h5 --extra s3 --extra gcs --extra wandb --group dev pyproject.toml -o requirements/all.txt

format:          ## rewrite the code the way `check` wants it
	$(BIN)/ruff format src tests bench
	$(BIN)/ruff check --fix src tests bench

generate:        ## reference pages and JSON Schema from the code
	$(BIN)/python -m headway.cli.reference

check: install   ## formatting, lint, types, import contracts, generated pages up to date
	$(BIN)/ruff format --check src tests bench
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m headway.cli.reference --check

test-unit: install   ## no processes, no network, seconds
	$(TEST) tests/unit

test-local: install  ## real training processes on this machine
	$(TEST) tests/local -m "local and not chaos"

test-chaos: install  ## the same, killed, stopped and cut off from its storage
	$(TEST) tests/local -m chaos

test-cluster: install ## on a Kubernetes of our own on this machine, as root; or HEADWAY_TEST_KUBECONFIG
	$(TEST) tests/cluster -m "cluster and not long"

test-cluster-long: install ## those of its tests that mostly wait
	$(TEST) tests/cluster -m long

cluster-up: install ## that Kubernetes, to stay up: NODES=3; prints its kubeconfig
	cd tests && $(abspath $(BIN))/python -m cluster_tool up --nodes $${NODES:-3}

cluster-down: install ## takes it away again
	cd tests && $(abspath $(BIN))/python -m cluster_tool down

test-simulations: install  ## thousands of random histories of the membership
	$(TEST) tests/simulations -m simulation

test: test-unit test-simulations test-local test-chaos test-cluster ## everything CI runs after `check`

kill-resume: install ## KILLS=30 kills at random moments, in a folder and on S3
	$(BIN)/python bench/kill_resume.py

simulate: install ## HISTORIES=100000 random histories of the membership, and the list of defects
	$(BIN)/python bench/simulate.py

prepare-kills: install ## a preparation killed KILLS=20 times, with 1, 2 and 4 processes, in 7 parts
	KILLS=$${KILLS:-20} $(BIN)/python bench/prepare_kills.py

form-groups: install ## FORMS=100 gloo groups over the session's store, a member killed in half
	FORMS=$${FORMS:-100} $(BIN)/python bench/form_group.py

coordinator-kills: install ## a coordinator killed KILLS=50 times while members come and go
	KILLS=$${KILLS:-50} $(BIN)/python bench/coordinator_kills.py

chaos: install   ## FAULTS=200 faults by SEED=1 over runs that train on, then all of it verified
	FAULTS=$${FAULTS:-200} SEED=$${SEED:-1} $(BIN)/python bench/chaos.py

store-outage: install ## a store that answers errors for OUTAGE_SECONDS=60, and a full disk
	OUTAGE_SECONDS=$${OUTAGE_SECONDS:-60} $(BIN)/pytest tests/local/test_stores_that_fail.py -m local

bench-save: install  ## cost of an asynchronous save of 1 GB a minute, and of a restart from it
	$(BIN)/python bench/save.py

bench-activations: install ## cost of activation statistics every 100 steps
	$(BIN)/python bench/activations.py

bench-data: install  ## speed of data prepare over bare tokenizers and datasets.map, and its memory
	$(BIN)/python bench/data.py

bench-order: install ## does the order look like chance? DRAWS=10000000 for each test, 15 minutes
	$(BIN)/python bench/order.py

bench-draw: install  ## time and memory of drawing a batch out of 10^6 to 10^13 tokens
	$(BIN)/python bench/draw.py

bench-coordinator: install ## 500, 2,000 and 5,000 simulated sessions against one core
	$(BIN)/python bench/coordinator.py

bench-losses: install ## each way of losing a worker REPEATS=20 times; needs root for cut networks
	$(BIN)/python bench/losses.py

bench-goodput: install ## MINUTES=30 of training with one fault a minute: time that counts, and lost by cause
	MINUTES=$${MINUTES:-30} SEED=$${SEED:-1} $(BIN)/python bench/goodput.py

bench-fingerprint: install ## cost of comparing the members' weights every 100 steps
	$(BIN)/python bench/fingerprint.py

bench-reconfigure: install ## a fresh group for each generation, and torch's way to change one in place
	$(BIN)/python bench/reconfigure.py

bench-replicate: install ## two workers over DistributedDataParallel; what membership costs a step
	$(BIN)/python bench/replicate.py

bench-compare: install ## Headway beside torchrun and torchft, FAULTS=5 of each kind; about 90 minutes
	FAULTS=$${FAULTS:-5} $(BIN)/python bench/compare

bench-plugs: install ## on the test cluster, as root: a machine without power, PLUGS=10 times
	PLUGS=$${PLUGS:-10} $(BIN)/python bench/plugs.py

cluster-storm: install ## on the test cluster: FAULTS=30 by SEED=1, one in two minutes; an hour
	FAULTS=$${FAULTS:-30} SEED=$${SEED:-1} $(BIN)/python bench/cluster_storm.py

bench-kwok: install  ## 5,000 simulated nodes: objects and calls counted, time and memory of status
	NODES=$${NODES:-5000} $(BIN)/python bench/kwok.py

bench-loop: install  ## tokens/s over a bare PyTorch loop; ends with one line of JSON
	$(BIN)/python bench/loop.py

bench-overhead: install ## milliseconds that Headway adds to a step; ends with one line of JSON
	$(BIN)/python bench/overhead.py
