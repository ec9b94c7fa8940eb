#!/bin/bash
# Builds on this machine for a card in another one, and packs what a bare machine without network
# needs.
#
#   experiments/gpu/pack.sh PACK      there: PACK/unpack.sh FOLDER, then FOLDER/experiments/gpu/run.sh
#
# PACK receives the work tree (commit and changes), the archives that the Python module is linked
# from, the tests with the label `gpu` and `bench_device`, all stripped, the commands that compile and
# link the module, headers and libraries of the Debian packages that these commands use, and wheels.
#
# ARCHITECTURES names those of the card (default: 90), PYTHON_THERE the Python version beside the card
# (default: 3.12), PACK_LIMIT_MIB the largest size of PACK (default: 64). The build uses the torch of
# $PYTHON, else of .venv/bin/python. nvcc comes from PATH, from CUDA_HOME or /usr/local/cuda, else from
# PyPI.
#
# Exit status: 0; 1 if something failed, or PACK is too large; 2 if the command line is wrong.
set -euo pipefail
self=$(realpath "$0")
[ $# = 1 ] && [ "${1#-}" = "$1" ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$self" >&2; exit 2; }
mkdir -p "$1"
pack=$(realpath "$1")
cd "$(dirname "$self")/../.."

readonly tree=$PWD build=$PWD/build/pack made=$PWD/build/pack_files
readonly architectures=${ARCHITECTURES:-90} python_there=${PYTHON_THERE:-3.12} limit_mib=${PACK_LIMIT_MIB:-64}
readonly python=${PYTHON:-$tree/.venv/bin/python}
# Packages that the module's sources include, and that its archives and the tests are linked with.
readonly header_packages=(libhwy-dev libxxhash-dev liburing-dev libblkid-dev libeigen3-dev nlohmann-json3-dev)
# The optimizers of `peers` are packed if their wheels are available.
readonly wheels=(pydantic pydantic_core annotated-types typing-inspection) peers=(torchao flashoptim)

say() { echo "pack: $*" >&2; }

fail() { say "$*"; exit 1; }

command -v xz >/dev/null || fail "there is no xz; install xz-utils"

record() { PYTHONPATH=$tree/python "$python" -m experiments.gpu.record "$@"; }

where_is() { "$python" -c 'import importlib.util as u, sys
print(u.find_spec(sys.argv[1]).submodule_search_locations[0])' "$1"; }

# Prints the path of nvcc. If there is none, fetches the one of torch's CUDA version, and puts it
# beside the libraries that came with torch.
find_nvcc() {
  local nvcc cuda=$tree/build/pack_cuda site minor name
  for nvcc in "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    [ ! -x "$nvcc" ] || { echo "$nvcc"; return; }
  done
  site=$(where_is nvidia)/cu13
  minor=$("$python" -c 'import torch; print(torch.version.cuda)')
  [ -d "$site" ] || fail "torch in $python brings no CUDA 13 libraries; set CUDA_HOME to a toolkit"
  if [ ! -x "$cuda/bin/nvcc" ]; then
    say "no nvcc on PATH or in CUDA_HOME: fetching that of CUDA $minor"
    rm -rf "$cuda" "$cuda.fetched"
    "$python" -m pip install --quiet --no-deps --target "$cuda.fetched" "nvidia-cuda-nvcc==$minor.*" \
      "nvidia-nvvm==$minor.*" "nvidia-cuda-crt==$minor.*" "nvidia-cuda-cccl==$minor.*" >&2
    cp -a "$cuda.fetched/nvidia/cu13" "$cuda"
    rm -rf "$cuda.fetched"
    cp -rsn "$site/." "$cuda/"
    for name in cudart cublas cublasLt cusparse nvJitLink; do
      ln -sfn "$(cd "$cuda/lib" && ls lib$name.so.*)" "$cuda/lib/lib$name.so"
    done
    ln -sfn lib "$cuda/lib64"
  fi
  echo "$cuda/bin/nvcc"
}

# ---- Build -----------------------------------------------------------------------------------------

nvcc=$(find_nvcc)
commit=$(record commit)
say "commit $commit, sm_$architectures, $nvcc"
cmake --preset cuda -B "$build" -DCMAKE_CUDA_ARCHITECTURES="$architectures" \
  -DCMAKE_CUDA_COMPILER="$nvcc" -DPython3_EXECUTABLE="$python" >/dev/null
commands=$(ninja -C "$build" -t commands _core _host_allocator)
link=$(grep -- ' -shared ' <<<"$commands")  # One line for each module.
mapfile -t archives < <(tr ' ' '\n' <<<"$link" | grep '^[^/].*\.a$' | sort -u)
mapfile -t tests < <(record gpu-tests "$build" | cut -f 1)
[ ${#tests[@]} -gt 0 ] || fail "no test has the label gpu"
ninja -C "$build" -j "${JOBS:-$(nproc)}" "${archives[@]}" "${tests[@]}" bench_device
record gpu-tests "$build" >"$build/gpu_tests.txt"
mapfile -t binaries < <(cut -f 2 "$build/gpu_tests.txt")
binaries+=(experiments/bench/bench_device)

# ---- Files from outside the tree -------------------------------------------------------------------

rm -rf "$made"
mkdir -p "$made/built" "$made/packages/lib"
tar -C "$build" -cf - "${archives[@]}" "${binaries[@]}" gpu_tests.txt | tar -C "$made/built" -xf -
find "$made/built" -name '*.a' -exec strip -g {} +
(cd "$made/built" && strip "${binaries[@]}")
echo "$commit" >"$made/built/sluiceway_commit"

dpkg -L "${header_packages[@]}" | grep ^/usr/include/ | while read -r file; do
  [ ! -f "$file" ] || echo "${file#/usr/}"
done | tar -C /usr -cf - -T - | tar -C "$made/packages" -xf -

# Libraries of the distribution, but for those that every Linux has.
linked=$(tr ' ' '\n' <<<"$link" | grep -E '^/.*\.(so|a)[0-9.]*$')
linked+=$'\n'$(dirname "$(grep /libcudart_static <<<"$linked")")/libcudadevrt.a  # nvcc adds it.
for binary in "${binaries[@]}"; do ldd "$made/built/$binary" || true; done |
  sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | cat - <(echo "$linked") | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libutil|libstdc\+\+|libgcc_s)\.so' |
  while read -r file; do
    case $(realpath "$file") in
      *.a) cp -L "$file" "$made/packages/lib/" ;;
      /usr/lib/*.so*)
        soname=$(objdump -p "$file" | sed -n 's/^ *SONAME *//p')
        cp -L "$file" "$made/packages/lib/$soname"
        ln -sfn "$soname" "$made/packages/lib/${soname%%.so*}.so" ;;
    esac
  done

pybind11=$(where_is pybind11)
cp -r "$pybind11/include/pybind11" "$made/packages/include/"

# ---- Commands, with names in the place of folders --------------------------------------------------

# Folders that unpack.sh fills in again: this tree, its build folder, torch, the headers of Python.
include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
torch=$(where_is torch)
as_template() {
  sed -E "s#^(: && )?([^ ]*ccache )?/[^ ]*/(c\+\+|g\+\+)[^ ]* #\1@CXX@ #; s# (-Werror|-L/[^ ]*|-Wl,-rpath,[^ ]*)##g
    s#$pybind11/include#@PACKAGES@/include#g; s#$tree/.venv/[^ ]*/pybind11/include#@PACKAGES@/include#g
    s#$build#@BUILD@#g; s#$tree/.venv/[^ ]*/torch/#@TORCH@/#g; s#$torch#@TORCH@#g; s#$include#@INCLUDE@#g
    s#$tree#@TREE@#g; s#/usr/include#@PACKAGES@/include#g
    s#(_core|_host_allocator)\.cpython-[^ ]*\.so#\1@SUFFIX@#g
    s#(^| )/[^ ]*/([^ /]*\.(a|so))[0-9.]*#\1@PACKAGES@/lib/\2#g"
}
grep ' -c ' <<<"$commands" | grep /python/bindings/ | as_template >"$made/built/compile_module.txt"
as_template <<<"$link" >"$made/built/link_module.txt"
if strange=$(grep -ohE '(^| |-I)/[^ ]+' "$made"/built/{compile,link}_module.txt | sort -u); then
  fail "the module's commands name files that the pack lacks:" $strange
fi

# ---- The pack --------------------------------------------------------------------------------------

rm -rf "$pack"/{tree,built,packages}.tar.xz "$pack/wheels"
git ls-files -z --cached --others --exclude-standard -- . ':!*.png' \
  ':!experiments/*/results/*' ':!experiments/*/results.jsonl' |
  xargs -0 ls -d 2>/dev/null | tar -T - -cf - | xz -3 >"$pack/tree.tar.xz"
# Every test contains the same archives, which a large dictionary stores once.
for name in built packages; do
  tar -C "$made" -cf - $name | xz --lzma2=preset=6,dict=64MiB >"$pack/$name.tar.xz"
done
for name in "${wheels[@]}" "${peers[@]}"; do
  # Takes the versions installed here, and the newest of packages that are not installed.
  version=$("$python" -c 'import importlib.metadata as m, sys; print("==" + m.version(sys.argv[1]))' \
    "$name" 2>/dev/null || true)
  "$python" -m pip download --quiet --no-deps --only-binary :all: --python-version "$python_there" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --dest "$pack/wheels" "$name$version" || case " ${peers[*]} " in
      *" $name "*) say "no wheel of $name: \`peers\` will say that it is not installed" ;;
      *) fail "no wheel of $name for Python $python_there" ;;
    esac
done
cp "$(dirname "$self")/unpack.sh" "$pack/"
torch_version=$("$python" -c 'import importlib.metadata as m; print(m.version("torch"))')
echo "$python_there $torch_version" >"$pack/for.txt"
size_mib=$(du -sm --apparent-size "$pack" | cut -f 1)
du -a --apparent-size --block-size=KiB "$pack" | sort -rn >&2
[ "$size_mib" -le "$limit_mib" ] || fail "$pack holds $size_mib MiB, expected at most $limit_mib"
say "$pack holds $size_mib MiB; on the machine with the card: $(basename "$pack")/unpack.sh FOLDER"
