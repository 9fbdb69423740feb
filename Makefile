# Everything runs in a virtual environment of its own, made on first use.
VENV ?= .venv
PYTHON ?= python3
# As many processes run tests at the same time: two more than there are processors, since tests also wait: for programs
# that they start, which end by the clock or write to the disk.
JOBS ?= $(shell expr $$(nproc) + 2)
BIN := $(VENV)/bin
SOURCES := $(wildcard neutrino/loader/csrc/*/*.[ch]) neutrino/loader/build.py
EMBEDDED := $(wildcard neutrino/emulator/csrc/*.[ch]) neutrino/emulator/build.py
READER := $(wildcard neutrino/tracing/csrc/*.[ch]) neutrino/tracing/build.py
STAND_INS := $(wildcard neutrino/gcn/csrc/*) neutrino/gcn/build.py
AGGREGATE := neutrino/tracing/lib/libneutrino_aggregate.so

.PHONY: setup setup-dev check check-all lint types layers warnings test demo check-pythons corpus check-corpus corpus-sass \
  coverage-sass corpus-amd clean

LIBRARIES := neutrino/loader/lib/libcuda.so.1 neutrino/emulator/lib/libcuda.so.1 $(AGGREGATE) neutrino/gcn/lib/librocm_sysdeps_z.so.1

# What users need.
setup: $(VENV)/installed $(LIBRARIES)

# And what the checks and the benches need.
setup-dev: $(VENV)/installed-dev $(LIBRARIES)

# A pip install without --editable has put a copy of the package there, which no change of these files reaches.
COPY := $(wildcard $(VENV)/lib/python3*/site-packages/neutrino/__init__.py)
.PHONY: $(COPY)

$(VENV)/installed: pyproject.toml setup.py $(COPY)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[cuda]"
	touch $@

$(VENV)/installed-dev: pyproject.toml setup.py $(COPY)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(VENV)/installed $@

neutrino/loader/lib/libcuda.so.1: $(SOURCES) | $(VENV)/installed
	$(BIN)/python -m neutrino.loader.build

neutrino/emulator/lib/libcuda.so.1: $(EMBEDDED) | $(VENV)/installed
	$(BIN)/python -m neutrino.emulator.build

$(AGGREGATE): $(READER) | $(VENV)/installed
	$(BIN)/python -m neutrino.tracing.build

neutrino/gcn/lib/librocm_sysdeps_z.so.1: $(STAND_INS) | $(VENV)/installed
	$(BIN)/python -m neutrino.gcn.build

# mypy has one thread, so that tests run meanwhile. Everything is installed before, by one pip.
check: setup-dev
	$(MAKE) --no-print-directory -j2 lint layers warnings collected
	$(MAKE) --no-print-directory -j2 types test

lint: setup-dev
	$(BIN)/ruff check .
	if command -v shellcheck >/dev/null; then shellcheck .ci/run; fi

types: setup-dev
	$(BIN)/mypy

layers: setup-dev
	$(BIN)/lint-imports

# The build itself stops at a warning of the compiler at hand. Others see other things: each of gcc-12, clang-14 and clang-19
# that is installed, and is not the build's own, compiles every file.
warnings: setup-dev
	$(BIN)/python .ci/warnings.py

# As check, with whole products of parameters, all schedules and all random examples of the tests: before a release.
check-all:
	$(MAKE) --no-print-directory check THOROUGH=--thorough

# Once for the tests as they are, so that not each process rewrites all their assertions: pytest keeps what it has made of
# a file.
collected: setup-dev build/collected

build/collected: $(shell find tests -name '*.py') $(VENV)/installed-dev
	@found=$$($(BIN)/python -m pytest --collect-only -qq 2>&1) || { echo "$$found"; exit 1; }
	@mkdir -p build && touch $@

# Python starts hundreds of times there: what it compiles is kept, whatever the environment says.
collected build/collected test: export PYTHONDONTWRITEBYTECODE =
test: setup-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 20 $(THOROUGH)

# A library with GPU code and a program that uses it, both by cc alone, run on the embedded device with two probes.
demo: setup
	@$(MAKE) --no-print-directory --silent -C examples/embedded OUT=$(CURDIR)/build/demo PYTHON=$(abspath $(BIN)/python)
	@rm -rf build/demo/trace build/demo/patched
	@set -e; PATH="$(abspath $(BIN)):$$PATH"; cd build/demo; \
	for command in "neutrino-extract libvector.so" \
	               "neutrino --device embedded -p block_sched -p gmem_bytes ./program" "neutrino-report trace" \
	               "neutrino-patch libvector.so -p gmem_bytes --device embedded -o patched/" \
	               "LD_LIBRARY_PATH=patched neutrino --device embedded --tracedir patched/trace ./program" \
	               "neutrino-report patched/trace -k sum"; do \
	  printf '\n$$ %s\n' "$$command"; env $$command; done

# A part of the tests under each Python from 3.10 on that is installed, in environments of their own: minutes.
check-pythons: setup
	$(BIN)/python .ci/pythons.py

# What the corpora give is written below build/, and compared with what is recorded; RECORD=1 records it.
recorded = $(if $(RECORD),--out bench/results/$(1).json)

# The whole corpus: minutes, and packages from PyPI; all that the oracle can try, and all random examples. `make check`
# runs a part of each.
corpus: setup-dev
	$(BIN)/python -m tests.corpus.all_kernels $(call recorded,corpus)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --thorough --random-rewrites 1000 tests/oracle
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --thorough -m hypothesis --ignore tests/oracle

# Real libraries, whole: read, patched and loaded. Minutes, and 220 MB of wheels from PyPI, kept in .corpus.
check-corpus: setup-dev
	$(BIN)/python -m tests.corpus.real_libraries $(call recorded,check_corpus)

# The decoder of NVIDIA's machine code against nvdisasm, over all kernels of LIBRARIES: wheels, shared libraries, cubins.
# About a minute for 100,000 different instructions.
corpus-sass: setup-dev
	$(BIN)/python -m bench.corpus_sass $(LIBRARIES)

# How many kernels of LIBRARIES get a twin of their machine code, and why the others do not. A second or two for ten.
coverage-sass: setup-dev
	$(BIN)/python -m bench.sass_coverage $(LIBRARIES)

# AMD's code objects, whole: read, written as text and assembled again; and the interpreter that judges copies of their
# kernels, itself judged. Minutes, and 54 MB of wheels from PyPI; with TRITON_PYTHON=PYTHON of an
# environment that has Triton, its kernels too.
corpus-amd: setup-dev
	$(BIN)/python -m tests.gcn.corpus_text $(call recorded,corpus_amd) $(if $(TRITON_PYTHON),--triton $(TRITON_PYTHON))
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --thorough tests/gcn/test_maps.py tests/gcn/test_compute.py \
	  tests/gcn/test_compute_probes.py tests/gcn/test_trial.py tests/emulator/gcn/test_judged.py
	$(if $(TRITON_PYTHON),$(BIN)/python -m tests.emulator.gcn.triton_numpy $(call recorded,gcn_numpy))

clean:
	rm -rf build dist *.egg-info neutrino/loader/lib neutrino/emulator/lib neutrino/tracing/lib neutrino/gcn/lib
