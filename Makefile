# What one does with this repository: each target does its own set-up and is quick when run again.
# Needs Python 3.10 or newer with venv (PYTHON=python3.12 picks one), a C compiler and make.

PY := .venv/bin/python
# Two workers suit two cores; JOBS=8 for more.
JOBS ?= 2

.PHONY: help env demo test soak lint bench format lock clean
help:
	@echo "make demo   the main job on this machine: real Triton kernels flip, are recorded, pinned, replayed"
	@echo "make test   the tests; says what was skipped and why"
	@echo "make lint   ruff and mypy --strict"
	@echo "make soak   the long form of repeated checks"
	@echo "make bench  what is claimed about speed, as ratios in one run"
	@echo "make lock   new versions for requirements/dev.lock"

env:
	@scripts/dev_env.sh .venv

demo: env
	@$(PY) scripts/demo.py

test: env
	@$(PY) -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

soak: env
	@scripts/soak.sh $(PY) -n $(JOBS) $(ARGS)

lint: env
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: env
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench: env
	@$(PY) -m benchmarks $(ARGS)

lock:
	@scripts/lock.sh

clean:
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
