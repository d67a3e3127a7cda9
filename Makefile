# Ringfly's commands. `make demo` and `make test` are complete on a fresh machine (Debian, Python 3.11, g++, make).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2
N ?= 01
STARTED := $(shell date +%s)

.PHONY: setup demo test regress lint bench acceptance train clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
		|| { echo "Ringfly needs Python 3.11 (pynq 4.0 and the torch build are for it); set PYTHON=/path/to/python3.11"; exit 2; }
	@command -v g++ >/dev/null || { echo "g++ is missing: apt-get install g++ make"; exit 2; }
	@echo "installing into $(VENV) (one to two minutes)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m examples.demo --since $(STARTED)

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not slow and not board"

regress: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not board"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m sim.functional.speed --require 300e6
	$(BIN)/python -m sim.rtl.speed

acceptance: $(STAMP)
	$(BIN)/python tests/run_acceptance.py $(N)

train: $(STAMP)
	$(BIN)/python -m sw.train.gpt2_tiny --out checkpoints/gpt2-tiny

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache
