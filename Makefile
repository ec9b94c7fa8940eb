# Everything a person or a machine needs to type. Works on a Debian 12 that has git and make;
# what is installed already is neither downloaded nor built again.

PYTHON ?= python3
JOBS   ?= $(shell nproc)
VENV   := .venv
PY     := $(VENV)/bin/python
STAMPS := build/stamps
RESULTS := build/results

PACKAGES := g++ cmake ninja-build ccache pkg-config python3-dev python3-venv ca-certificates \
  libhwy-dev libgtest-dev libgmock-dev libbenchmark-dev nlohmann-json3-dev libxxhash-dev \
  libeigen3-dev libblkid-dev liburing-dev
TEST_PACKAGES  := chromium e2fsprogs fdisk xz-utils
CHECK_PACKAGES := clang libclang-rt-14-dev clang-format clang-tidy e2fsprogs fdisk

# Lets build folders share compiled objects, those of other checkouts too. The name of the compiler
# is part of what the cache compares, and pip would choose another one than cmake.
export CCACHE_NOHASHDIR := 1
export CCACHE_BASEDIR := $(CURDIR)
export CXX
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pip pauses longer before each: a network that is gone for minutes does not end a build.
export PIP_RETRIES := 10

# Warnings are errors in presets and in everything that tests; an installation must not end with one.
# One setting for presets and pip in a run, so that the compiler's cache knows the objects of both.
export WERROR ?= OFF
test check soak ctest simt pytest card install stubs: export WERROR := ON

CPP_FILES = $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
PY_FILES  = $(shell git ls-files '*.py')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # Builds and tests have as many jobs as there are cores, and some share a folder.
.PHONY: demo test check soak bench lint format stubs wheel release clean help build install ctest pytest \
  simt card newest between checks FORCE check-asan check-tsan check-eager-spill check-simt check-compat check-cuda check-wheel \
  check-bench check-flips check-loop

help:
	@echo 'make demo     fine-tune a small model six ways over a throttled link, print the table'
	@echo 'make test     build, run the C++, the Python and, on the host, the CUDA tests; those of a card too'
	@echo 'make check    sanitizers, clang, eager spill, CUDA on the host, slow libraries, lint, CUDA, wheel, benches, flips, loop'
	@echo 'make soak     what takes long: kills and power cuts by the thousand, fuzzing, other versions of torch, all cards'
	@echo 'make bench    each kernel against the roof of this machine'
	@echo 'make lint     clang-format, clang-tidy, ruff: report'
	@echo 'make format   clang-format, ruff: rewrite'
	@echo 'make stubs    rewrite _core.pyi and codec_names.py, of the compiled module, and docs/configuration.md'
	@echo 'make wheel    dist/*.whl, for cards and for machines without: installs beside torch, without a compiler'
	@echo 'make release  VERSION=1.2.3: version, changelog, sources, wheels, what is compiled in, below dist/'
	@echo 'make clean    remove build/ and dist/ (packages and .venv stay)'

# ---- What the machine must have ------------------------------------------------------------------

# $(call debian_packages,names): installs those that are missing, or prints the line to run.
define debian_packages
	@missing=; for p in $(1); do \
	  dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' \
	    || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ]; then run=; elif command -v sudo >/dev/null; then run=sudo; else \
	  echo "missing Debian packages; run as root, then make again:"; \
	  echo "  apt-get update && apt-get install -y --no-install-recommends$$missing"; exit 1; fi; \
	retries='-o Acquire::Retries=5'; $$run apt-get $$retries update && DEBIAN_FRONTEND=noninteractive \
	  $$run apt-get $$retries install -y --no-install-recommends $$missing
	@mkdir -p $(STAMPS) && touch $@
endef

$(STAMPS)/packages: Makefile
	$(call debian_packages,$(PACKAGES))

$(STAMPS)/test-packages: Makefile
	$(call debian_packages,$(TEST_PACKAGES))

$(STAMPS)/check-packages: Makefile
	$(call debian_packages,$(CHECK_PACKAGES))

$(PY): | $(STAMPS)/packages
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/requirements: requirements.txt $(PY)
	$(PY) -m pip install --quiet --requirement requirements.txt
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/check-requirements: requirements-check.txt $(STAMPS)/requirements
	$(PY) -m pip install --quiet --requirement requirements-check.txt --constraint requirements.txt
	@mkdir -p $(STAMPS) && touch $@

FORCE:

# CMake's definitions of a build with CUDA, or nothing for the host device alone. Both files are
# written only when they change, so what depends on one is built again only then.
CARD  := $(STAMPS)/cuda-card
CARDS := $(STAMPS)/cuda-cards
ARCHITECTURES ?=  # Of a wheel; CMakeLists.txt has those that it is made for by default.

$(CARD): $(STAMPS)/requirements FORCE
	@$(PY) .ci/cuda_build.py card $@

$(CARDS): $(STAMPS)/requirements FORCE
	@$(PY) .ci/cuda_build.py wheel $@ '$(strip $(ARCHITECTURES))'

# $(call defined,prefix,file): the definitions of a file as options of cmake or of pip.
defined = $(addprefix $(1),$(file <$(2)))
pip_options = --config-settings=cmake.define.SLUICEWAY_WERROR=$(WERROR) $(call defined,--config-settings=cmake.define.,$(1))

# ---- Build and test ------------------------------------------------------------------------------

# $(call build_preset,preset,extra configure arguments)
build_preset = { [ build/$(1)/build.ninja -nt CMakePresets.json ] || cmake --preset $(1) $(2); } \
  && cmake --build --preset $(1) -j $(JOBS)

# $(call test_preset,preset): results go to $(RESULTS)/<preset>, one file a binary.
test_preset = mkdir -p $(RESULTS) && rm -rf $(RESULTS)/$(1)* \
  && GTEST_OUTPUT=xml:$(CURDIR)/$(RESULTS)/$(1)/ \
  ctest --preset $(1) -j $(JOBS) --output-junit $(CURDIR)/$(RESULTS)/$(1).xml

# $(call passed): the last line of a step that .ci/run counts.
passed = mkdir -p $(RESULTS) && touch $(RESULTS)/$@.ok

build: $(STAMPS)/packages $(STAMPS)/requirements
	@$(call build_preset,cpu)

# The package's modules. An editable install maps each to its file, so it is made again when one
# comes or goes; like the files above, this one is written only when it changes.
$(STAMPS)/modules: FORCE
	@mkdir -p $(STAMPS) && find python/sluiceway -name '*.py' | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

# An editable install: Python sources are used in place, _core is built into the environment.
CORE_SOURCES := $(wildcard CMakeLists.txt pyproject.toml) $(shell find kernels runtime compress \
  python -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name CMakeLists.txt)

$(STAMPS)/install: $(CORE_SOURCES) $(STAMPS)/modules $(STAMPS)/packages $(STAMPS)/requirements $(CARD)
	$(PY) -m pip install --quiet --no-build-isolation --no-deps $(call pip_options,$(CARD)) --editable .
	@mkdir -p $(STAMPS) && touch $@

install: $(STAMPS)/install

ctest: build $(STAMPS)/test-packages
	$(call test_preset,cpu)

# The CUDA sources, on the machine of tests/support/simt.
simt: $(STAMPS)/packages $(STAMPS)/requirements
	@$(call build_preset,simt)
	$(call test_preset,simt)

# Most tests wait for links, drives and children, most of the time: more at once than there are
# cores, with one thread each for torch, whose matrices are small here.
PARALLEL := --numprocesses=$(shell expr $(JOBS) + 2) --dist=loadfile

pytest: $(STAMPS)/install $(STAMPS)/test-packages
	@mkdir -p $(RESULTS) && rm -f $(RESULTS)/pytest.xml
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(PY) -m pytest $(PARALLEL) \
	  --junitxml=$(RESULTS)/pytest.xml

# Nothing where there is no card that can be used.
card: $(STAMPS)/install
	@[ ! -s $(CARD) ] || { cmake --preset cuda $(call defined,-D,$(CARD)) \
	  && cmake --build --preset cuda -j $(JOBS) && $(call test_preset,cuda) \
	  && $(PY) -m pytest -o python_files='gpu_*.py' --junitxml=$(RESULTS)/gpu.xml tests/python; }

test:
	@rm -rf $(foreach each,cpu simt cuda,$(RESULTS)/$(each) $(RESULTS)/$(each).xml) \
	  $(RESULTS)/pytest.xml $(RESULTS)/gpu.xml
	@status=0; $(MAKE) --no-print-directory --keep-going ctest simt pytest card || status=$$?; \
	  $(PYTHON) .ci/slowest.py $(RESULTS); exit $$status

# Types of the compiled module, from its docstrings; a test fails where they are not what this writes.
stubs: $(STAMPS)/install
	$(PY) .ci/stubs.py python
	$(PY) .ci/configuration.py > docs/configuration.md

# Debian has no static libhwy, so the wheel takes the shared one along; libc10 and the libraries
# of CUDA that torch loads are the user's.
WHEEL_PY := $(PY)
SOURCES  := .
OBJECTS  := build/wheel-objects
DIST     := dist
wheel: $(STAMPS)/packages $(STAMPS)/requirements $(CARDS)
	rm -rf build/wheel $(DIST)/sluiceway-*.whl
	$(WHEEL_PY) -m pip wheel --quiet --no-build-isolation --no-deps $(call pip_options,$(CARDS)) \
	  --config-settings=build-dir=$(OBJECTS) --wheel-dir build/wheel \
	  $(SOURCES)
	PATH=$(CURDIR)/$(VENV)/bin:$$PATH $(PY) -m auditwheel repair --exclude 'libtorch*' \
	  --exclude 'libc10*' --exclude 'libcu*' --wheel-dir $(DIST) build/wheel/*.whl

# VERSION=1.2.3: sources, a wheel for each Python that is here, and what is compiled in, below dist/.
release: $(STAMPS)/packages $(STAMPS)/requirements
	$(PY) .ci/release.py $(VERSION)

demo: $(STAMPS)/install
	$(PY) -m experiments.quickstart.demo

bench: build
	$(PY) -m experiments.bench.report build/cpu

# ---- Checks --------------------------------------------------------------------------------------

# Those that build a preset of their own come last: `.ci/run` stops at a limit.
CHECKS := check-simt check-compat lint check-bench check-flips check-loop check-cuda check-wheel \
  check-asan check-eager-spill check-tsan

$(CHECKS): export WERROR := ON

# Two architectures: `make soak` has a wheel with all of them.
check-cuda check-wheel: export ARCHITECTURES := 80-real;90

check:
	@$(MAKE) --no-print-directory --keep-going $(CHECKS)

# The names of the checks, for `.ci/run`.
checks:
	@echo $(CHECKS)

# An eager-spill run is one of the build `asan`.
check-asan check-tsan check-eager-spill: check-%: $(STAMPS)/packages \
    $(STAMPS)/check-packages $(STAMPS)/requirements
	@rm -f $(RESULTS)/$@.ok
	@$(call build_preset,$(subst eager-spill,asan,$*))
	@$(call test_preset,$*)
	@$(passed)

# `make test` runs one order of blocks and threads, and one of what is late; here are two others.
SIMT_SEEDS := 2 3
check-simt: $(STAMPS)/packages $(STAMPS)/requirements
	@rm -f $(RESULTS)/$@.ok
	@$(call build_preset,simt)
	@for seed in $(SIMT_SEEDS); do \
	  SLUICEWAY_SIMT_SEED=$$seed ctest --preset simt -j $(JOBS) || exit 1; done
	@$(passed)

# Libraries that take long to import or to compile; `make test` has the others. Prints the table of
# docs/compatibility.md.
check-compat: $(STAMPS)/install $(STAMPS)/check-requirements
	@mkdir -p $(RESULTS) && rm -f $(RESULTS)/$@.xml
	OMP_WAIT_POLICY=passive $(PY) -m pytest -o python_files='check_*.py' \
	  --junitxml=$(RESULTS)/$@.xml tests/python/compat
	$(PY) .ci/compat_table.py $(RESULTS)

# What a build with CUDA says on a machine without a driver, or with its devices hidden.
without_device = ctest --test-dir build/cuda --output-on-failure -R no_driver

check-cuda: $(STAMPS)/packages $(CARDS)
	@rm -f $(RESULTS)/$@.ok $(RESULTS)/$@.notrun
	@mkdir -p $(RESULTS); if [ ! -s $(CARDS) ]; then \
	  echo 'cuda: not run (no nvcc)'; touch $(RESULTS)/$@.notrun; \
	else \
	  cmake --preset cuda $(call defined,-D,$(CARDS)) && cmake --build --preset cuda -j $(JOBS) \
	    && $(PY) .ci/cuda_resources.py build/cuda && $(passed); fi
	@[ -e $(RESULTS)/$@.notrun ] || $(without_device) || { rm -f $(RESULTS)/$@.ok; exit 1; }

# A fresh environment that sees the packages of .venv, but not its editable install, and no compiler.
check-wheel: wheel
	@rm -f $(RESULTS)/$@.ok
	$(PY) .ci/wheel_contents.py dist/sluiceway-*.whl --built-here
	$(PY) -m venv build/wheel/venv
	$(PY) -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' \
	  > $$(echo build/wheel/venv/lib/python3*/site-packages)/packages.pth
	build/wheel/venv/bin/python -m pip install --quiet --no-deps --ignore-installed \
	  dist/sluiceway-*.whl
	cd build/wheel && venv/bin/python -c 'import torch, sluiceway, sluiceway._core as core; \
	  assert "build/wheel" in sluiceway.__file__ and "build/wheel" in core.__file__'
	cd build/wheel && PATH=$$PWD/venv/bin venv/bin/python ../../.ci/wheel_trains.py
	build/wheel/venv/bin/sluiceway --help >/dev/null
	@$(passed)

# Every kernel benchmark once, each way of experiments/step, and the bodies of what a card is to run.
check-bench: build $(STAMPS)/install
	@rm -f $(RESULTS)/$@.ok $(RESULTS)/step.json
	$(PY) -m experiments.bench.report build/cpu --once
	OMP_WAIT_POLICY=passive $(PY) -m experiments.step.step --device host --once \
	  --out $(RESULTS)/step.json
	OMP_WAIT_POLICY=passive $(PY) -m pytest -q -o python_files='gpu_*.py' --device host tests/python
	@$(passed)

# `make test` flips each file of a save twice; the seed is fresh every time.
check-flips: $(STAMPS)/install
	@rm -f $(RESULTS)/$@.ok
	OMP_WAIT_POLICY=passive $(PY) -m pytest -q tests/python/run/test_flipped_bytes.py --flips 200
	@$(passed)

# The wheel that was built beside the oldest torch passes the whole suite beside other ones: the newest
# torch and transformers that pip finds, and a torch between with the oldest transformers. Gigabytes to
# download.
newest: BESIDE := torch transformers
between: BESIDE := torch~=2.13.0 transformers~=5.0.0
newest between: export ARCHITECTURES := 80-real;90
newest between: wheel $(STAMPS)/test-packages
	$(PYTHON) -m venv build/$@/.venv
	build/$@/.venv/bin/python -m pip install --quiet --upgrade $(BESIDE) \
	  accelerate datasets hypothesis liger-kernel matplotlib peft plotly pybind11 pybind11-stubgen \
	  pydantic pyelftools pytest pytest-timeout pytest-xdist rich ruff scikit-build-core tensorboard \
	  trl typer
	build/$@/.venv/bin/python -m pip install --quiet --no-deps --force-reinstall dist/sluiceway-*.whl
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive build/$@/.venv/bin/python -m pytest $(PARALLEL) \
	  $(NEWEST_TESTS)

# Half an hour: thousands of power cuts and kills of a store, kills of training, readers fuzzed.
FUZZ_SECONDS := 600
soak: build $(STAMPS)/install $(STAMPS)/check-packages
	SLUICEWAY_POWER_CUTS=100 build/cpu/tests/runtime/store/runtime_store_power_cut_test
	SLUICEWAY_KILLS=1000 build/cpu/tests/runtime/store/runtime_store_kill_test
	SLUICEWAY_POWER_CUTS=100 build/cpu/tests/runtime/engine/runtime_engine_zo_zo_arena_power_cut_test
	SLUICEWAY_KILLS=500 build/cpu/tests/runtime/engine/runtime_engine_zo_zo_arena_kill_test
	SLUICEWAY_KILLS=20 OMP_WAIT_POLICY=passive $(PY) -m pytest -q tests/python/run/test_offload_kills.py
	SLUICEWAY_KILLS=200 OMP_WAIT_POLICY=passive $(PY) -m pytest -q tests/python/run/test_zo_kills.py
	SLUICEWAY_WHOLE_MODELS=1 $(PY) -m pytest -q tests/python/engines/test_plan_disk.py \
	  tests/python/engines/test_plan_zo.py
	@[ -f build/fuzz/build.ninja ] || cmake --preset fuzz
	cmake --build --preset fuzz -j $(JOBS) --target store_format_fuzzer
	mkdir -p build/fuzz/found
	build/fuzz/tests/fuzz/store_format_fuzzer -max_total_time=$(FUZZ_SECONDS) -max_len=8192 \
	  build/fuzz/found tests/fuzz/corpus/store_format
	$(MAKE) --no-print-directory newest
	$(MAKE) --no-print-directory between
	$(MAKE) --no-print-directory check-wheel ARCHITECTURES=

# Whole block devices: attaches loop devices to files of its own, mounts one, and trains on one.
check-loop: build $(STAMPS)/install $(STAMPS)/check-packages
	@rm -f $(RESULTS)/$@.ok $(RESULTS)/$@.notrun
	@mkdir -p $(RESULTS); if [ "$$(id -u)" != 0 ] || ! losetup -f >/dev/null 2>&1; then \
	  echo 'loop devices: not run (needs root and a free one)'; touch $(RESULTS)/$@.notrun; \
	else build/cpu/tests/runtime/store/runtime_store_loop_device_test \
	  && OMP_WAIT_POLICY=passive $(PY) -m pytest -q -o python_files='check_loop_device.py' tests/python \
	  && $(passed); fi

# ---- Style ---------------------------------------------------------------------------------------

lint: $(STAMPS)/packages $(STAMPS)/check-packages $(STAMPS)/requirements
	@rm -f $(RESULTS)/$@.ok
	clang-format --dry-run --Werror $(CPP_FILES)
	$(PY) -m ruff format --check $(PY_FILES)
	$(PY) -m ruff check $(PY_FILES)
	@[ -f build/cpu/build.ninja ] || cmake --preset cpu
	$(PY) .ci/tidy.py build/cpu $(JOBS)
	@$(passed)

format: $(STAMPS)/check-packages $(STAMPS)/requirements
	clang-format -i $(CPP_FILES)
	$(PY) -m ruff format $(PY_FILES)
	$(PY) -m ruff check --fix $(PY_FILES)

clean:
	rm -rf build dist
