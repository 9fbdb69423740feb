# Everything runs in a virtual environment of its own, made on first use.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
SOURCES := $(wildcard neutrino/loader/csrc/*.[ch]) neutrino/loader/build.py

.PHONY: setup check lint types layers warnings test demo corpus clean

setup: $(VENV)/installed neutrino/loader/lib/libcuda.so.1

$(VENV)/installed: pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

neutrino/loader/lib/libcuda.so.1: $(SOURCES) | $(VENV)/installed
	$(BIN)/python -m neutrino.loader.build

check: lint types layers warnings test

lint: setup
	$(BIN)/ruff check .
	if command -v shellcheck >/dev/null; then shellcheck .ci/run; fi

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

# The build itself stops at a warning of the compiler at hand; clang, where it is, sees other things.
warnings: setup
	for cc in clang clang-19; do if command -v $$cc >/dev/null; then \
	  CC=$$cc $(BIN)/python -m neutrino.loader.build build/warnings-$$cc; fi; done

test: setup
	$(BIN)/python -m pytest

demo: setup
	$(BIN)/python -m neutrino.cli.demo

# The whole corpus: minutes, and packages from PyPI. `make check` runs a part of it.
corpus: setup
	$(BIN)/python -m bench.corpus

clean:
	rm -rf build dist *.egg-info neutrino/loader/lib
