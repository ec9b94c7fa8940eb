"""Print the slowest tests of `make test`, C++ and Python: `.ci/slowest.py RESULTS [COUNT]`."""

import sys
import xml.etree.ElementTree as ElementTree
from itertools import chain
from pathlib import Path


def cases(results: Path) -> list[tuple[float, str]]:
    """Return seconds and name of each test with a result; a crash of the binary leaves none."""
    found = []
    presets = (sorted(results.glob(f"{preset}/*.xml")) for preset in ("cpu", "simt", "cuda"))
    for file in [*chain(*presets), results / "pytest.xml", results / "gpu.xml"]:
        if file.exists():
            for case in ElementTree.parse(file).getroot().iter("testcase"):
                name = f"{case.get('classname')}.{case.get('name')}"
                found.append((float(case.get("time", 0)), name))
    return found


def main() -> None:
    """Print seconds and names, slowest first."""
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    slowest = sorted(cases(Path(sys.argv[1])), reverse=True)[:count]
    print(f"the {len(slowest)} slowest tests, in seconds:")
    for seconds, name in slowest:
        print(f"{seconds:8.2f}  {name}")


if __name__ == "__main__":
    main()
