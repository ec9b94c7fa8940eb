"""experiments/gpu/pack.sh and unpack.sh: what is packed, and what a machine without it is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest
import torch
from conftest import REPOSITORY

GPU = REPOSITORY / "experiments" / "gpu"
MODULE = r"""
#include <Python.h>
#include "packed.h"
extern "C" int in_the_archive();
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", nullptr, PACKED, nullptr};
PyMODINIT_FUNC PyInit__core() {
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddIntConstant(module, "answer", in_the_archive());
  return module;
}
"""
COMPILE = (
    "@CXX@ -I@TREE@ -isystem @INCLUDE@ -fPIC -std=c++20 -o objects/module.o "
    "-c @TREE@/python/bindings/module.cpp"
)
LINK = (
    ": && @CXX@ -shared -o python/bindings/_core@SUFFIX@ objects/module.o libours.a "
    "@PACKAGES@/lib/libhere.a && :"
)


def archive(path, folder, *names: str):
    with tarfile.open(path, "w:xz") as sink:
        for name in names:
            sink.add(folder / name, name)


@pytest.fixture
def pack(tmp_path):
    """A pack with one source, an archive of ours, and a header and an archive of a package."""
    made, folder = tmp_path / "made", tmp_path / "pack"
    for name in ("python/bindings", "built", "packages/include", "packages/lib"):
        (made / name).mkdir(parents=True)
    (folder / "wheels").mkdir(parents=True)
    (made / "python/bindings/module.cpp").write_text(MODULE)
    (made / "packages/include/packed.h").write_text("#define PACKED 0\n")
    for text, library in (
        ('int answer(); extern "C" int in_the_archive() { return answer(); }', "built/libours.a"),
        (
            '#include <string>\nint answer() { return std::stoi("42"); }',
            "packages/lib/libhere.a",
        ),
    ):
        source, built = made / "a.cpp", made / "a.o"
        source.write_text(text)
        subprocess.run(["g++", "-fPIC", "-c", str(source), "-o", str(built)], check=True)
        subprocess.run(["ar", "rc", str(made / library), str(built)], check=True)
    (made / "built/compile_module.txt").write_text(COMPILE + "\n")
    (made / "built/link_module.txt").write_text(LINK + "\n")
    (made / "built/sluiceway_commit").write_text("one\n")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "for.txt").write_text(f"{here} {torch.__version__}\n")
    for name in ("built", "packages"):
        archive(folder / f"{name}.tar.xz", made, name)
    archive(folder / "tree.tar.xz", made, "python")
    shutil.copy(GPU / "unpack.sh", folder)
    wheel = folder / "wheels" / "nothing_of_note-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as sink:
        sink.writestr("nothing_of_note.py", "")
        about = "nothing_of_note-1.0.dist-info/"
        sink.writestr(
            about + "METADATA", "Metadata-Version: 2.1\nName: nothing_of_note\nVersion: 1.0\n"
        )
        sink.writestr(
            about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        sink.writestr(about + "RECORD", "")
    return folder


def unpack(pack, tree, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(pack / "unpack.sh"), str(tree)],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_module_is_compiled_for_the_python_there_and_run_sh_finds_it(pack, tmp_path):
    tree = tmp_path / "there"
    done = unpack(pack, tree)
    assert done.returncode == 0, done.stderr
    assert "compiling 1 files for Python" in done.stderr
    module = tree / f"build/cuda/python/bindings/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    told = subprocess.run(
        [sys.executable, "-c", "import _core; print(_core.answer)"],
        env={**os.environ, "PYTHONPATH": str(module.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "42\n"
    shown = 'echo "$SLUICEWAY_COMMIT $PYTHON $PYTHONPATH $LD_LIBRARY_PATH"'
    command = ["bash", "-c", f". {tree}/build/cuda/environment; {shown}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert told[:3] == ["one", sys.executable, f"{tree}/build/wheels"]
    assert told[3].startswith(f"{tree}/build/packages/lib:")
    assert (tree / "build/wheels/nothing_of_note.py").exists()
    assert unpack(pack, tree).returncode == 0, "unpacked once more, in the same folder"


def test_a_compiler_without_the_shared_cxx_library_gets_that_of_python(pack, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("""#!/bin/bash
case "$*" in *-print-file-name*) echo libstdc++.so; exit ;; esac
exec g++ -static-libstdc++ "$@"
""")
    compiler.chmod(0o755)
    done = unpack(pack, tmp_path / "there", CXX=str(compiler))
    assert done.returncode == 0, done.stderr
    (module,) = (tmp_path / "there/build/cuda/python/bindings").glob("_core*.so")
    about = subprocess.run(["objdump", "-p", module], capture_output=True, text=True, check=True)
    assert "NEEDED               libstdc++.so.6" in about.stdout


def python_that_says(folder, name: str, answers: dict[str, str]):
    """An interpreter that answers questions which contain a text, and asks the real one else."""
    path = folder / name
    cases = "".join(f'  *{text}*) echo "{answer}"; exit ;;\n' for text, answer in answers.items())
    path.write_text(f'#!/bin/bash\ncase "$2" in\n{cases}esac\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_everything_that_is_missing_is_named_at_once_before_anything_is_written(pack, tmp_path):
    tree = tmp_path / "there"
    (pack / "for.txt").write_text("3.12 2.11.0+cu130\n")
    answers = {"get_path": "/nowhere", "version_info": "3.13", "m.version": "", '"torch"': ""}
    python = python_that_says(tmp_path, "python3.13", answers)
    done = unpack(pack, tree, PYTHON=python, CXX="no-such-compiler")
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if " missing; " in line] == [
        "unpack: a C++ compiler is missing; install g++ 12 or newer, or set CXX",
        "unpack: Python.h of Python 3.13, in /nowhere, is missing; install python3.13-dev, or set "
        "PYTHON to a Python that has its headers",
        f"unpack: Python 3.12 is missing; {python} is Python 3.13; set PYTHON, or pack with "
        "PYTHON_THERE=3.13",
        f"unpack: torch 2.11 of {python} is missing; found none; install torch 2.11.0+cu130, set "
        "PYTHON, or pack with the torch of this machine",
    ]
    assert list(tree.iterdir()) == []
    done = unpack(pack, tree, PYTHON="no-such-python")
    assert "python3 is missing; install Python 3.12, or set PYTHON" in done.stderr


def test_a_torch_of_another_minor_version_is_refused(pack, tmp_path):
    python = python_that_says(tmp_path, "python", {"m.version": "2.99.1"})
    done = unpack(pack, tmp_path / "there", PYTHON=python)
    assert done.returncode == 2
    assert f" of {python} is missing; found 2.99.1; install torch 2." in done.stderr


def test_a_library_that_no_one_brings_is_named(pack, tmp_path):
    (tmp_path / "packages").mkdir()
    archive(pack / "packages.tar.xz", tmp_path, "packages")
    done = unpack(pack, tmp_path / "there")
    assert done.returncode == 2
    assert "unpack: libhere.a is in none of " in done.stderr


def test_a_source_that_does_not_compile_says_why_and_which_log_has_more(pack, tmp_path):
    made = tmp_path / "made"
    (made / "python/bindings/module.cpp").write_text('#include "no_such_header.h"\n')
    archive(pack / "tree.tar.xz", made, "python")
    done = unpack(pack, tmp_path / "there")
    assert done.returncode == 1
    assert "no_such_header.h: No such file" in done.stderr
    assert "unpack: compiling failed: " in done.stderr


# What pack.sh asks of the tools that build; FAKES/asked has every call.
NINJA = """#!/bin/bash
echo "ninja $*" >>"$FAKES/asked"
[ "$3" != -t ] || { cat "$FAKES/commands"; exit; }
cd "$2"
mkdir -p tests experiments/bench
for name in libours.a tests/a_test experiments/bench/bench_device; do cp /bin/true $name; done
"""
CTEST = """#!/bin/bash
printf '{"tests": [{"name": "a_test", "command": ["%s/tests/a_test"]}]}' "$2"
"""


@pytest.fixture
def sandbox(tmp_path):
    """A repository with pack.sh, and stand-ins for cmake, ninja, ctest, nvcc, dpkg and pip."""
    root, tools = tmp_path / "tree", tmp_path / "tools"
    for name in ("gpu", "quickstart"):
        (root / "experiments" / name).mkdir(parents=True)
    for path in (*GPU.iterdir(), *(REPOSITORY / "experiments/quickstart").glob("*.py")):
        if path.is_file():
            shutil.copy(path, root / path.relative_to(REPOSITORY))
    for name in ("experiments/harness.py", "python"):
        (root / name).symlink_to(REPOSITORY / name)
    tools.mkdir()
    (tools / "cuda").mkdir()
    for name in ("cudart_static", "cudadevrt"):
        (tools / f"cuda/lib{name}.a").touch()
    commands = (
        f"/usr/bin/ccache /usr/bin/c++ -I{root} -Werror -o objects/module.o "
        f"-c {root}/python/bindings/module.cpp\n"
        f": && /usr/bin/c++ -shared -o python/bindings/_core.cpython-311-x86_64-linux-gnu.so "
        f"objects/module.o -L{tools}/cuda -Wl,-rpath,{tools}/cuda: libours.a "
        f"{tools}/cuda/libcudart_static.a -lcudadevrt && :\n"
    )
    (tools / "commands").write_text(commands)
    scripts = {"ninja": NINJA, "ctest": CTEST, "cmake": '#!/bin/bash\nmkdir -p "$4"\n',
               "nvcc": "#!/bin/bash\n", "strip": "#!/bin/bash\n",
               "dpkg": "#!/bin/bash\necho /usr/include/stdio.h\n"}  # fmt: skip
    for name, text in scripts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    wheels = tools / "python"
    wheels.write_text(f"""#!/bin/bash
[ "$3" != download ] || {{
  name=${{@: -1}}; while [ "$1" != --dest ]; do shift; done; mkdir -p "$2"
  case "$name" in $(cat "$FAKES/no_wheel")) exit 1 ;; esac
  touch "$2/$name.whl"; exit
}}
exec {sys.executable} "$@"
""")
    wheels.chmod(0o755)
    (tools / "no_wheel").write_text("flashoptim*")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root, tools


def run_pack(sandbox, out, **environment) -> subprocess.CompletedProcess:
    root, tools = sandbox
    here = {**os.environ, "FAKES": str(tools), "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHON": str(tools / "python"), "SLUICEWAY_COMMIT": "one", **environment}  # fmt: skip
    return subprocess.run(
        [str(root / "experiments/gpu/pack.sh"), str(out)],
        env=here, capture_output=True, text=True, check=False,
    )  # fmt: skip


def text_in(pack, archived: str, name: str) -> str:
    with tarfile.open(pack / archived) as source:
        return source.extractfile(name).read().decode()


def test_a_pack_has_tree_build_packages_wheels_and_commands_without_folders(sandbox, tmp_path):
    _, tools = sandbox
    pack = tmp_path / "pack"
    done = run_pack(sandbox, pack)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in pack.iterdir()} == {
        "tree.tar.xz", "built.tar.xz", "packages.tar.xz", "unpack.sh", "for.txt", "wheels",
    }  # fmt: skip
    compiling = text_in(pack, "built.tar.xz", "built/compile_module.txt")
    source = "-o objects/module.o -c @TREE@/python/bindings/module.cpp"
    assert compiling == f"@CXX@ -I@TREE@ {source}\n", "a newer compiler's warnings are no errors"
    assert text_in(pack, "built.tar.xz", "built/link_module.txt") == (
        ": && @CXX@ -shared -o python/bindings/_core@SUFFIX@ objects/module.o libours.a "
        "@PACKAGES@/lib/libcudart_static.a -lcudadevrt && :\n"
    )
    assert text_in(pack, "built.tar.xz", "built/gpu_tests.txt") == "a_test\ttests/a_test\n"
    assert text_in(pack, "built.tar.xz", "built/sluiceway_commit") == "one\n"
    assert text_in(pack, "tree.tar.xz", "experiments/gpu/run.sh")
    for name in ("include/stdio.h", "lib/libcudart_static.a", "lib/libcudadevrt.a"):
        assert text_in(pack, "packages.tar.xz", f"packages/{name}") is not None
    wheels = {path.name.partition("==")[0].removesuffix(".whl") for path in pack.glob("wheels/*")}
    assert wheels >= {"pydantic", "pydantic_core", "annotated-types", "typing-inspection"}
    assert "no wheel of flashoptim: `peers` will say that it is not installed" in done.stderr
    built = next(line for line in (tools / "asked").read_text().splitlines() if " -t " not in line)
    assert built.endswith("libours.a a_test bench_device")


def test_a_pack_that_is_too_large_or_lacks_a_wheel_is_a_failure(sandbox, tmp_path):
    _, tools = sandbox
    done = run_pack(sandbox, tmp_path / "pack", PACK_LIMIT_MIB="0")
    assert done.returncode == 1
    assert "MiB, expected at most 0" in done.stderr
    (tools / "no_wheel").write_text("pydantic_core*")
    done = run_pack(sandbox, tmp_path / "pack", PYTHON_THERE="3.13")
    assert done.returncode == 1
    assert "no wheel of pydantic_core for Python 3.13" in done.stderr


def test_a_command_that_names_a_file_of_this_machine_is_a_failure(sandbox, tmp_path):
    _, tools = sandbox
    commands = (tools / "commands").read_text()
    (tools / "commands").write_text(commands.replace("-Werror", "-I/opt/only/here"))
    done = run_pack(sandbox, tmp_path / "pack")
    assert done.returncode == 1
    assert "name files that the pack lacks: -I/opt/only/here" in done.stderr
