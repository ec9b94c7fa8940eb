#!/bin/bash
# Builds, tests and measures on the CUDA card of this machine.
#
#   experiments/gpu/run.sh build OUT        the preset `cuda` for this card, and what nvcc made of it
#   experiments/gpu/run.sh test OUT         tests with the label `gpu`, tests/python/gpu_*.py,
#                                           compute-sanitizer on some
#   experiments/gpu/run.sh step OUT         experiments/step on cuda:0, links paced both ways
#   experiments/gpu/run.sh memory OUT       whole models within 4 and 24 GB, by the driver's count
#   experiments/gpu/run.sh bench OUT        every kernel against this card's roofs, cuSPARSE, cuBLAS
#   experiments/gpu/run.sh engines OUT      the quickstart with every engine, on cuda:0
#   experiments/gpu/run.sh all OUT          these six, in turn
#   experiments/gpu/run.sh table OUT        only the table of what OUT has
#
# Each part ends within 8 minutes, writes OUT/<part>.json (machine, driver, commit, results), and
# prints the table, which is OUT/table.txt too. What OUT has is not run again: the same command goes
# on with what failed, did not end or was left, OUT brought along to another machine or not. --again
# begins the part anew. An OUT of another commit is refused, and so is a build/cuda of another commit
# by all parts but `build`, which builds it anew. What this machine has no tool for is "not run" in the
# table, which is no failure.
#
# Nothing is fetched. C++ packages that are not the system's: CMAKE_PREFIX_PATH. Python: $PYTHON,
# else .venv/bin/python, else python3; without torch there, the module is not built, and what needs
# it fails. SLUICEWAY_COMMIT names the commit where there is no repository. STEP_ARGS are more
# options of experiments/step/step.py, quoted as for a shell: STEP_ARGS='--links "PCIe 4.0 x16"'. What
# is left of `step` is counted with them; with others, or with none, the part goes on.
#
# Exit status: 0; 1 where something failed, or did not end in its time; 2 where there is no card, or
# the command line is wrong.
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/../.."

readonly seconds_a_part=470
readonly build=build/cuda
readonly built_from=$build/sluiceway_commit
readonly here=experiments/gpu
readonly not_run=77  # Exit status of a piece that lacks a tool, as pieces.py has it.
# Kernels with shared memory, atomics and scratch: what a sanitizer may have something to say about.
readonly sanitized_kernels=(compress compress_linear decompress overflow_scan residual)
# A few steps of the engine, with every kind of codec; streams and copies have no kernels to race.
readonly engine_cases='*/block_random_cores:*/svd:*/sparse_random_cores:*/block_pca_refreshed'

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$self"; }

say() { echo "gpu: $*" >&2; }

python=${PYTHON:-}
if [ -z "$python" ]; then
  if [ -x .venv/bin/python ]; then python=$PWD/.venv/bin/python; else python=$(command -v python3); fi
fi

record() { "$python" $here/record.py "$@"; }

has_torch() { "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; }

find_nvcc() {
  command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
  command -v nvcc >/dev/null || { say "no nvcc on PATH; set CUDA_HOME"; return 1; }
}

# ---- Pieces of a part ------------------------------------------------------------------------------

# Seconds until the part has to end; $1 of them are kept for what comes after.
seconds_left() { echo $((seconds_a_part - ${1:-15} - SECONDS)); }

# piece NAME LIMIT COMMAND...: runs it for at most LIMIT seconds, unless OUT has it.
piece() {
  local name=$1 limit=$2 status=0 began=$SECONDS left
  shift 2
  if record has "$part" "$out" "$name"; then
    return 0
  fi
  left=$(seconds_left)
  [ "$limit" -le "$left" ] || limit=$left
  rm -rf "${work:?}/$name" "$work/$name".*
  if [ "$limit" -lt 10 ]; then
    echo "no time was left for it" >"$work/$name.txt"
    status=124
  else
    say "$name"
    timeout --kill-after=5 "$limit" "$@" >"$work/$name.txt" 2>&1 || status=$?
  fi
  record piece "$part" "$out" "$name" --work "$work" --status $status --seconds $((SECONDS - began)) &&
    return 0
  tail -n 15 "$work/$name.txt" >&2
  return 1
}

# ---- Parts -----------------------------------------------------------------------------------------

# Of the tests those with the label `gpu`, whose targets have their names.
part_build() {
  local torch=ON targets=(bench_device)
  find_nvcc
  has_torch || torch=OFF
  [ $torch = OFF ] || targets+=(_core)
  rm -f "$build/CMakeCache.txt" "$built_from"  # Of another card, of another commit.
  cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES=native -DSLUICEWAY_TORCH=$torch \
    -DPython3_EXECUTABLE="$python"
  cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"
  mapfile -t targets < <(ctest --preset cuda -N | sed -n 's/^ *Test *#[0-9]*: *//p')
  cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"
  echo "$SLUICEWAY_COMMIT" >"$built_from"
  piece resources 60 "$python" .ci/cuda_resources.py "$build"
}

# Whether build/cuda is there, and of this commit; says what it is otherwise.
is_built() {
  local found=unknown
  [ -x "$build/experiments/bench/bench_device" ] || { echo "$build is not there"; return 1; }
  [ ! -f "$built_from" ] || found=$(<"$built_from")
  [ "$found" = "$SLUICEWAY_COMMIT" ] ||
    { echo "$build is of commit $found, expected $SLUICEWAY_COMMIT"; return 1; }
}

part_test() {
  local status=0 name tool
  piece ctest 150 ctest --preset cuda -j 4 --timeout 120 --no-tests=error \
    --output-junit "$work/ctest.xml" || status=1
  if has_torch; then
    see_module || return 1
    for name in tests/python/gpu_*.py; do
      name=$(basename "$name" .py)
      piece "$name" 150 "$python" -m pytest -q -p no:cacheprovider -o python_files='gpu_*.py' \
        --timeout 60 --junitxml "$work/$name.xml" "tests/python/$name.py" || status=1
    done
  else
    say "$python has no torch: tests/python/gpu_*.py not run"
    status=1
  fi
  PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:${CUDA_HOME:-/usr/local/cuda}/compute-sanitizer
  if ! command -v compute-sanitizer >/dev/null; then
    piece compute-sanitizer 10 bash -c "echo 'no compute-sanitizer on PATH'; exit $not_run"
    return $status
  fi
  for tool in memcheck racecheck; do
    sanitize $tool runtime_engine_subspace_device_engine "$engine_cases" || status=1
    for name in "${sanitized_kernels[@]}"; do
      sanitize $tool kernels_"$name" '*/cuda*' || status=1
    done
  done
  for name in stream link; do
    sanitize memcheck runtime_device_cuda_$name '*' || status=1
  done
  return $status
}

# sanitize TOOL TEST CASES
sanitize() {
  local binary
  binary=$(find "$build/tests" -name "$2_test" -type f | head -n 1)
  [ -n "$binary" ] || { say "$2_test is not in $build"; return 1; }
  piece "$1_$2" 120 compute-sanitizer --tool "$1" --error-exitcode 9 "$binary" \
    --gtest_filter="$3" --gtest_brief=1
}

part_bench() {
  local status=0 group groups
  mapfile -t groups < <("$build/experiments/bench/bench_device" --benchmark_list_tests |
    sed 's/[^A-Za-z0-9].*//' | awk '!seen[$0]++')
  [ ${#groups[@]} -gt 0 ] || { say "bench_device lists no benchmark"; return 1; }
  for group in "${groups[@]}"; do
    piece "$group" 120 "$python" experiments/bench/report.py "$build" --only bench_device \
      --filter "^$group([^A-Za-z0-9]|\$)" --out "$work/$group.json" || status=1
  done
  return $status
}

# A turn that ends the process, or after which the device answers no more, is a row that says so; a
# new process goes on with the next. What failed before is taken again, once.
part_step() {
  local status=0 more=() retry=--retry
  has_torch || { say "step: $python has no torch"; return 1; }
  see_module || return 1
  eval "more=(${STEP_ARGS:-})"
  while [ "$(seconds_left 120)" -gt 0 ]; do
    status=0
    "$python" experiments/step/step.py --device cuda:0 --out "$out/step.json" --budget 24GiB \
      --pacing absolute ratio --patience 15 --turn-limit 90 --seconds "$(seconds_left 120)" \
      $retry "${more[@]}" || status=$?
    retry=
    case $status in
      3 | 142) say "step: a process ended with $status, another goes on" ;;
      *) return $status ;;
    esac
  done
}

part_memory() {
  has_torch || { say "memory: $python has no torch"; return 1; }
  see_module || return 1
  "$python" experiments/laptop/memory.py --device cuda:0 --out "$out/memory.json" --retry \
    --run-limit 120 --seconds "$(seconds_left 135)"
}

part_engines() {
  local status=0 offload=configs/quickstart_offload_disk.yaml
  has_torch || { say "engines: $python has no torch"; return 1; }
  see_module || return 1
  quickstart native configs/quickstart.yaml "engine={kind: native}" || status=1
  quickstart subspace configs/quickstart.yaml || status=1
  quickstart fused configs/quickstart.yaml engine.fused=true || status=1
  quickstart offload_host $offload engine.tier=host || status=1
  quickstart offload_disk $offload || status=1
  quickstart zo configs/quickstart_zo.yaml train.steps=100 || status=1
  quickstart zo_host configs/quickstart_zo.yaml train.steps=100 engine.tier=host || status=1
  return $status
}

# quickstart NAME CONFIG SETTING...
quickstart() {
  local name=$1 config=$2 settings=() one
  shift 2
  for one in device.name=cuda:0 device.link=null "$@"; do
    settings+=(--set "$one")
  done
  piece "$name" 120 "$python" -m sluiceway train "$config" --out "$work/$name" "${settings[@]}"
}

# The Python package with the module of this build, and no copy of either. An editable install is
# asked before PYTHONPATH is, so its finder is hidden.
see_module() {
  local site=$PWD/$build/site
  rm -rf "$site"
  mkdir -p "$site"
  cp -rs "$PWD/python/sluiceway" "$site/"
  rm -f "$site"/sluiceway/_core*.so
  ln -s "$PWD/$build"/python/bindings/_core*.so "$site/sluiceway/"
  touch "$site/_editable_skbc_sluiceway.py"
  export PYTHONPATH=$site
  "$python" -c 'import importlib.util as u, sys
sys.exit(not u.find_spec("sluiceway._core").origin.startswith(sys.argv[1]))' "$site/" ||
    { say "$python sees another sluiceway than that of $build; remove it there"; return 1; }
}

# ---- Running them ----------------------------------------------------------------------------------

# Runs a part in a process group of its own, so that the limit ends all of it.
run_part() {
  local status=0 began=$SECONDS why
  export part=$1 work=$PWD/build/gpu/$1 out
  if ! why=$(is_built); then
    [ "$part" = build ] || { say "$part: $why; run $0 build $out"; return 1; }
    rm -f "$out/build.json"
  fi
  # Two trees that differ from a commit have one name; where nothing is to do, building says so.
  case "$part $SLUICEWAY_COMMIT" in "build "*-dirty) rm -f "$out/build.json" ;; esac
  [ -z "$again" ] || rm -f "$out/$part.json"
  if record is-done "$part" "$out"; then
    say "$part: $out/$part.json is there (--again runs it again)"
    return 0
  fi
  rm -rf "$work"
  mkdir -p "$work"
  timeout --kill-after=10 $seconds_a_part "$self" --part "$part" 2>&1 | tee "$work/log.txt" || status=$?
  record write "$part" "$out" --work "$work" --status $status --seconds $((SECONDS - began))
  return $((status != 0))
}

main() {
  local parts again="" status=0 name
  if [ "${1:-}" = --part ]; then
    "part_$2"
    return
  fi
  case "${1:-}" in
    -h | --help) usage; return 0 ;;
    build | test | step | memory | bench | engines) parts=("$1") ;;
    all) parts=(build test step memory bench engines) ;;
    table) parts=() ;;
    *) usage >&2; return 2 ;;
  esac
  [ $# -ge 2 ] || { usage >&2; return 2; }
  [ "${3:-}" = "" ] || [ "$3" = --again ] || { usage >&2; return 2; }
  mkdir -p "$2"
  out=$(cd "$2" && pwd)
  again=${3:-}
  if [ ${#parts[@]} -gt 0 ]; then
    nvidia-smi -L >/dev/null 2>&1 ||
      { say "no CUDA card: nvidia-smi finds none, expected one"; return 2; }
    SLUICEWAY_COMMIT=$(record commit)
    export SLUICEWAY_COMMIT
    record check "$out" || return 2
  fi
  for name in "${parts[@]}"; do
    if ! run_part "$name"; then
      status=1
      [ "$name" != build ] || break
    fi
  done
  record table "$out"
  return $status
}

main "$@"
