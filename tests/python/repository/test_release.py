"""`.ci/release.py`: the version everywhere, a dated changelog, the list of what is compiled in."""

from __future__ import annotations

import datetime
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sluiceway
from conftest import REPOSITORY

SCRIPT = REPOSITORY / ".ci" / "release.py"


@pytest.fixture(scope="module")
def release() -> dict:
    """Functions of the script."""
    return runpy.run_path(str(SCRIPT))


def test_every_place_has_the_version_of_the_package(release):
    for name in release["PLACES"]:
        text = (REPOSITORY / name).read_text()
        assert release["version_in"](text, name) == sluiceway.__version__
        other = release["with_version"](text, name, "12.3.45")
        assert release["version_in"](other, name) == "12.3.45"
        assert other.replace("12.3.45", sluiceway.__version__) == text


def test_the_section_of_what_is_not_released_gets_version_and_date(release):
    day = datetime.date(2030, 1, 2)
    text = "# Changes\n\n## Unreleased\n\n- New.\n\n## 0.1.0 (2029-01-01)\n\n- Old.\n"
    assert release["dated"](text, "0.2.0", day) == (
        "# Changes\n\n## Unreleased\n\n## 0.2.0 (2030-01-02)\n\n- New.\n\n"
        "## 0.1.0 (2029-01-01)\n\n- Old.\n"
    )
    for empty in (text.replace("- New.\n\n", ""), text.replace("Unreleased", "Later")):
        with pytest.raises(SystemExit, match="nothing below ## Unreleased"):
            release["dated"](empty, "0.2.0", day)


def test_the_list_of_materials_has_every_row_of_the_notices(release):
    notices = (REPOSITORY / "THIRD_PARTY.md").read_text()
    found = release["bill_of_materials"]("1.2.3", notices)
    assert found["metadata"]["component"]["version"] == "1.2.3"
    assert f"\n## {found['components'][0]['name']}\n" in notices
    named = {each["name"]: each["licenses"][0]["license"] for each in found["components"]}
    assert named["Eigen"] == {"id": "MPL-2.0"}
    assert named["CUDA-runtime"] == {"name": "CUDA Toolkit EULA"}


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A repository with the files that a release changes, all committed."""
    for name in (".ci/release.py", "CHANGELOG.md", "THIRD_PARTY.md", "pyproject.toml",
                 "python/sluiceway/__init__.py"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "All")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3 "])
def test_a_wrong_version_is_refused(checkout, version):
    done = subprocess.run(
        [sys.executable, checkout / ".ci/release.py", version], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "run make release VERSION=1.2.3" in done.stderr
    assert git(checkout, "status", "--porcelain") == ""


def test_a_tree_with_changes_is_refused(checkout):
    (checkout / "CHANGELOG.md").write_text("changed")
    done = subprocess.run(
        [sys.executable, checkout / ".ci/release.py", "9.9.9"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "changes that are not committed" in done.stderr


def test_a_release_that_fails_leaves_the_tree_as_it_was(checkout):
    (checkout / ".gitignore").write_text("dist/\nbuild/\n")
    git(checkout, "add", "-A")
    git(checkout, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "Ignore")
    done = subprocess.run(  # The sources lack nearly everything.
        [sys.executable, checkout / ".ci/release.py", "9.9.9"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "lacks LICENSE" in done.stderr or "ended with" in done.stderr
    assert git(checkout, "status", "--porcelain") == ""
