"""Rooms include only what they may, and forbidden functions are never called.

Rooms look only to their left, and some headers belong to some files.

The rules are checked on this tree, and on small bad trees to show that each of them can fail.
"""

import re
from pathlib import Path

import pytest
from conftest import REPOSITORY

# A file may include its own room and those before it.
ROOMS = [
    "kernels/base",
    "runtime/trace",
    "kernels",
    "runtime/device",
    "runtime/memory",
    "runtime/store",
    "runtime/schedule",
    "compress",
    "runtime/engine",
    "runtime/engine/stream",
    "runtime/engine/subspace",
    "runtime/engine/offload",
    "runtime/engine/zo",
    "python/bindings",
]
TREES = ["kernels", "runtime", "compress", "python", "tests", "experiments"]

TORCH = re.compile(r"(torch|ATen|c10|caffe2|pybind11)/")
CUDA = re.compile(
    r"(cuda|cublas|cusparse|cusolver|curand|cufile|nvml|nvrtc|vector_types|cooperative_groups"
    r"|device_launch_parameters|cub/|thrust/|nv/|nvtx3/)"
)
LIBURING = re.compile(r"liburing")

# Calls that let a stream of a device wait for a thread of the host (runtime/device/stream.h, D1).
HOLDS_A_DEVICE = re.compile(
    r"\b(cu(da)?LaunchHostFunc\w*|cu(da)?StreamAddCallback|cuStream(Wait|Write|Batch)\w*Value\w*"
    r"|cuStreamBatchMemOp\w*|cu(da)?GraphAdd(Host|BatchMemOp)Node|cudaHostFn_t)\b"
)
PRODUCT = ("kernels/", "runtime/", "compress/", "python/")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
BUILD_FLAG = re.compile(
    r"^\s*#\s*(?:el)?if.*\bSLUICEWAY_(CUDA|EAGER_SPILL|SANITIZE|SIMT|TESTS|PYTHON)\b", re.MULTILINE
)


def room_of(path: str) -> str | None:
    """The innermost room that holds a path, None for tests, experiments and foreign headers."""
    holders = [room for room in ROOMS if path.startswith(room + "/")]
    return max(holders, key=len, default=None)


def may_include_torch(path: str) -> bool:
    """The bindings, whose tensor.cpp and host_allocator.cpp do."""
    return path.startswith("python/")


def may_include_cuda(path: str) -> bool:
    """CUDA sources anywhere, the room that owns streams, and what stands in for CUDA."""
    rooms = ("runtime/device/cuda/", "tests/support/simt/")
    return path.endswith((".cu", ".cuh")) or path.startswith(rooms)


def may_include_liburing(path: str) -> bool:
    """One file speaks to the ring, and the bare loop that it is measured against."""
    return path in ("runtime/store/uring_io.cpp", "experiments/bench/uring_loop.cpp")


ONLY_RULES = [
    (TORCH, may_include_torch, "only python/ may include libtorch"),
    (CUDA, may_include_cuda, "only *.cu, *.cuh, runtime/device/cuda/ and simt/ may include CUDA"),
    (
        LIBURING,
        may_include_liburing,
        "only runtime/store/uring_io.cpp and experiments/bench/uring_loop.cpp may include liburing",
    ),
]


def complaints_about(root: Path, path: str) -> list[str]:
    """Every broken rule of one file, as `path: header: rule`."""
    text = (root / path).read_text(encoding="utf-8")
    room = room_of(path)
    found = []
    for quote, header in INCLUDE.findall(text):
        for pattern, allowed, rule in ONLY_RULES:
            if pattern.match(header) and not allowed(path):
                found.append(f"{path}: {header}: {rule}")
        if quote == "<":
            continue
        target = room_of(header)
        if not (root / header).is_file():
            found.append(f"{path}: {header}: not a file, includes are written from the root")
        elif room is not None and target is None:
            found.append(f"{path}: {header}: a room may not include {header.split('/')[0]}/")
        elif room is not None and ROOMS.index(target) > ROOMS.index(room):
            found.append(f"{path}: {header}: {target} stands to the right of {room}")
    if path.endswith((".h", ".cuh")) and BUILD_FLAG.search(text):
        found.append(f"{path}: headers never test build flags")
    if path.startswith(PRODUCT) and (held := HOLDS_A_DEVICE.search(text)):
        found.append(f"{path}: {held.group()}: no stream of a device waits for the host")
    return found


def complaints(root: Path) -> list[str]:
    """Every broken rule of a tree."""
    paths = [
        path.relative_to(root).as_posix()
        for tree in TREES
        for path in sorted((root / tree).rglob("*"))
        if path.suffix in {".h", ".cpp", ".cu", ".cuh"}
    ]
    return [line for path in paths for line in complaints_about(root, path)]


def test_every_include_of_this_tree_points_left() -> None:
    assert complaints(REPOSITORY) == []


def test_the_reader_sees_this_tree() -> None:
    headers = [
        header
        for path in REPOSITORY.glob("kernels/*.h")
        for _, header in INCLUDE.findall(path.read_text(encoding="utf-8"))
    ]
    assert "kernels/base/view.h" in headers


def write_tree(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


GOOD_TREE = {
    "kernels/base/view.h": "#pragma once\n#include <span>\n",
    "kernels/adam.h": '#include "kernels/base/view.h"\n',
    "kernels/adam_cuda.cu": "#include <cuda_runtime.h>\n",
    "runtime/trace/trace.h": '#include "kernels/base/view.h"\n',
    "runtime/device/stream.h": '#include "runtime/trace/trace.h"\n',
    "runtime/device/cuda/stream.cpp": "#include <cuda_runtime_api.h>\n",
    "runtime/store/uring_io.cpp": "#include <liburing.h>\n",
    "compress/learner.h": '#include "kernels/adam.h"\n',
    "runtime/engine/subspace_engine.h": '#include "compress/learner.h"\n',
    "runtime/engine/stream/ring.h": "#pragma once\n",
    "runtime/engine/zo/pass.h": '#include "runtime/engine/stream/ring.h"\n',
    "python/bindings/module.cpp": '#include <pybind11/pybind11.h>\n#include "kernels/adam.h"\n',
    "tests/support/matrix.h": '#include "kernels/base/view.h"\n',
    "tests/kernels/adam_test.cpp": '#include "tests/support/matrix.h"\n',
}


def test_a_tree_that_keeps_the_rules_is_silent(tmp_path: Path) -> None:
    write_tree(tmp_path, GOOD_TREE)
    assert complaints(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "text", "rule"),
    [
        ("kernels/bad.h", '#include "runtime/device/stream.h"', "right of kernels"),
        ("kernels/base/bad.h", '  #  include "kernels/adam.h"', "right of kernels/base"),
        ("runtime/trace/bad.cpp", '#include "kernels/adam.h"', "right of runtime/trace"),
        ("compress/bad.h", '#include "runtime/engine/subspace_engine.h"', "right of compress"),
        (
            "runtime/engine/stream/bad.h",
            '#include "runtime/engine/zo/pass.h"',
            "right of runtime/engine/stream",
        ),
        ("kernels/bad.h", '#include "tests/support/matrix.h"', "may not include tests/"),
        ("kernels/bad.h", '#include "view.h"', "written from the root"),
        ("tests/kernels/bad_test.cpp", '#include "adam.h"', "written from the root"),
        ("compress/codec.h", "#include <ATen/ATen.h>", "may include libtorch"),
        ("runtime/engine/bad.cpp", "#include <c10/util/Half.h>", "may include libtorch"),
        ("kernels/bad.cpp", "#include <pybind11/pybind11.h>", "may include libtorch"),
        ("tests/runtime/bad.cpp", "#include <torch/torch.h>", "may include libtorch"),
        ("runtime/device/stream.cpp", "#include <cuda_runtime.h>", "may include CUDA"),
        ("kernels/bad.h", "#include <cub/cub.cuh>", "may include CUDA"),
        ("runtime/store/posix_io.cpp", "#include <liburing.h>", "may include liburing"),
        ("kernels/bad.h", "#ifdef SLUICEWAY_CUDA", "build flags"),
        ("kernels/bad.cuh", "#if defined(SLUICEWAY_CUDA)", "build flags"),
        (
            "runtime/device/cuda/bad.cpp",
            "cuStreamWaitValue32_v2(s, a, 1, 0);",
            "waits for the host",
        ),
        ("runtime/engine/bad.cpp", "cudaLaunchHostFunc(s, call, p);", "waits for the host"),
    ],
)
def test_each_broken_rule_is_named(tmp_path: Path, path: str, text: str, rule: str) -> None:
    write_tree(tmp_path, GOOD_TREE | {path: f"// First line.\n{text}\n#include <span>\n"})
    found = complaints(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(f"{path}: ")
    assert rule in found[0]
