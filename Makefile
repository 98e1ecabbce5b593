# Everything is installed below this checkout: .venv (Python), .jars (Java), .state (the servers' data).
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p))))
PY := .venv/bin/python
IVY = $(firstword $(wildcard .venv/lib/python3.*/site-packages/pyspark/jars/ivy-*.jar))
# What a user exports for other tools must not reach into this installation.
unexport PYTHONPATH PYTHONHOME SPARK_HOME AIRFLOW_HOME
# Most tests wait for servers, and those of one process wait one after the other; three have servers of up to 7 GiB.
PROCESSES ?= $(shell awk '/^MemTotal/ { print $$2 < 12000000 ? 1 : 3 }' /proc/meminfo)
PARALLEL = -p tests.sidebyside -n $(PROCESSES) --dist loadscope --no-loadscope-reorder
# Long work is also followed through a pipe.
export PYTHONUNBUFFERED = 1

.PHONY: help install demo down clean test test-all test-unit model simulate faults campaign soak planted mutants bench curves lint types page reference site lock screenshot

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: .venv/.installed .jars/.installed  ## install everything into this checkout

demo: install  ## the whole line on real flights; stays until Ctrl-C
	@$(PY) -m ratchet.dev.demo

down:  ## end the demo's servers from another terminal
	@if [ -x $(PY) ]; then $(PY) -m ratchet stack down; else echo "nothing is installed, nothing runs"; fi

clean: down  ## forget the demo's data
	@rm -rf .state/demo .state/lock && echo "forgotten"

test: install .jars/store/.installed  ## everything but the longest, on embedded servers of its own
	@$(PY) -m pytest tests $(PARALLEL)

test-all: install .jars/store/.installed .jars/connect/.installed .jars/registry/.installed .jars/iceberg/.installed  ## that, clusters, faults, Debezium, a registry of schemas, a pooler, alerts, and TLS to PostgreSQL and Spark (Debian, as root: apt-get install postgresql pgbouncer nginx-light gcc prometheus chromium mariadb-server)
	@ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 \
	  || { echo "test-all needs a PostgreSQL with TLS; Debian: apt-get install postgresql" >&2; exit 1; }
	@PATH="$$PATH:/usr/sbin" command -v pgbouncer > /dev/null \
	  || { echo "test-all needs a pooler; Debian: apt-get install pgbouncer" >&2; exit 1; }
	@command -v gcc > /dev/null \
	  || { echo "test-all needs a C compiler, for clocks; Debian: apt-get install gcc libc6-dev" >&2; exit 1; }
	@PATH="$$PATH:/usr/sbin" command -v nginx > /dev/null \
	  || { echo "test-all needs a proxy with TLS; Debian: apt-get install nginx-light" >&2; exit 1; }
	@command -v prometheus > /dev/null && command -v promtool > /dev/null \
	  || { echo "test-all needs Prometheus, for the alert rules; Debian: apt-get install prometheus" >&2; exit 1; }
	@command -v chromium > /dev/null \
	  || { echo "test-all needs Chromium, for the Transactions page; Debian: apt-get install chromium" >&2; exit 1; }
	@PATH="$$PATH:/usr/sbin" command -v mariadbd > /dev/null \
	  || { echo "test-all needs MariaDB, for Debezium; Debian: apt-get install mariadb-server" >&2; exit 1; }
	@unshare --mount true 2> /dev/null || { echo "test-all mounts a disk that can be filled: run it as root, or by" \
	  "\`unshare --user --map-root-user --mount make test-all\`" >&2; exit 1; }
	@$(PY) -m pytest tests $(PARALLEL) -m "all or not all"

test-unit: install  ## the fast part, without servers
	@$(PY) -m pytest tests/unit $(PARALLEL)

model: install  ## every interleaving of the protocol's model, by spin (Debian: apt-get install spin gcc)
	@$(PY) -m tests.proof.model.check

simulate: install  ## schedules of the real ledger code, cut off between any two statements; SCHEDULES=20000 SEED=7 JOBS=2
	@$(PY) -m tests.proof.simulate $(if $(SCHEDULES),--schedules $(SCHEDULES)) $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS))

faults: install  ## every process killed at every step, and every fault of servers (SEED=1 PART=1/4, or POINT=… for one)
	@status=0; $(PY) -m tests.proof.points || status=1; test -n "$(POINT)" || $(PY) -m tests.proof.faults || status=1; exit $$status

campaign: install  ## a thousand random faults over ten million records, in parts of an hour (SEED=1 PART=1/10)
	@$(PY) -m tests.proof.campaign

soak: install  ## half an hour of steady load, and whether anything grows that should not; MINUTES=30
	@$(PY) -m tests.proof.soak

planted: install  ## wrong versions of the protocol, and which tests see them; PART=1/2, or PLANT=… for one
	@$(PY) -m tests.proof.planted

mutants: install  ## random changes of the protocol's code, and whether tests notice; MUTANTS=200 SEED=1 PART=1/4
	@$(PY) -m tests.proof.mutants

bench: install  ## how fast it is beside others, and the aims; WORKS=append,commit RUNS=3 RECORDS=4000000
	@$(PY) -m benchmarks.throughput $(if $(WORKS),--works $(WORKS)) $(if $(RUNS),--runs $(RUNS)) $(if $(RECORDS),--records $(RECORDS))

curves: install  ## how the cost grows: slices, partitions, sizes, history; CURVES=slices,messages RUNS=3 RECORDS=4000000
	@$(PY) -m benchmarks.curves $(if $(CURVES),--curves $(CURVES)) $(if $(RUNS),--runs $(RUNS)) $(if $(RECORDS),--records $(RECORDS))

lint: install  ## style, by ruff
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .

types: install  ## types, by pyright
	@.venv/bin/basedpyright

screenshot: install  ## the pictures of the docs, from a demo that runs (needs chromium); PICTURES="pipelines halted letters"
	@$(PY) docs/screenshot.py $(PICTURES)

page: install  ## the Transactions page anew from include/ratchet/page/web (Node.js 20 or later)
	@cd include/ratchet/page/web && npm ci --no-audit --no-fund && npm run build

reference: install  ## the files of docs that are made from the code: commands, their JSON, specs, error codes, metrics
	@$(PY) -m ratchet.reference

site: install  ## the docs as pages in .state/site, every link checked
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict && echo "open .state/site/index.html"

lock: .venv/.installed  ## make requirements.txt anew from pyproject.toml
	@$(PY) -m venv .state/lock && .state/lock/bin/pip install -q uv==0.13.8
	@.state/lock/bin/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --no-header \
	  --quiet -o requirements.txt

.venv/.installed: requirements.txt pyproject.toml
	@p="$(PYTHON)"; if [ -z "$$p" ] || ! "$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; then \
	  echo "ratchet needs Python 3.11, 3.12 or 3.13, and finds $${p:-none}; install one, or: make PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@echo "installing Python packages into .venv (about 2 GB, a few minutes)"
	@"$(PYTHON)" -m venv .venv || { echo "Python cannot make a virtual environment; Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PY) -m pip install -q --disable-pip-version-check --require-hashes -r requirements.txt
	@$(PY) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(PY) -m ratchet.source.compile && $(PY) -c 'import ratchet.sinks.xxh64, ratchet.formats.avro_walk, ratchet.formats.protobuf_walk'
	@touch $@

# Ivy gets a cache of its own: two installations at once that share one break each other's downloads.
.jars/.installed: ivy.xml .venv/.installed
	@$(PY) -c 'from ratchet.dev.stack.prerequisites import java; print(java())' > .venv/.java 2> .venv/.java-error \
	  || { tail -n 1 .venv/.java-error | sed 's/^[^ ]*: //' >&2; exit 1; }
	@echo "fetching Java libraries into .jars (67 MB)"
	@$(call fetched,spark broker bench) && touch $@

.jars/store/.installed: .jars/.installed
	@echo "fetching an object store for the tests into .jars/store (13 MB)"
	@$(call fetched,store) && touch $@

.jars/connect/.installed: .jars/.installed
	@echo "fetching Debezium and Kafka Connect into .jars/connect (53 MB)"
	@$(call fetched,connect) && touch $@

.jars/registry/.installed: .jars/.installed
	@echo "fetching a registry of schemas into .jars/registry (139 MB)"
	@rm -rf .jars/registry && { $(call fetched,registry); }
	@tar -xzf .jars/registry/*.tar.gz -C .jars/registry && rm .jars/registry/*.tar.gz && touch $@

.jars/iceberg/.installed: .jars/.installed
	@echo "fetching a REST catalog of Iceberg tables into .jars/iceberg (22 MB)"
	@$(call fetched,iceberg) && touch $@

# Ivy's libraries of these configurations, each in a folder of its own.
define fetched
mkdir -p .jars && "$$(cat .venv/.java)" -jar $(IVY) -ivy ivy.xml -cache .jars/cache -confs $(1) \
	  -retrieve ".jars/[conf]/[artifact]-[revision](-[classifier]).[ext]" > .jars/ivy.log 2>&1 \
	  || { echo "Ivy could not fetch the Java libraries; the end of .jars/ivy.log:" >&2; tail -n 15 .jars/ivy.log >&2; exit 1; }; \
	rm -r .jars/cache
endef
