"""`.ci/run` ends with counts of what happened, `make test` with what took longest, and the slow
libraries with their table."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

COUNT = REPOSITORY / ".ci" / "count.py"
SLOWEST = COUNT.with_name("slowest.py")
COMPAT = COUNT.with_name("compat_table.py")
PRESETS = ["cpu", "simt", "asan", "tsan", "eager-spill"]
PYTHON = ["pytest.xml", "check-compat.xml"]
STEPS = [
    "check-simt",
    "lint",
    "check-cuda",
    "check-wheel",
    "check-bench",
    "check-flips",
    "check-loop",
]


def suite(*cases: str) -> str:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"


def case(name: str, inside: str = "", status: str = "run") -> str:
    return f'<testcase name="{name}" status="{status}">{inside}</testcase>'


def count(results: Path, test_status: int = 0, check_status: int = 0) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, COUNT, results, str(test_status), str(check_status)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()[-1], done.returncode


@pytest.fixture
def clean_results(tmp_path: Path) -> Path:
    """Five presets of one binary with two cases, two Python suites of two, seven steps: 21."""
    for preset in PRESETS:
        (tmp_path / preset).mkdir()
        (tmp_path / f"{preset}.xml").write_text(suite(case("a_test")))
        (tmp_path / preset / "a_test.xml").write_text(suite(case("One"), case("Two")))
    for python in PYTHON:
        (tmp_path / python).write_text(suite(case("test_one"), case("test_two")))
    for step in STEPS:
        (tmp_path / f"{step}.ok").touch()
    return tmp_path


def test_a_clean_run_counts_cases_and_steps(clean_results: Path) -> None:
    assert count(clean_results) == ("21 passed, 0 failed", 0)


def test_tests_of_a_card_count_where_there_is_one(clean_results: Path) -> None:
    (clean_results / "cuda").mkdir()
    (clean_results / "cuda.xml").write_text(suite(case("a_test")))
    (clean_results / "cuda" / "a_test.xml").write_text(suite(case("One"), case("Two")))
    (clean_results / "gpu.xml").write_text(suite(case("test_one"), case("b", "<failure/>")))
    assert count(clean_results, test_status=2) == ("24 passed, 1 failed", 1)


def test_a_step_that_did_not_apply_counts_neither_way(clean_results: Path) -> None:
    (clean_results / "check-cuda.ok").rename(clean_results / "check-cuda.notrun")
    assert count(clean_results) == ("20 passed, 0 failed, 1 skipped", 0)


def test_a_check_that_was_cut_is_skipped_and_not_passed(clean_results: Path) -> None:
    for preset in ("tsan", "eager-spill"):
        (clean_results / f"{preset}.xml").unlink()
        (clean_results / f"check-{preset}.notrun").touch()
    (clean_results / "check-compat.xml").unlink()
    (clean_results / "check-compat.notrun").touch()
    assert count(clean_results) == ("15 passed, 0 failed, 3 skipped", 0)


def test_a_failed_case_is_one_failure(clean_results: Path) -> None:
    failed = case("Two", "<failure message='no'/><failure message='no'/>")
    (clean_results / "cpu" / "a_test.xml").write_text(suite(case("One"), failed))
    (clean_results / "cpu.xml").write_text(suite(case("a_test", status="fail")))
    assert count(clean_results, test_status=2) == ("20 passed, 1 failed", 1)


def test_a_binary_that_crashed_after_its_cases_is_a_failure(clean_results: Path) -> None:
    (clean_results / "asan.xml").write_text(suite(case("a_test", status="fail")))
    assert count(clean_results, check_status=2) == ("21 passed, 1 failed", 1)


def test_a_preset_that_did_not_build_is_a_failure(clean_results: Path) -> None:
    (clean_results / "tsan.xml").unlink()
    assert count(clean_results, check_status=2) == ("19 passed, 1 failed", 1)


@pytest.mark.parametrize("python", PYTHON)
def test_python_tests_that_never_ran_are_a_failure(clean_results: Path, python: str) -> None:
    (clean_results / python).unlink()
    assert count(clean_results, test_status=2) == ("19 passed, 1 failed", 1)


def test_a_step_that_failed_is_a_failure(clean_results: Path) -> None:
    (clean_results / "lint.ok").unlink()
    assert count(clean_results, check_status=2) == ("20 passed, 1 failed", 1)


def test_an_unexplained_exit_status_is_a_failure(clean_results: Path) -> None:
    assert count(clean_results, check_status=2) == ("21 passed, 1 failed", 1)


def timed(name: str, seconds: float) -> str:
    return f'<testcase classname="suite" name="{name}" time="{seconds}"/>'


def lines_of(script: Path, results: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, script, results], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_twenty_slowest_tests_of_both_languages_are_named(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "a_test.xml").write_text(suite(*(timed(f"C{i}", i) for i in range(15))))
    (tmp_path / "pytest.xml").write_text(suite(*(timed(f"P{i}", i + 0.5) for i in range(15))))
    head, *lines = lines_of(SLOWEST, tmp_path)
    assert head == "the 20 slowest tests, in seconds:"
    assert len(lines) == 20
    assert [line.split() for line in lines[:3]] == [
        ["14.50", "suite.P14"],
        ["14.00", "suite.C14"],
        ["13.50", "suite.P13"],
    ]


def test_slowest_tests_of_a_build_that_failed_are_none(tmp_path: Path) -> None:
    assert lines_of(SLOWEST, tmp_path) == ["the 0 slowest tests, in seconds:"]


def noted(row: str, error: float) -> str:
    found = (("compat_row", row), ("compat_error", error))
    properties = "".join(f'<property name="{name}" value="{value}"/>' for name, value in found)
    return case("a", f"<properties>{properties}</properties>")


def test_a_library_has_one_row_with_the_worst_of_its_cases(tmp_path: Path) -> None:
    (tmp_path / "pytest.xml").write_text(suite(noted("B", 1e-7), case("other"), noted("A", 2e-6)))
    (tmp_path / "check-compat.xml").write_text(suite(noted("A", 3e-6)))
    assert lines_of(COMPAT, tmp_path) == ["| A | 2 | 3.0e-06 |", "| B | 1 | 1.0e-07 |"]
