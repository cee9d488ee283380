# Set-up, the main job and the checks, each one command on a fresh machine with Python 3.10 or newer and make.

PYTHON := $(shell for p in python3.12 python3.11 python3.13 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$p; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SPEC   ?= specs/attention/scores_sm80_f16_d64.yaml

.PHONY: run test lint golden gpu clean

$(STAMP): pyproject.toml requirements-dev.lock
	@test -n "$(PYTHON)" || { echo "cutegen needs Python 3.10 or newer on the PATH"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

# Emit, check, compile, run and validate one spec; SPEC=... picks another.
run: $(STAMP)
	$(BIN)/cutegen run $(SPEC)

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2

lint: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# Writes generated/ anew from specs/.
golden: $(STAMP)
	$(BIN)/python -m cutegen emit --shipped -o generated

# On a machine with an NVIDIA GPU: GPU tests, sanitizer, benchmarks; results go to benchmarks/results/.
gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu_checks.py

clean:
	rm -rf $(VENV)
