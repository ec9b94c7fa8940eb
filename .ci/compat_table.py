"""Print the table of libraries in docs/compatibility.md: `.ci/compat_table.py RESULTS`.

Each case of tests/python/compat records the name of its row, and the difference between our update
of the weights and that of torch's AdamW. A row shows the worst of its cases.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def rows(results: Path) -> dict[str, list[float]]:
    """Return the differences that `make test` and `make check` recorded, by row."""
    found: dict[str, list[float]] = {}
    for file in (results / "pytest.xml", results / "check-compat.xml"):
        if file.exists():
            for case in ElementTree.parse(file).getroot().iter("testcase"):
                noted = {p.get("name"): p.get("value") for p in case.iter("property")}
                if "compat_row" in noted:
                    found.setdefault(noted["compat_row"], []).append(float(noted["compat_error"]))
    return found


def main() -> None:
    """Print a row for each library."""
    for row, errors in sorted(rows(Path(sys.argv[1])).items()):
        print(f"| {row} | {len(errors)} | {max(errors):.1e} |")


if __name__ == "__main__":
    main()
