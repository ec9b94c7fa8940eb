"""Every mention of a document resolves: the file is in the repository, and the section is in it.

A mention is the name of a Markdown file, from the root or from the folder it is mentioned in, with
`section 2`, `sections 2 and 4` or `#heading` behind it where it names one. The rule is checked on
this tree, and on small bad trees to show that it can fail.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import REPOSITORY

from experiments.harness import read_rows
from experiments.plan.what_fits import MACHINES, MODELS, RESULTS, table

TREES = (".ci", "compress", "configs", "docs", "experiments", "kernels", "python", "runtime",
         "tests")  # fmt: skip
KINDS = {".h", ".cpp", ".cu", ".cuh", ".py", ".pyi", ".md", ".txt", ".yaml", ".toml", ".css", ""}
MD = "." + "md"  # So that the examples below are no mentions.

ADDRESS = re.compile(r"\w+://\S+")
# A line that goes on: in a comment of any kind, a list, a quotation, or a text cut in two.
NEXT_LINE = re.compile(r'"?\s*\n\s*(?://|#(?= )|\*|>|f?")?[ \t]*')
MENTION = re.compile(
    r"(?P<name>[\w.][\w./-]*\.md)\b`?(?:\]\([^)]*\))?(?:"
    r"#(?P<heading>[\w-]+)"
    r"|,?\s+sections?\s+(?P<sections>\d+(?:\.\d+)*(?:(?:, | and |, and )\d+(?:\.\d+)*)*))?"
)
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def headings_of(text: str) -> list[str]:
    """Headings of a Markdown file, without what only looks like one in an example."""
    return HEADING.findall(FENCED.sub("", text))


def slug(heading: str) -> str:
    """Anchor of a heading, which follows the # of a link."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def mentions_in(text: str) -> list[tuple[str, str | None, list[str]]]:
    """Name, heading and numbers of sections of every mention."""
    text = NEXT_LINE.sub(" ", ADDRESS.sub(" ", text))
    return [
        (hit["name"], hit["heading"], re.findall(r"[\d.]*\d", hit["sections"] or ""))
        for hit in MENTION.finditer(text)
    ]


def complaints_about(root: Path, path: Path) -> list[str]:
    """Every mention in one file that leads nowhere."""
    found, place = [], path.relative_to(root)
    for name, heading, sections in mentions_in(path.read_text(encoding="utf-8")):
        name = name.rpartition("dist-info/licenses/")[2]  # Of a wheel: copies of those at the root.
        places = [folder / name for folder in (path.parent, root)]
        document = next((document for document in places if document.is_file()), None)
        if document is None:
            found.append(f"{place}: {name} is not there")
            continue
        headings = headings_of(document.read_text(encoding="utf-8"))
        if heading and heading not in map(slug, headings):
            found.append(f"{place}: {name} has no heading #{heading}")
        found += [
            f"{place}: {name} has no section {number}"
            for number in sections
            if not any(re.match(rf"{re.escape(number)}\.?(?: |$)", title) for title in headings)
        ]
    return found


def complaints(root: Path) -> list[str]:
    """Every mention in a tree that leads nowhere."""
    inside = [path for tree in TREES for path in sorted((root / tree).rglob("*"))]
    return [
        line
        for path in [*sorted(root.glob("*")), *inside]
        if path.is_file() and path.suffix in KINDS and "__pycache__" not in path.parts
        for line in complaints_about(root, path)
    ]


def test_every_document_that_is_mentioned_is_there_with_its_section() -> None:
    assert complaints(REPOSITORY) == []


def test_the_reader_sees_this_tree() -> None:
    readme = (REPOSITORY / ("README" + MD)).read_text(encoding="utf-8")
    named = {name for name, _, _ in mentions_in(readme)}
    assert {"CONTRIBUTING" + MD, "experiments/fidelity/README" + MD} <= named


def test_mentions_go_over_the_end_of_a_line_and_name_several_sections() -> None:
    text = (
        f"// as docs/a{MD}\n//   section 2 says\n"
        f"# `b{MD}`, sections 1, 2.1 and 4; [c](sub/c{MD}#of-it)\n"
        f'x = "in docs/d{MD} "\n    "section 3"\n'
        f"see https://example.org/e{MD} section 9 and f{MD}."
    )
    assert mentions_in(text) == [
        (f"docs/a{MD}", None, ["2"]),
        (f"b{MD}", None, ["1", "2.1", "4"]),
        (f"sub/c{MD}", "of-it", []),
        (f"docs/d{MD}", None, ["3"]),
        (f"f{MD}", None, []),
    ]


def write_tree(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


GOOD_TREE = {
    f"README{MD}": f"# Title\n\n[how](docs/a{MD}#2-the-step), and docs/a{MD} section 1.\n",
    f"docs/a{MD}": f"# A\n\n## 1. First\n\n```sh\n## 7 no heading\n```\n\n## 2 The step\nb{MD}\n",
    f"docs/b{MD}": f"# B\n\n### 2.1 Inner\n\nSee a{MD} section 2.\n",
    "kernels/a.h": f"// W <- W + S   [LSP] docs/a{MD} section 2; docs/b{MD}\n// section 2.1\n",
    "python/a.py": f'"""As in `docs/a{MD}`, sections 1 and 2."""\n',
}


def test_tree_whose_mentions_lead_somewhere_is_silent(tmp_path: Path) -> None:
    write_tree(tmp_path, GOOD_TREE)
    assert complaints(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "text", "rule"),
    [
        ("kernels/b.h", f"// LSP{MD}", f"LSP{MD} is not there"),
        ("python/b.py", f"# a{MD}", f"a{MD} is not there"),
        ("runtime/b.cpp", f"// docs/a{MD} section 3", "has no section 3"),
        ("runtime/b.cpp", f"// docs/a{MD} section 7", "has no section 7"),
        ("tests/b.py", f'"""docs/a{MD}\nsections 1 and 12"""', "has no section 12"),
        (f"docs/c{MD}", f"[b](b{MD}#outer)", "has no heading #outer"),
        ("Makefile", f"# docs/none{MD}", f"docs/none{MD} is not there"),
    ],
)
def test_each_mention_that_leads_nowhere_is_named(
    tmp_path: Path, path: str, text: str, rule: str
) -> None:
    write_tree(tmp_path, GOOD_TREE | {path: text + "\n"})
    found = complaints(tmp_path)
    assert len(found) == 1, found
    assert found[0].startswith(f"{path}: ")
    assert rule in found[0]


def test_table_of_what_fits_is_that_of_the_experiment() -> None:
    rows = read_rows(RESULTS)
    assert len(rows) == len(MODELS) * len(MACHINES)
    assert table(rows) in (REPOSITORY / ("README" + MD)).read_text(encoding="utf-8")


def test_readme_is_short_and_its_cells_are_too() -> None:
    lines = (REPOSITORY / ("README" + MD)).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []
    cells = [cell for line in lines if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if len(cell.split()) > 25] == []


def test_every_error_of_the_troubleshooting_page_is_one_that_we_print():
    page = (REPOSITORY / "docs" / ("troubleshooting" + MD)).read_text(encoding="utf-8")
    errors = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(errors) >= 20
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("python/sluiceway", "runtime", "kernels")
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".h")
    ]
    lost = [error for error in errors if not any(error in text for text in sources)]
    assert not lost, "no source prints this"
