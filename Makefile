# make demo   run the main job on real data          make test   install and run the tests
# make unit   the tests without processes: a minute        make test-all  besides, those that take minutes, as CI does
# make pure   the same tests with the Python code in place of the C core
# make install  the command, .venv/bin/pocketmq, without what development needs
# make dev    install for development                make check  format, lint, types, imports
# make dev-core  install what `make unit` and `make check` need: no Spark, no browser, no frameworks
# make bench  print every figure of the README       make proto  regenerate the gRPC code
# make campaign  kill -9 under load, 200 times; five virtual minutes of trouble in a group, a million messages:
#                nothing acknowledged may be missing; every operation on files fails once, each way it can; flipped bits
#                and spoilt sectors in 3,000 verified stores: no wrong message is read, none that was not hit is lost, all
#                else is told; 100,000 long polls that a consumer cancels: it is never cut off
#                10,000 random walks of replica sets, and as many as each broken rule takes to be found out
#                10,000 sets of whole brokers in trouble, on recorded disks, and the loss where one acknowledges by a
#                set that shrank for it alone
#                200 failovers of three replicas with a real ZooKeeper, under trouble of every kind
#                every file of a store is cut short, after a clean stop and after a kill
#                a Java master is followed, either side killed 20 times
#                a session is crashed before each of its operations on files, in every way that a crash can leave it
#                every decoder gets bytes that atheris mutates, ten minutes each
# make fuzz      the same for a minute each
# make mutants   plant one bug after another in a copy of the sources, and name the test that fails because of it
# make interop   all scenarios of Apache's own clients, in the languages whose tool chains are there, three times, and once
#                on grpcio; the Java client while it, or the broker, is held up; Python and Java through ten failovers
# make structure   measure the structure of the code: each figure with its limit and its goal, and the private words.
#                With FILES="a.py b.md": only the private words in these files
# make demo-svg   draw docs/img/demo.svg, the terminal in README, from README's quickstart
# make prose   measure the prose of README and docs, and show the pages with the longest sentences
# make call-paths  update the call paths in docs/architecture.md and the drawing docs/packages.svg
# make reference   update the generated tables and sections of the reference in docs/ (a test compares)
# make sync      regenerate client/sync/gen, the clients for ordinary threads, from those for coroutines (a test compares)
# make site      the documents as a site, in build/site
# make site-version VERSION=0.2   commit this site as that version to the branch gh-pages (mike). PUSH=1 also pushes it
# make grpcio    the tests that serve, on grpcio instead of our own HTTP/2
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What `make unit` and `make check` need: the core alone is enough where only that was installed.
CORE := $(if $(wildcard $(VENV)/.dev),$(VENV)/.dev,$(if $(wildcard $(VENV)/.dev-core),$(VENV)/.dev-core,$(VENV)/.dev))

# Tests compile each module once, for all processes that they start, also where the environment would have none keep it.
test unit pure test-long test-all campaign fuzz interop grpcio: export PYTHONDONTWRITEBYTECODE :=

# Tests keep their stores in memory if it has enough space: they do not test the speed of a disk, and many wait for it. The
# largest tests of all have some gigabytes at once.
in_memory = $(shell [ "$$(df -P -k /dev/shm 2>/dev/null | awk 'END { print int($$4) }')" -gt $(1)000000 ] && echo /dev/shm)
unit pure: export PYTEST_DEBUG_TEMPROOT := $(call in_memory,2)
test test-long: export PYTEST_DEBUG_TEMPROOT := $(call in_memory,8)
campaign: simulated := $(addprefix TMPDIR=,$(call in_memory,8))

.PHONY: demo install test unit pure test-long test-all dev dev-core check check-style check-mypy check-pyright bench campaign fuzz mutants interop structure demo-svg prose call-paths reference grpcio proto proto-check sync site site-version clean

demo: $(VENV)/.demo
	$(BIN)/pocketmq demo

install: $(VENV)/.demo
	@echo "installed: $(BIN)/pocketmq, $$($(BIN)/python -c 'from pocketmq.proto import speedups; print(speedups.described())') (start with: $(BIN)/pocketmq serve)"

# Without `--max-worker-restart 0`, pytest-xdist waits for ever for the tests that a worker that ended by itself had left.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile -m "not long"

# The tests of the repository run first: one worker parses all sources. At the end, two workers would share them and both
# would parse.
unit: $(CORE)
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not (processes or java or spark or campaign or slow or long)" \
	  --hypothesis-profile quick tests/repository tests/proto tests/store tests/nameserver tests/broker tests/client

pure: $(CORE)
	POCKETMQ_PURE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q --hypothesis-profile quick \
	  -m "not (processes or java or spark or campaign or slow or long)" tests/proto tests/store tests/broker tests/client

test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -n 3 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder -m "long and not alone"
	$(BIN)/python -m pytest -m "long and alone"

test-all: test test-long

dev: $(VENV)/.dev

dev-core: $(VENV)/.dev-core

# The two that take long are targets of their own: `make -j2 check` has them run side by side.
check: check-style check-mypy check-pyright

check-style: $(CORE) .dev/pocketmq
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

check-mypy: $(CORE) .dev/pocketmq
	$(BIN)/mypy

check-pyright: $(CORE) .dev/pocketmq
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.dev
	$(BIN)/pocketmq bench all

campaign: $(VENV)/.fuzz
	$(BIN)/python -m tests.crash.kill_campaign --kills 200
	$(BIN)/python -m tests.crash.timer_campaign --kills 100
	$(BIN)/python -m tests.crash.damage_campaign --rounds 3000
	$(BIN)/python -m tests.crash.idempotence_campaign --kills 50
	$(BIN)/python -m tests.crash.fault_campaign
	$(simulated) $(BIN)/python -m tests.crash.crash_matrix --seeds 3 --any 4
	$(BIN)/python -m tests.proto.core_campaign --seconds 600
	$(BIN)/python -m tests.fuzz.campaign --seconds 600
	$(BIN)/python -m tests.proto.http2.honest_campaign --times 100000
	$(BIN)/python -m tests.simulation.replica_campaign --walks 10000 --mutant-walks 20000 --depth 40
	$(simulated) $(BIN)/python -m tests.simulation.broker_campaign --seeds 10000
	$(simulated) $(BIN)/python -m tests.simulation.broker_campaign --seeds 100 --mutant "3 acknowledges by the smaller set"
	$(BIN)/python -m tests.campaigns.replicas --failovers 200
	for kind in pull push ordered; do for trouble in members name-server broker links clock all; do \
	  $(BIN)/python -m tests.simulation.group_campaign --kind $$kind --trouble $$trouble || exit 1; done; done
	CUT_AFTER_BOTH=1 $(BIN)/python -m pytest -q tests/integration/test_files_cut_short.py
	FOLLOW_KILLS=20 $(BIN)/python -m pytest -q tests/interop/test_java_followed.py tests/interop/test_java_follows.py

fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz.campaign

mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants

interop: $(VENV)/.dev
	$(BIN)/python -m tests.interop.official.campaign --repeat 3
	$(BIN)/python -m tests.interop.official.campaign --grpc grpcio
	$(BIN)/python -m tests.interop.official.stalls
	$(BIN)/python -m tests.interop.official.failovers

structure: $(CORE)
	$(BIN)/python -m tests.repository.structure $(FILES)

demo-svg: $(CORE)
	$(BIN)/python -m tests.repository.demo_svg

prose: $(CORE)
	$(BIN)/python -m tests.repository.prose

call-paths: $(CORE)
	$(BIN)/python -m tests.repository.update_architecture

reference: $(CORE)
	$(BIN)/python -m tests.repository.reference

grpcio: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --grpc grpcio tests/integration tests/interop tests/nameserver

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "PocketMQ needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

# An installation builds the C core, where a C compiler is.
BUILT_FROM := pyproject.toml setup.py proto/_speedups.c

# An editable installation warns of itself each time, whatever the project does.
$(VENV)/.demo $(VENV)/.dev: export PYTHONWARNINGS := ignore:::setuptools.command.editable_wheel

$(VENV)/.demo: $(BUILT_FROM) | $(BIN)/python
	PYTHONWARNINGS="ignore:Editable installation" $(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.dev: $(BUILT_FROM) | $(BIN)/python
	PYTHONWARNINGS="ignore:Editable installation" $(BIN)/python -m pip install --quiet -e . --group dev
	touch $@ $(VENV)/.demo

$(VENV)/.fuzz: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --group fuzz
	touch $@

$(VENV)/.dev-core: $(BUILT_FROM) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e . --group dev-core
	touch $@ $(VENV)/.demo

.dev/pocketmq:                        # lets tools that find packages by folder name see the root as "pocketmq"
	mkdir -p .dev && ln -s .. .dev/pocketmq

# The virtual path pocketmq/proto/gen makes the generated modules import each other by their real names. What is not
# ours goes into a pool of its own (proto/private_pool.py).
proto: $(VENV)/.dev
	rm -rf .dev/gen && mkdir -p .dev/gen
	$(BIN)/python -m grpc_tools.protoc -I pocketmq/proto/gen=proto --python_out=.dev/gen --pyi_out=.dev/gen \
	  $(patsubst proto/%,pocketmq/proto/gen/%,$(wildcard proto/*.proto))
	sed -i 's/^from google.protobuf import descriptor_pool as _descriptor_pool/from .. import private_pool as _private_pool/; s/_descriptor_pool.Default()/_private_pool.POOL/' \
	  $(patsubst %,.dev/gen/pocketmq/proto/gen/%_pb2.py,rocketmq_v2 otlp_metrics opencensus \
	  grpc_health grpc_reflection grpc_reflection_v1alpha)
	cp .dev/gen/pocketmq/proto/gen/*_pb2.py .dev/gen/pocketmq/proto/gen/*_pb2.pyi proto/gen/

sync: $(VENV)/.dev
	$(BIN)/python -m tests.repository.sync_api

# The documents as a site in build/site, with an API reference; a link that leads nowhere fails it. (With --quiet, mkdocs
# counts no warnings, and `strict` has no effect.)
site: $(VENV)/.docs .dev/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

site-version: $(VENV)/.docs .dev/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --update-aliases $(if $(PUSH),--push) $(VERSION) latest
	NO_MKDOCS_2_WARNING=1 $(BIN)/mike set-default $(if $(PUSH),--push) latest

.dev/site:                            # the package without the environments in the root, for the API reference
	mkdir -p .dev/site/pocketmq
	for name in __init__.py client proto tools; do ln -sfn ../../../$$name .dev/site/pocketmq/$$name; done

$(VENV)/.docs: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

proto-check: proto
	git diff --exit-code -- proto/gen

clean:
	rm -rf $(VENV) .dev build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
