#!/bin/bash
# Unpacks the pack of pack.sh on the machine with the card, and builds the module for its Python.
#
#   PACK/unpack.sh FOLDER      then: FOLDER/experiments/gpu/run.sh smoke OUT
#
# Needs no network and takes about a minute. $PYTHON, else python3, must have its own headers, torch,
# transformers and pytest; $CXX, else g++, must know C++20. The script changes nothing outside FOLDER.
#
# Exit status: 0; 1 if a command failed; 2 if this machine lacks something, with a message.
set -euo pipefail
self=$(realpath "$0")
[ $# = 1 ] && [ "${1#-}" = "$1" ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$self" >&2; exit 2; }
pack=$(dirname "$self")
mkdir -p "$1"
tree=$(realpath "$1")
readonly build=$tree/build/cuda packages=$tree/build/packages site=$tree/build/wheels
python=$(command -v "${PYTHON:-python3}" || true)
cxx=$(command -v "${CXX:-g++}" || true)

say() { echo "unpack: $*" >&2; }

# ---- Requirements ----------------------------------------------------------------------------------

missing=0
lacks() { say "$1 missing; $2"; missing=1; }

ask() { "$python" -c "$1" 2>/dev/null; }

read -r python_packed torch_packed <"$pack/for.txt"
command -v tar >/dev/null || lacks "tar is" "install it"
command -v xz >/dev/null || lacks "xz is" "install xz-utils"
if [ -z "$cxx" ]; then
  lacks "a C++ compiler is" "install g++ 12 or newer, or set CXX"
elif ! "$cxx" -std=c++20 -fsyntax-only -x c++ - <<<'#include <span>' 2>/dev/null; then
  lacks "C++20 in $cxx is" "install g++ 12 or newer, or set CXX"
fi
if [ -z "$python" ]; then
  lacks "python3 is" "install Python $python_packed, or set PYTHON"
else
  version=$(ask 'import sys; print("%d.%d" % sys.version_info[:2])')
  include=$(ask 'import sysconfig; print(sysconfig.get_path("include"))')
  suffix=$(ask 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
  torch=$(ask 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' || true)
  torch_here=$(ask 'import importlib.metadata as m; print(m.version("torch"))' || true)
  [ -f "$include/Python.h" ] || lacks "Python.h of Python $version, in $include, is" \
    "install python$version-dev, or set PYTHON to a Python that has its headers"
  [ "$version" = "$python_packed" ] || lacks "Python $python_packed is" \
    "$python is Python $version; set PYTHON, or pack with PYTHON_THERE=$version"
  [ "${torch_here%.*}" = "${torch_packed%.*}" ] || lacks "torch ${torch_packed%.*} of $python is" \
    "found ${torch_here:-none}; install torch $torch_packed, set PYTHON, or pack with the torch of this machine"
  for name in transformers pytest pytest_timeout xdist; do
    ask "import importlib.util as u, sys; sys.exit(u.find_spec('$name') is None)" ||
      say "$python has no $name: the parts of run.sh that need it will fail"
  done
fi
[ $missing = 0 ] || exit 2

# ---- Unpack ----------------------------------------------------------------------------------------

SECONDS=0
rm -rf "$build" "$packages" "$site"
mkdir -p "$build"
tar -C "$tree" -xJf "$pack/tree.tar.xz"
tar -C "$build" --strip-components=1 -xJf "$pack/built.tar.xz"
tar -C "$tree/build" -xJf "$pack/packages.tar.xz"
for wheel in "$pack"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$site"; done

# Libraries that the packed binaries load; CUDA's come from torch or from the toolkit.
nvidia=$(dirname "$torch")/nvidia/cu13/lib
libraries=$packages/lib:$torch/lib:$nvidia:${CUDA_HOME:-/usr/local/cuda}/lib64
for name in $(grep -oE '@PACKAGES@/lib/[^ ]*' "$build/link_module.txt" | sed 's#.*/##' | sort -u); do
  [ ! -e "$packages/lib/$name" ] || continue
  found=
  for file in ${libraries//:/\/$name* }/$name*; do
    [ ! -e "$file" ] || [ -n "$found" ] || found=$file
  done
  [ -n "$found" ] || { say "$name is in none of $libraries; set CUDA_HOME"; exit 2; }
  ln -s "$found" "$packages/lib/$name"
done

# ---- The module ------------------------------------------------------------------------------------

filled() {
  sed "s#@TREE@#$tree#g; s#@BUILD@#$build#g; s#@TORCH@#$torch#g; s#@INCLUDE@#$include#g
    s#@PACKAGES@#$packages#g; s#@CXX@#$cxx#g; s#@SUFFIX@#$suffix#g" "$1"
}
cd "$build"
export CPLUS_INCLUDE_PATH=$packages/include LIBRARY_PATH=$packages/lib
filled compile_module.txt >compile.sh
{ filled compile_module.txt; filled link_module.txt; } | grep -oE -- '-o [^ ]+' | cut -d ' ' -f 2 |
  xargs -n 1 dirname | sort -u | xargs mkdir -p
say "compiling $(wc -l <compile.sh) files for Python $version on $(nproc) cores"
xargs -d '\n' -P "$(nproc)" -I{} bash -c '{}' <compile.sh >compile.log 2>&1 ||
  { grep -m 5 -E 'error|No such file' compile.log >&2 || tail -n 5 compile.log >&2; say "compiling failed: $build/compile.log"; exit 1; }
# A compiler without the shared C++ library would link a second one into the module, beside torch's. It
# gets the library that Python loads.
shared_cxx=$("$cxx" -print-file-name=libstdc++.so)
[ -e "$shared_cxx" ] || shared_cxx=$(ask 'import ctypes
ctypes.CDLL("libstdc++.so.6")
print({line.split()[-1] for line in open("/proc/self/maps") if "/libstdc++.so" in line}.pop())')
filled link_module.txt | sed "s#\( && :\)\{0,1\}\$# $shared_cxx&#" |
  xargs -d '\n' -I{} bash -c '{}' >link.log 2>&1 ||
  { tail -n 5 link.log >&2; say "linking failed: $build/link.log"; exit 1; }

# run.sh reads this file, since the tree has no repository that knows the commit.
cat >environment <<END
export PYTHON=$python SLUICEWAY_COMMIT=$(<sluiceway_commit)
export LD_LIBRARY_PATH=$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} PYTHONPATH=$site
END
say "ready after $SECONDS s: $tree/experiments/gpu/run.sh smoke OUT"
