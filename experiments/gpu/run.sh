#!/bin/bash
# Builds, tests and measures on the CUDA card of this machine.
#
#   experiments/gpu/run.sh build OUT        the preset `cuda` for this card, and checks of its kernels
#   experiments/gpu/run.sh smoke OUT        tests with the label `gpu`, the gpu_*.py and
#                                           four quickstarts, `sluiceway doctor` and
#                                           experiments/laptop/run.py, as many at once as there
#                                           are cores
#   experiments/gpu/run.sh step OUT         experiments/step on cuda:0, links paced both ways
#   experiments/gpu/run.sh memory OUT       whole models within 4 and 24 GB, by the driver's count
#   experiments/gpu/run.sh bench OUT        every kernel against this card's roofs, cuSPARSE, cuBLAS
#   experiments/gpu/run.sh engines OUT      the quickstart with every engine, on cuda:0
#   experiments/gpu/run.sh peers OUT        one model with torch's, torchao's, FlashOptim's and our
#                                           optimizers
#   experiments/gpu/run.sh fidelity OUT     a model of 100 M parameters: losses of each way
#   experiments/gpu/run.sh sanitize OUT     compute-sanitizer on some of the tests
#   experiments/gpu/run.sh all OUT          these nine, in turn
#   experiments/gpu/run.sh table OUT        only the table of what OUT has
#
# Each part but `build` ends within PART_SECONDS (default: 150) and runs the most telling pieces first.
# A test, a benchmark or a turn is a separate process with a limit, TURN_SECONDS (default: 30) or twice
# that, so that a hang costs half a minute and not the part. After each piece the script writes
# OUT/<part>.json (machine, driver, commit, results). At the end it prints the part's table;
# OUT/table.txt has the tables of all parts.
#
# Repeat the same command to run the pieces that failed, did not end or were left; you may take OUT to
# another machine before. --again begins the part anew. The script refuses an OUT of another commit.
# All parts but `build` refuse a build/cuda of another commit; `build` builds it anew. If this machine
# lacks the tool of a piece, the table says "not run", which is no failure.
#
# The script fetches nothing. CMAKE_PREFIX_PATH names C++ packages outside the system. Python is
# $PYTHON, else .venv/bin/python, else python3; if it has no torch, the module is not built, and the
# pieces that need it fail. SLUICEWAY_COMMIT names the commit if there is no repository. STEP_ARGS,
# MEMORY_ARGS and PEERS_ARGS are more options of step.py, memory.py and peers.py, quoted as for a
# shell: STEP_ARGS='--links "PCIe 4.0 x16"'. pack.sh makes a build for a machine without these tools.
#
# Exit status: 0; 1 if something failed, or did not end in its time; 2 if there is no card, or the
# command line is wrong.
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$self")/../.."

readonly seconds_a_part=${PART_SECONDS:-150}
readonly build=build/cuda
readonly built_from=$build/sluiceway_commit
readonly not_run=77  # Exit status of a piece that lacks a tool; the same as in pieces.py.
# Seconds of one turn with the start of Python, after which it is cut.
readonly a_turn=${TURN_SECONDS:-30}
# Kernels with shared memory, atomics and scratch, in which a sanitizer may find something.
readonly sanitized_kernels=(compress compress_linear decompress overflow_scan residual)
# A few steps of the engine, with every kind of codec; streams and copies have no kernels to race.
readonly engine_cases='*/block_random_cores:*/svd:*/sparse_random_cores:*/block_pca_refreshed'

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$self"; }

say() { echo "gpu: $*" >&2; }

# unpack.sh writes this file: the commit, the interpreter, and the folders of packages and libraries.
[ ! -f "$build/environment" ] || . "$build/environment"
packages=${PYTHONPATH:-}
# SIGABRT ends a turn at its limit, since a Python process then prints the stacks of its threads.
ulimit -c 0
export PYTHONFAULTHANDLER=1 PYTHONUNBUFFERED=1

python=${PYTHON:-}
if [ -z "$python" ]; then
  if [ -x .venv/bin/python ]; then python=$PWD/.venv/bin/python; else python=$(command -v python3); fi
fi

# The package's own folder comes last, so that pieces see the module that see_module made.
record() { PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$PWD/python "$python" -m experiments.gpu.record "$@"; }

has_torch() { "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; }

find_nvcc() {
  command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
  command -v nvcc >/dev/null || { say "no nvcc on PATH; set CUDA_HOME"; return 1; }
}

# ---- Pieces of a part ----------------------------------------------------------------------------

# Seconds until the part has to end, less $1 seconds for later work.
seconds_left() { echo $((seconds_a_part - ${1:-5} - SECONDS)); }

# piece NAME LIMIT COMMAND...: one line for `pieces`.
piece() { printf '%s\t%s\t' "$1" "$2" && shift 2 && printf '%q ' "$@" && echo; }

# pieces AT_ONCE: runs the pieces of its input that OUT lacks, AT_ONCE beside each other.
pieces() {
  record run "$part" "$out" --work "$work" --seconds "$(seconds_left)" --at-once "$1"
}

# ---- Parts ---------------------------------------------------------------------------------------

# The targets of tests with the label `gpu` have the tests' names.
part_build() {
  local torch=ON targets=(bench_device)
  find_nvcc
  has_torch || torch=OFF
  [ $torch = OFF ] || targets+=(_core _host_allocator)
  rm -f "$build/CMakeCache.txt" "$built_from"  # They may be of another card or commit.
  cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES=native -DSLUICEWAY_PYTHON=$torch \
    -DPython3_EXECUTABLE="$python"
  cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"
  mapfile -t targets < <(record gpu-tests "$build" | cut -f 1)
  cmake --build "$build" -j "$(nproc)" --target "${targets[@]}"
  record gpu-tests "$build" >"$build/gpu_tests.txt"
  echo "$SLUICEWAY_COMMIT" >"$built_from"
  SECONDS=0  # A build has no limit.
  piece resources 60 "$python" .ci/cuda_resources.py "$build" | pieces 1
}

# Checks that build/cuda exists and is of this commit; otherwise prints the complaint.
is_built() {
  local found=unknown
  [ -x "$build/experiments/bench/bench_device" ] || { echo "$build is missing"; return 1; }
  [ ! -f "$built_from" ] || found=$(<"$built_from")
  [ "$found" = "$SLUICEWAY_COMMIT" ] ||
    { echo "$build is of commit $found, expected $SLUICEWAY_COMMIT"; return 1; }
}

# The slowest piece comes first. No piece is timed, so all may run at once.
part_smoke() {
  local name path
  has_torch || { say "smoke: $python has no torch, which gpu_*.py need"; return 1; }
  see_module || return 1
  {
    piece python $((seconds_a_part - 10)) "$python" -m pytest -v -n 8 -p no:cacheprovider \
      -o python_files='gpu_*.py' --timeout $((2 * a_turn)) --timeout-method thread \
      --junitxml "$work/python.xml" tests/python
    piece laptop $((seconds_a_part - 10)) "$python" -m experiments.laptop.run --steps 10 \
      --folder "$work/laptop"
    # It succeeds even if an engine fails, which is a separate finding.
    piece doctor $((2 * a_turn)) bash -c 'set -o pipefail
      "$0" -m sluiceway doctor | tee /dev/stderr | { ! grep "^engine .* missing "; }' "$python"
    quickstart subspace configs/quickstart.yaml train.steps=60
    quickstart cores configs/quickstart.yaml train.steps=60 engine.codec=block_random
    quickstart offload_disk configs/quickstart_offload_disk.yaml train.steps=60
    quickstart zo_host configs/quickstart_zo.yaml train.steps=60 engine.tier=host
    while IFS=$'\t' read -r name path; do
      piece "$name" $((2 * a_turn)) env OMP_WAIT_POLICY=passive "$build/$path" --gtest_brief=0
    done <"$build/gpu_tests.txt"
  } | pieces "$(nproc)"
}

part_sanitize() {
  local name tool
  PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:${CUDA_HOME:-/usr/local/cuda}/compute-sanitizer
  if ! command -v compute-sanitizer >/dev/null; then
    piece compute-sanitizer 10 bash -c "echo 'no compute-sanitizer on PATH'; exit $not_run" | pieces 1
    return
  fi
  {
    for tool in memcheck racecheck; do
      sanitize $tool runtime_engine_subspace_device_engine "$engine_cases"
      for name in "${sanitized_kernels[@]}"; do sanitize $tool kernels_"$name" '*/cuda*'; done
    done
    for name in stream link; do sanitize memcheck runtime_device_cuda_$name '*'; done
  } | pieces 4
}

# sanitize TOOL TEST CASES: a missing test fails as a missing command does.
sanitize() {
  local path
  path=$(sed -n "s/^$2_test\t//p" "$build/gpu_tests.txt")
  piece "$1_$2" 120 compute-sanitizer --tool "$1" --error-exitcode 9 "$build/${path:-$2_test}" \
    --gtest_filter="$3" --gtest_brief=1
}

# Projections, with the libraries beside them, and the residual come first, as a step is mostly these.
part_bench() {
  local group groups
  mapfile -t groups < <("$build/experiments/bench/bench_device" --benchmark_list_tests |
    sed 's/[^A-Za-z0-9].*//' | awk 'seen[$0]++ { next }
      /^(compress|decompress|project|residual)$/ { print; next }
      { rest = rest $0 "\n" } END { printf "%s", rest }')
  [ ${#groups[@]} -gt 0 ] || { say "bench_device lists no benchmark"; return 1; }
  for group in "${groups[@]}"; do
    piece "$group" $a_turn "$python" -m experiments.bench.report "$build" --only bench_device \
      --filter "^$group([^A-Za-z0-9]|\$)" --out "$work/$group.json"
  done | pieces 1
}

# If a turn is cut, or the device no longer answers after it, its row says so, and a new process takes
# the next turn. Turns that failed before are repeated once.
part_step() {
  local status=0 more=() retry=--retry
  has_torch || { say "step: $python has no torch"; return 1; }
  see_module || return 1
  eval "more=(${STEP_ARGS:-})"
  while [ "$(seconds_left $a_turn)" -gt 0 ]; do
    status=0
    timeout --signal=ABRT --kill-after=3 $((a_turn + 5)) "$python" -m experiments.step.step \
      --device cuda:0 --out "$out/step.json" --budget 24GiB --pacing absolute ratio --patience 10 \
      --turns 1 --turn-limit $((a_turn - 5)) --seconds "$(seconds_left $a_turn)" $retry "${more[@]}" ||
      status=$?
    retry=
    case $status in
      3) ;;  # Turns are left.
      124 | 134 | 137 | 142) say "step: a turn was cut, another process goes on" ;;
      *) return $status ;;
    esac
  done
}

part_memory() {
  local more=()
  has_torch || { say "memory: $python has no torch"; return 1; }
  see_module || return 1
  eval "more=(${MEMORY_ARGS:-})"
  "$python" -m experiments.laptop.memory --device cuda:0 --out "$out/memory.json" --retry \
    --run-limit $a_turn --seconds "$(seconds_left $a_turn)" "${more[@]}"
}

part_peers() {
  local more=()
  has_torch || { say "peers: $python has no torch"; return 1; }
  see_module || return 1
  eval "more=(${PEERS_ARGS:-})"
  "$python" -m experiments.gpu.peers --device cuda:0 --out "$out/peers.json" --turn-limit $a_turn \
    --seconds "$(seconds_left $a_turn)" "${more[@]}"
}

# The base model is too large for OUT. Without it a later call trains another one, and begins anew.
part_fidelity() {
  has_torch || { say "fidelity: $python has no torch"; return 1; }
  see_module || return 1
  "$python" -m experiments.gpu.fidelity --device cuda:0 --out "$out/fidelity.json" --base build/gpu/base.pt \
    --seconds "$(seconds_left)"
}

# Half the config's steps, so that all runs fit; one at a time, since steps are timed.
part_engines() {
  local offload=configs/quickstart_offload_disk.yaml zo=configs/quickstart_zo.yaml
  has_torch || { say "engines: $python has no torch"; return 1; }
  see_module || return 1
  {
    quickstart native configs/quickstart.yaml train.steps=60 "engine={kind: native}"
    quickstart subspace configs/quickstart.yaml train.steps=60
    quickstart cores configs/quickstart.yaml train.steps=60 engine.codec=block_random
    quickstart fused configs/quickstart.yaml train.steps=60 engine.fused=true
    quickstart offload_host $offload train.steps=60 engine.tier=host
    quickstart zo $zo train.steps=60
    quickstart zo_host $zo train.steps=60 engine.tier=host
    quickstart offload_disk $offload train.steps=60
  } | pieces 1
}

# quickstart NAME CONFIG SETTING...
quickstart() {
  local name=$1 config=$2 settings=() one
  shift 2
  for one in device.name=cuda:0 device.link=null "$@"; do
    settings+=(--set "$one")
  done
  piece "$name" $((2 * a_turn)) "$python" -m sluiceway train "$config" --out "$work/$name" "${settings[@]}"
}

# Makes Python see the package with the module of this build, without copying either. Python asks an
# editable install before PYTHONPATH, so the script hides the finder of that install.
see_module() {
  local site=$PWD/$build/site
  rm -rf "$site"
  mkdir -p "$site"
  cp -rs "$PWD/python/sluiceway" "$site/"
  rm -f "$site"/sluiceway/_core*.so
  ln -s "$PWD/$build"/python/bindings/_core*.so "$site/sluiceway/"
  touch "$site/_editable_skbc_sluiceway.py"
  export PYTHONPATH=$site${packages:+:$packages}
  "$python" -c 'import importlib.util as u, sys
sys.exit(not u.find_spec("sluiceway._core").origin.startswith(sys.argv[1]))' "$site/" ||
    { say "$python sees another sluiceway than that of $build; remove it there"; return 1; }
}

# ---- Running them ----------------------------------------------------------------------------------

# A part has a limit because every process that it waits for has one; its output goes to a file.
run_part() {
  local status=0 began=$SECONDS why
  export part=$1 work=$PWD/build/gpu/$1 out
  if ! why=$(is_built); then
    [ "$part" = build ] || { say "$part: $why; run $0 build $out"; return 1; }
    rm -f "$out/build.json"
  fi
  # Trees with different changes to one commit have the same name; an up-to-date build ends at once.
  case "$part $SLUICEWAY_COMMIT" in "build "*-dirty) rm -f "$out/build.json" ;; esac
  [ -z "$again" ] || rm -f "$out/$part.json"
  if record is-done "$part" "$out"; then
    say "$part: $out/$part.json is there (--again runs it again)"
    return 0
  fi
  rm -rf "$work"
  mkdir -p "$work"
  say "$part: writes $work/log.txt and $out/$part.json"
  "$self" --part "$part" >"$work/log.txt" 2>&1 || status=$?
  [ $status = 0 ] || tail -n 40 "$work/log.txt" >&2
  record write "$part" "$out" --work "$work" --status $status --seconds $((SECONDS - began))
  return $((status != 0))
}

main() {
  local parts again="" status=0 name every=(build smoke step memory bench engines peers fidelity sanitize)
  if [ "${1:-}" = --part ]; then
    "part_$2"
    return
  fi
  case "${1:-}" in
    -h | --help) usage; return 0 ;;
    all) parts=("${every[@]}") ;;
    table) parts=() ;;
    *)
      case " ${every[*]} " in *" ${1:-none} "*) ;; *) usage >&2; return 2 ;; esac
      parts=("$1") ;;
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
  record table "$out" "${parts[@]}"
  return $status
}

main "$@"
