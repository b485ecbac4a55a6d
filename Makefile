# Everything runs in .venv, which the first target that needs it creates; `make demo` installs no more than it needs:
#   make demo     a whole run on this machine: coordinator, dashboard, two volunteers
#   make test     the units and a few whole swarms
#   make test-all all tests: also the other swarms, browsers, notebooks and benchmarks
#   make fuzz     what attackers may send, drawn anew: 10 000 inputs for each reader, or INPUTS=... of them
#   make chaos    swarms in virtual time, with faults and liars drawn from SEEDS=1000 seeds, beginning with FIRST=0
#   make mutants  small faults in the modules that matter most: how many of them the tests notice
#   make lint     format, lint, type-check (make check: the same without changing a file, as CI does)
#   make protocol regenerate the stubs after a change of peer/protocol/*.proto
#   make bench    the benchmarks' quick forms
#   make reference  the reference's pages, from the program
#   make docs     the guide as a site, which the coordinator serves at /guide
# Options: PYTHON=python3.12 chooses the interpreter; ARGS="--steps 12 --json" goes to the command; WORKERS=... processes
# share the tests.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_STAMP := $(VENV)/installed-demo
STAMP := $(VENV)/installed
GUIDE := dashboards/guide/index.html
# The variable silences advertisements of another builder.
BUILD_GUIDE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
SOURCES := auth peer coordinator dashboards benchmarks docs tests manyhands.py
ARGS ?=
INPUTS ?= 10000
SEEDS ?= 1000
FIRST ?= 0
WORKERS ?= 2
# One thread per process: the tests and the demo start several peers on few cores.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all fuzz chaos mutants lint check protocol bench reference docs clean

help:
	@sed -n '2,12s/^# \{0,1\}//p' Makefile

install: $(STAMP)

# Only a change of the dependencies installs again: the package itself is linked (-e), not copied. Debian 12's pip builds what
# comes as source in this environment unless told otherwise, and fails while it renews setuptools there.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --use-pep517 --constraint constraints.txt --editable
# The one package that pip must compile; tests that need it are skipped without it.
KENLM = $(if $(and $(shell command -v c++),$(shell command -v cmake)),$(comma)kenlm)
comma := ,

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[demo,docs]'
	touch $@

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev$(KENLM)]' --quiet
	touch $(DEMO_STAMP) $@

demo: $(DEMO_STAMP) $(GUIDE)
	$(BIN)/manyhands demo $(ARGS)

# A demo's dashboard has the guide, too; one that cannot be built stops no demo.
$(GUIDE): mkdocs.yml $(wildcard docs/*.md docs/*/*.md) | $(DEMO_STAMP)
	-$(BUILD_GUIDE) --quiet

# A file's tests stay together, for they share what is costly to make. The files start in the order of tests/conftest.py.
# A process that dies ends the run, as a failure: xdist 3.8 would start another one, give it nothing to do and wait for ever.
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: $(STAMP)
	$(PYTEST) -m 'not thorough' $(ARGS)

# A third process computes while the swarms of two wait.
test-all: WORKERS = 3
test-all: $(STAMP)
	$(PYTEST) $(ARGS)

fuzz: $(STAMP)
	MANYHANDS_FUZZ_EXAMPLES=$(INPUTS) $(PYTEST) tests/fuzz $(ARGS)

chaos: $(STAMP)
	$(BIN)/python -m benchmarks.trust.rehearsed_chaos --seeds $(SEEDS) --first $(FIRST) --processes $(WORKERS)

mutants: $(STAMP)
	$(BIN)/python tests/mutants.py --workers $(WORKERS) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/mypy

check: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy

# The stubs import each other by the package's full name, hence the proto path is the repository's root.
protocol: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. \
		peer/protocol/control.proto
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. \
		peer/protocol/audit.proto peer/protocol/history.proto

bench: $(STAMP)
	@set -e; for benchmark in $$(grep -l '= argument_parser(' benchmarks/*/*.py); do \
		echo "== $$benchmark"; $(BIN)/python $$benchmark --quick $(ARGS); \
	done

reference: $(STAMP)
	$(BIN)/python -m docs.reference.generated

# Links and anchors that lead nowhere fail.
docs: $(STAMP)
	$(BUILD_GUIDE) --strict

clean:
	rm -rf dashboards/guide build dist mutants $(VENV) .mypy_cache .ruff_cache .pytest_cache
