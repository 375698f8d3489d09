# Every command a developer needs; CI runs these same targets, cheapest first (.ci/run).
PYTHON  ?= python3
VENV    ?= .venv
BIN     := $(VENV)/bin
TEST    := $(BIN)/pytest --durations=8 --durations-min=1
# Benches share what tests use to start, watch and break runs.
BENCH   := PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m bench
UV      := $(shell command -v uv 2>/dev/null || echo $(BIN)/uv)
COMPILE := $(UV) pip compile -q --generate-hashes --no-emit-index-url --no-header --python-version 3.11
# Thread counts are fixed so that figures and golden values mean the same on any machine.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
# As the launcher sets it for workers.
export GOMP_SPINCOUNT ?= 1000
export TOKENIZERS_PARALLELISM ?= true
# Without compiled bytecode every process that a test starts would compile Headway again.
unexport PYTHONDONTWRITEBYTECODE

# Every target is a name for work to do, none is a file of that name.
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:            ## this list
	@grep -E '^[a-z-]+: *.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/ -/' | sort

$(VENV)/.made: requirements/all.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	command -v uv >/dev/null || $(BIN)/python -m pip install -q --require-hashes -r requirements/uv.txt
	@echo "2 to 3 minutes: 3 GB of packages are downloaded the first time, unpacked to 6 GB, and compiled"
	VIRTUAL_ENV=$(abspath $(VENV)) $(UV) pip sync --compile-bytecode --require-hashes requirements/all.txt
	VIRTUAL_ENV=$(abspath $(VENV)) $(UV) pip install -q --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q -j 0 src
	touch $@

install: $(VENV)/.made   ## create .venv with all dependencies, from hashed requirement files

OLDEST := .venv-oldest
$(OLDEST)/.made: requirements/oldest.txt pyproject.toml
	$(UV) venv -q --clear --python $(BIN)/python $(OLDEST)
	VIRTUAL_ENV=$(abspath $(OLDEST)) $(UV) pip sync -q --compile-bytecode --require-hashes requirements/oldest.txt
	VIRTUAL_ENV=$(abspath $(OLDEST)) $(UV) pip install -q --no-deps --no-build-isolation -e .
	touch $@

lock:            ## update every pinned dependency and its hashes (requirements/*.txt), and the list of wheels that ship
	$(COMPILE) --extra train --extra hub --extra h5 --extra s3 --extra gcs --extra requirements --extra wandb --group dev pyproject.toml -o requirements/all.txt
	cp requirements/all.txt requirements/oldest.txt  # uv keeps the versions of a file that it writes
	$(COMPILE) -c requirements/oldest.in --extra train --extra s3 --group dev pyproject.toml -o requirements/oldest.txt
	$(COMPILE) -c requirements/all.txt pyproject.toml -o requirements/base.txt
	$(COMPILE) -c requirements/all.txt --extra s3 pyproject.toml requirements/wheels.in --no-emit-package numpy -o requirements/wheels.txt
	$(COMPILE) -c requirements/all.txt --extra s3 --extra gcs pyproject.toml requirements/wheels.in requirements/image.in -o src/headway/kube/image_requirements.txt
	$(COMPILE) -c requirements/all.txt --extra s3 --extra gcs --group build pyproject.toml -o requirements/core.txt
	$(BIN)/python docker/wheels.py lock $(VENV)/share/headway/wheels
	$(COMPILE) -c requirements/all.txt bench/compare/requirements.in -o bench/compare/requirements.txt
	echo uv | $(COMPILE) -c requirements/all.txt - -o requirements/uv.txt
	$(COMPILE) -c requirements/all.txt --group release -o requirements/release.txt

format:          ## format the code and apply the linter's fixes
	$(BIN)/ruff format src tests bench docker tools
	$(BIN)/ruff check --fix src tests bench docker tools

generate:        ## write the reference pages and the JSON Schema from the code
	$(BIN)/python -m tools.reference

check: install   ## formatting, lint, types, import contracts, generated pages up to date
	$(BIN)/ruff format --check src tests bench docker tools
	$(BIN)/ruff check src tests bench docker tools
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.reference --check

test: install    ## what to run after `make install`: quick unit tests and the journey of a first hour; no root, no cluster, five minutes
	$(TEST) -n 3 --dist loadfile tests/unit -m "not slow and not long"
	$(TEST) tests/local/test_first_hour.py -k own_text

gate:            ## everything CI runs, cheapest first: .ci/run, which also runs single tiers
	.ci/run

nightly:         ## the tiers that the gate has no time for, as root; what has passed on this commit is not run again
	.ci/run nightly

affected: check  ## tests of what has changed since BASE (default: the upstream branch), in minutes, each with its reason
	$(BIN)/python -m tools.affected $(if $(BASE),--base $(BASE))

test-unit: install   ## pure functions, and edges with fakes, in three processes: some wait
	$(TEST) -n 3 --dist loadfile tests/unit -m "not long"

test-unit-long: install ## unit tests that mostly wait; each says why it is not in the gate
	$(TEST) -n 2 --dist loadfile tests/unit -m long

slow-tests: install ## measure which unit tests take more than 0.2 s, which `make test` leaves out: tests/unit/slow.txt
	REMEMBER_SLOW=1 $(TEST) -n 2 --dist loadfile tests/unit

test-local: install  ## real training processes on this machine, some of them killed, stopped or cut off from their storage
	$(TEST) tests/local -m "not long"

test-chaos: install  ## of these, the ones with processes that are killed, stopped and cut off
	$(TEST) tests/local -m "chaos and not long"

test-local-long: install ## local tests that mostly wait; each says why it is not in the gate
	$(TEST) tests/local -m long $(foreach name,prometheus prometheus_parser,--ignore tests/local/test_$(name).py)

OLDEST_TESTS := tests/unit/train tests/local/test_lost_peers.py tests/local/test_export.py \
	tests/local/test_same_at_any_number_of_workers.py tests/local/test_losing_workers.py tests/local/test_restart.py
test-oldest: install $(OLDEST)/.made ## what rests on torch and transformers, with the oldest versions that Headway takes
	$(OLDEST)/bin/pytest --durations=8 --durations-min=1 $(OLDEST_TESTS) -m "not long"

images: install  ## core, CPU and CUDA images, built by buildah on a base made by debootstrap; as root, 20 minutes
	$(TEST) tests/images

test-prometheus: install ## a Prometheus of this machine reads runs, here and on the test cluster: apt-get install prometheus
	$(TEST) tests/local/test_prometheus_parser.py tests/local/test_prometheus.py tests/cluster/test_prometheus.py

test-karpenter: install ## on the test cluster: Karpenter makes machines for a launch and for a lost pod; builds it with Go, 10 minutes
	$(TEST) tests/cluster/test_karpenter.py

test-kueue: install ## a real Kueue on the test cluster: a run is queued, admitted, scaled, preempted and comes back
	$(TEST) tests/cluster/test_kueue.py

test-target-faults: install ## faults planted on the test cluster, each found by `headway target check` and gone after its fix; 15 minutes
	$(TEST) tests/cluster/test_target.py

test-cluster: install ## runs on a Kubernetes made on this machine, as root, or on HEADWAY_TEST_KUBECONFIG
	$(TEST) tests/cluster -m "not long"

test-journey: install ## the tutorials in examples/ as their readers type them, at small size, on the same Kubernetes
	$(TEST) tests/cluster -m journey

# Those that have a target of their own are tiers of their own.
test-cluster-long: install ## cluster tests that mostly wait, or that test the cluster tool itself
	$(TEST) tests/cluster -m long $(foreach name,karpenter kueue prometheus target,--ignore tests/cluster/test_$(name).py)

cluster-up: install ## start that Kubernetes and leave it running: NODES=3; prints its kubeconfig
	cd tests && $(abspath $(BIN))/python -m cluster_tool up --nodes $${NODES:-3}

cluster-down: install ## stop and remove it
	cd tests && $(abspath $(BIN))/python -m cluster_tool down

test-simulations: install  ## random histories of the membership, and planted defects, in two processes
	$(TEST) -n 2 --dist worksteal tests/simulations

test-simulations-long: install ## ten times as many
	HISTORIES=25000 $(TEST) -n 2 --dist worksteal tests/simulations

check-workflows: ## actionlint over .github/workflows and examples/gpu-proof; Go builds it
	go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.7 -color .github/workflows/*.yml examples/gpu-proof/workflow.yml

kill-resume: install ## a run killed and resumed KILLS=30 times, in a folder and on S3
	$(BENCH).kill_resume

prove-rehearsal: install ## headway prove from end to end, on the CPU if there is no GPU; 3 to 10 minutes
	$(BENCH).prove

ran-on: install  ## write what headway prove found into the table of docs/status.md: FILE=prove.json
	FILE=$${FILE:-prove.json} $(BIN)/python -m tools.ran_on

made-before: install ## record anew what tests/local/test_made_before.py reads; not after a release
	$(BIN)/python -m tools.made_before

simulate: install ## HISTORIES=100000 random histories of the membership, and planted defects; REMEMBER=1 keeps the seeds that found them
	$(BENCH).simulate

prepare-kills: install ## a preparation killed KILLS=20 times, with 1, 2 and 4 processes, in 7 parts
	KILLS=$${KILLS:-20} $(BENCH).prepare_kills

form-groups: install ## FORMS=100 gloo groups over the session's store, a process killed in half of them
	FORMS=$${FORMS:-100} $(BENCH).form_group

coordinator-kills: install ## a coordinator killed KILLS=50 times while members join and leave
	KILLS=$${KILLS:-50} $(BENCH).coordinator_kills

chaos: install   ## FAULTS=200 faults by SEED=1 in runs that keep training, then all of it verified
	FAULTS=$${FAULTS:-200} SEED=$${SEED:-1} $(BENCH).chaos

store-outage: install ## a store that returns errors for OUTAGE_SECONDS=60, and a full disk
	OUTAGE_SECONDS=$${OUTAGE_SECONDS:-60} $(BIN)/pytest tests/local/test_stores_that_fail.py -m local

bench-save: install  ## cost of one asynchronous save of 1 GB a minute, and of a restart from it
	$(BENCH).save

bench-compile: install ## seconds to the first step with memory.compile, REPEATS=5 times empty and with the cache, in turns
	REPEATS=$${REPEATS:-5} $(BENCH).compile_cache

bench-restore: install ## a restore of 2 GB from an S3 server beside raw reads of the same bytes
	$(BENCH).restore

bench-lean: install  ## memory of each of 4 ranks while a model of 1.35B parameters is built, and of its export
	$(BENCH).lean

bench-activations: install ## cost of activation statistics every 100 steps
	$(BENCH).activations

bench-memory: install ## memory that plan predicts against what torch allocates, in real steps
	$(BENCH).memory

memory-page: install ## write the published figures of memory, beside what plan predicts, into the docs
	$(BENCH).memory_page

bench-data: install  ## speed of data prepare against bare tokenizers and datasets.map, and its memory
	$(BENCH).data

bench-fast-bpe: install ## processor time of encoding by words beside the tokenizer, for eight families, or FILES=tokenizer.json ...
	$(BENCH).fast_bpe $(FILES)

bench-order: install ## statistical tests of the sample order, DRAWS=10000000 each; 15 minutes
	$(BENCH).order

bench-draw: install  ## time and memory of drawing a batch out of 10^6 to 10^13 tokens
	$(BENCH).draw

bench-table: install ## time and memory of opening a set of 300,000 shards
	$(BENCH).table

bench-coordinator: install ## 500, 2,000 and 5,000 simulated sessions with a coordinator on one core
	$(BENCH).coordinator

rehearse: install ## the closed form of memory against the real step on tensors without memory, all presets, up to 64 ranks
	$(BENCH).rehearse

bench-form: install ## 64 to 512 simulated members exchange their addresses: processor time and bytes of the coordinator
	$(BENCH).form_many

bench-worlds: install ## 8 to 64 real processes form a restart world: requests to the session and to the first rank's store; 2 minutes
	$(BENCH).form_world

bench-many: install ## as many workers as fit in GIGABYTES=20, at most MOST=64, train together, lose a quarter at once ROUNDS=3 times, and heal; 10 minutes
	$(BENCH).many

bench-join: install ## one of four workers gets a state of 1 GB from the other three, beside a broadcast to all: their pause and the bytes sent; 2 minutes
	$(BENCH).join

bench-cold-start: install ## four workers start from a checkpoint of 1 GB: bytes that they read of it over its size; 5 minutes
	$(BENCH).cold_start

bench-heartbeats: install ## how late heartbeats of real workers are on a machine with several times its work, SECONDS=150; OUT=FILE
	$(BENCH).heartbeat_delays

bench-silence: install ## living members that a group of 5,000 loses by their silence: HOURS=200 simulated, with the delays measured under load; 5 minutes
	$(BENCH).silence

bench-buckets: install ## seconds to all-reduce 64 MiB by number of processes (SIZES=2,4,8,16) and size of the buckets
	$(BENCH).buckets

bench-old-run: install ## a save, a change, status and list after GENERATIONS=10000 and 10^6 steps beside a young run, on an S3 server; 10 minutes
	$(BENCH).old_run

bench-losses: install ## each way of losing a worker, REPEATS=20 times; cut networks need root
	$(BENCH).losses

bench-launchers: install ## a run that torchrun starts: KILLS=10, the ledger and losses exact; recoveries beside ours
	$(BENCH).launchers

bench-goodput: install ## MINUTES=30 of training with one fault a minute: time that counts, time lost by cause
	MINUTES=$${MINUTES:-30} SEED=$${SEED:-1} $(BENCH).goodput

bench-fingerprint: install ## cost of comparing the workers' weights every 100 steps
	$(BENCH).fingerprint

bench-reconfigure: install ## a fresh group for each generation against torch's change of one in place
	$(BENCH).reconfigure

bench-replicate: install ## two workers against DistributedDataParallel, and the cost of membership per step
	$(BENCH).replicate

bench-shard: install ## sharded workers, one copy and two, beside bare FSDP2 and its two-dimensional mesh
	$(BENCH).shard

bench-compare: install ## Headway beside torchrun and torchft, FAULTS=5 of each kind; about two hours
	FAULTS=$${FAULTS:-5} $(BENCH).compare

bench-faults: install ## Headway, both ways, and six others under the same faults, MINUTES=3 of each of two kinds; 80 minutes, resumed with RECORD=FILE
	MINUTES=$${MINUTES:-3} $(BENCH).faults

defects: install ## sixteen defects planted by SEED=35, and which tests catch each; hours, resumed where it was cut off
	$(BENCH).defects

faults-page: install ## the table and the plot of docs/concepts/under-faults.md, of what bench-faults printed: FILE=faults.json
	FILE=$${FILE:-faults.json} $(BENCH).faults.page

bench-restart: install ## elastic: restart beside torchrun, two workers: from a kill to the next step, FAULTS=5 of each
	NODES=2 TOOLS=restart,torchrun KINDS=kill FAULTS=$${FAULTS:-5} $(BENCH).compare

bench-scripts: install ## the four of examples/scripts lose a node LOSSES=5 times each, beside torchrun: to all processes, and to the next step; an hour
	LOSSES=$${LOSSES:-5} $(BENCH).scripts

bench-plugs: install ## on the test cluster, as root: a node loses power PLUGS=10 times
	PLUGS=$${PLUGS:-10} $(BENCH).plugs

bench-stream: install ## on the test cluster, as root: a run begins while its text is prepared, in PREPARE_SECONDS=600
	PREPARE_SECONDS=$${PREPARE_SECONDS:-600} $(BENCH).stream

bench-own-rows: install ## bytes and requests of a node's workers beside their rows, and waits on an S3 server 30 ms away; 2 minutes
	$(BENCH).own_rows

bench-prepare-on-target: install ## on the test cluster, as root: 2,000 Parquet files in a bucket, TOKENS=1000000000, prepared while KILLS=30 pods are lost; verified against the files
	TOKENS=$${TOKENS:-1000000000} KILLS=$${KILLS:-30} $(BENCH).prepare_on_target

cluster-storm: install ## on the test cluster, as root: FAULTS=30 by SEED=1, one in two minutes; an hour
	FAULTS=$${FAULTS:-30} SEED=$${SEED:-1} $(BENCH).cluster_storm

bench-kwok: install  ## 5,000 simulated nodes: objects and calls, time and memory of status
	NODES=$${NODES:-5000} $(BENCH).kwok

fit-time: install    ## efficiencies of plan, fitted to half of the published throughputs; the other half predicted; 3 minutes
	$(BENCH).fit_time

bench-plan-time: install ## six runs of SECONDS=200 on the CPU, planned from the steps of a short run: predicted beside taken; 25 minutes
	$(BENCH).plan_time

bench-loop: install  ## tokens/s against a bare PyTorch loop
	$(BENCH).loop

bench-time-left: install ## time left after a tenth of a run beside the truth, in five kinds of run
	$(BENCH).time_left

bench-display: install ## processor time that metrics and the terminal add to a step of preset tiny
	$(BENCH).display

bench-overhead: install ## milliseconds that Headway adds to a step
	$(BENCH).overhead

bench-edit: install ## what an edit of one line adds to a launch on the test cluster, REPEATS=10 of each kind
	REPEATS=$${REPEATS:-10} $(BENCH).edit

bench-report: install ## a report of STEPS=1000000 steps: size, seconds to open in Chromium, time and memory to make it
	$(BENCH).report

pictures: install ## the pictures in docs/images, of real runs whose workers are killed; Chromium and tmux, 10 minutes
	$(BENCH).pictures
