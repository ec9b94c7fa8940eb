"""Print `N passed, N failed` for the files of `make test` and `make check` in a results folder.

A GoogleTest case and a pytest case count as one each. A test binary that ctest saw fail without a
failed case (a crash, a time-out, a leak) counts as one failure. A step (other seeds of the preset
simt, lint, wheel, benchmarks, CUDA compile, flipped bytes, loop devices) counts as one; a preset
that did not even build counts as one failure. Tests on a card count if this machine has one.
A check that left a file NAME.notrun was not run, or not to its end: it counts as skipped.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PRESETS = ["cpu", "simt", "asan", "tsan", "eager-spill"]
PYTHON = ["pytest", "check-compat"]
OF_A_CARD = [["cuda"], ["gpu"]]  # A preset, and a Python suite, of machines with a card.
STEPS = [
    "check-simt",
    "lint",
    "check-cuda",
    "check-wheel",
    "check-bench",
    "check-flips",
    "check-loop",
]


def outcomes(xml: Path) -> tuple[int, int]:
    """Return passed and failed cases of one JUnit-style file."""
    cases = list(ElementTree.parse(xml).getroot().iter("testcase"))
    failed = sum(any(case.find(tag) is not None for tag in ("failure", "error")) for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return len(cases) - failed - skipped, failed


def preset_outcomes(results: Path, preset: str) -> tuple[int, int]:
    """Sum the cases of one preset's binaries, each checked against ctest's result."""
    summary = results / f"{preset}.xml"
    if not summary.exists():
        print(f"{preset}: the build failed or the tests did not run")
        return 0, 1
    passed = failed = 0
    for binary in ElementTree.parse(summary).getroot().iter("testcase"):
        cases = results / preset / f"{binary.get('name')}.xml"
        good, bad = outcomes(cases) if cases.exists() else (0, 0)
        if binary.get("status") != "run" and bad == 0:
            print(f"{preset}: {binary.get('name')}: {binary.get('status')}, no failed test case")
            bad = 1
        passed, failed = passed + good, failed + bad
    return passed, failed


def main() -> int:
    """Count, print the line, and return the exit status."""
    results, test_status, check_status = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    passed = failed = 0
    skipped = {path.stem for path in results.glob("*.notrun")}
    presets, suites = (
        always + [name for name in of_card if (results / f"{name}.xml").exists()]
        for always, of_card in zip([PRESETS, PYTHON], OF_A_CARD, strict=True)
    )
    for preset in presets:
        if f"check-{preset}" in skipped:
            continue
        good, bad = preset_outcomes(results, preset)
        passed, failed = passed + good, failed + bad
    for python in (results / f"{name}.xml" for name in suites if name not in skipped):
        good, bad = outcomes(python) if python.exists() else (0, 1)
        passed, failed = passed + good, failed + bad
    for step in STEPS:
        if (results / f"{step}.ok").exists():
            passed += 1
        elif step not in skipped:
            print(f"{step}: failed")
            failed += 1
    if failed == 0 and (test_status != 0 or check_status != 0):
        print(f"make test ended with {test_status}, make check with {check_status}")
        failed = 1
    tail = f", {len(skipped)} skipped" if skipped else ""
    print(f"{passed} passed, {failed} failed{tail}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
