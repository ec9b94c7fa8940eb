"""No function of the package and of the runtime is longer than a screen.

Functions of C++ are found by their braces, which clang-format puts where this reader expects them:
a body opens after a blank, an initialiser right after a name.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from conftest import REPOSITORY

TREES = ("kernels", "runtime", "compress", "python/bindings", "python/sluiceway")
CPP = {".h", ".cpp", ".cu", ".cuh"}
FUNCTION_LINES = 60

# Comments, texts and characters, and directives with their continued lines.
SILENT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\''
    r"|^[ \t]*#(?:[^\n\\]|\\.)*",
    re.DOTALL | re.MULTILINE,
)
ACCESS = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
HOLDER = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()=]*$")


def python_functions(text: str) -> list[tuple[str, int]]:
    """Every function, its length in lines; what is defined inside counts."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (node.name, node.end_lineno - node.lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds)
    ]


def cpp_functions(text: str) -> list[tuple[str, int]]:
    """The same of C++, from the first line of the declaration to the closing brace."""
    # Lines stay lines, whatever is taken out.
    text = SILENT.sub(lambda hit: "\n" * hit.group().count("\n") or "0", text)
    found: list[tuple[str, int]] = []
    holders, body = 0, None  # Namespaces and classes around; (name, first line, braces inside).
    began, line, initialiser = 0, 1, 0
    for place, letter in enumerate(text):
        if letter == "\n":
            line += 1
        elif letter == "{":
            before = ACCESS.split(text[began:place])[-1]
            if body is not None:
                body[2] += 1
            elif initialiser or not before.endswith((" ", "\n")) or before.rstrip()[-1:] in "=,(":
                initialiser += 1
            elif HOLDER.search(re.sub(r"<[^;]*>|\(.*?\)", "", before)) or not before.strip():
                holders, began = holders + 1, place + 1
            else:
                first = line - before.strip().count("\n")
                names = re.findall(r"([\w:~]+|operator\S+)\s*\(", before)
                body = [names[0] if names else before.strip(), first, 0]
        elif letter == "}":
            if body is not None and body[2]:
                body[2] -= 1
            elif body is not None:
                found.append((body[0], line - body[1] + 1))
                body, began = None, place + 1
            elif initialiser:
                initialiser -= 1
            else:
                holders, began = holders - 1, place + 1
        elif letter == ";" and body is None and not initialiser:
            began = place + 1
    assert (holders, body, initialiser) == (0, None, 0), "braces that do not match"
    return found


def complaints(root: Path) -> list[str]:
    """Return every function that is too long."""
    found = []
    for tree in TREES:
        for path in sorted((root / tree).rglob("*")):
            if path.suffix not in CPP | {".py"}:
                continue
            text, place = path.read_text(encoding="utf-8"), path.relative_to(root)
            functions = python_functions(text) if path.suffix == ".py" else cpp_functions(text)
            found += [
                f"{place}: {name}: {length} lines, expected at most {FUNCTION_LINES}"
                for name, length in functions
                if length > FUNCTION_LINES
            ]
    return found


def test_no_function_is_longer_than_a_screen() -> None:
    assert complaints(REPOSITORY) == []


@pytest.mark.parametrize(
    ("tree", "name", "least"), [("runtime", "engine/*.cpp", 20), ("python", "**/*.py", 200)]
)
def test_the_reader_sees_the_functions_of_this_tree(tree: str, name: str, least: int) -> None:
    read = python_functions if name.endswith("py") else cpp_functions
    texts = [path.read_text(encoding="utf-8") for path in (REPOSITORY / tree).glob(name)]
    assert len([function for text in texts for function in read(text)]) >= least


CPP_TEXT = """
#define TWICE(x) \\
  { x; x }
namespace a {
namespace {

// A comment {
constexpr int kTable[] = {1, 2};
struct Config {
  int depth{1};
  std::string text = "{";
};

template <typename T>
T first(const std::vector<T>& many,
        int at) {
  const auto one = [&] { return many[at]; };
  if (at < 0) {
    return {};
  }
  return one();
}

}  // namespace

class Holder : public Config {
 public:
  explicit Holder(int depth) : depth_{depth}, limits_{{1, 2}} {}
  int depth() const { return depth_; }

 private:
  int depth_;
};

Holder::~Holder() { close('{'); }

Holder::Holder(int one, int two)
    : depth_{one},
      other_(two) {
  start();
}

}  // namespace a
"""


def test_functions_of_cpp_are_found_with_their_lengths() -> None:
    assert cpp_functions(CPP_TEXT) == [
        ("first", 9),
        ("Holder", 1),
        ("depth", 1),
        ("Holder::~Holder", 1),
        ("Holder::Holder", 5),
    ]


def cpp_of(lines: int) -> str:
    body = "  work();\n" * (lines - 2)
    return f"namespace a {{\n\nvoid f(int x) {{\n{body}}}\n\n}}  // namespace a\n"


def python_of(lines: int) -> str:
    return "class A:\n    def f(self):\n" + "        work()\n" * (lines - 1)


@pytest.mark.parametrize(
    ("path", "text"),
    [("runtime/engine/a.cpp", cpp_of), ("python/sluiceway/run/a.py", python_of)],
    ids=["cpp", "python"],
)
def test_one_line_too_many_is_named(tmp_path: Path, path: str, text) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text(FUNCTION_LINES))
    assert complaints(tmp_path) == []
    (tmp_path / path).write_text(text(FUNCTION_LINES + 1))
    assert complaints(tmp_path) == [
        f"{path}: f: {FUNCTION_LINES + 1} lines, expected at most {FUNCTION_LINES}"
    ]
