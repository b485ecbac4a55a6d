"""The suite's own rules hold: see tests/conftest.py."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import THOROUGH, pytest_report_header
from tests.support.programs import require

SUITE = """
import pytest

def test_passes(): pass
@pytest.mark.skip(reason="no network")
def test_skipped(): pass
@pytest.mark.xfail(reason="known bug")
def test_expected_to_fail(): assert False
"""


LONG_AND_SHORT = """
import pytest

def test_plain(): pass
@pytest.mark.smoke
def test_smoke(): pass
@pytest.mark.thorough
def test_thorough(): pass
"""
ROOT = Path(__file__).resolve().parents[2]


def run_suite(directory: Path, text: str, *options: str, forbid: str = "") -> subprocess.CompletedProcess[str]:
    """Run `text` as a test module next to a copy of our conftest."""
    shutil.copy(ROOT / "tests" / "conftest.py", directory / "conftest.py")
    (directory / "test_sample.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", directory, *options, directory],
        env={"PATH": "", "MANYHANDS_FORBID_SKIPS": forbid},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("forbid", "summary", "code"),
    [("1", "1 failed, 1 passed, 1 error", 1), ("", "1 passed, 1 skipped, 1 xfailed", 0)],
    ids=["forbidden", "allowed"],
)
def test_skips_and_xfails_fail_only_where_forbidden(tmp_path: Path, forbid: str, summary: str, code: int) -> None:
    """A skip and an expected failure count as failures exactly when MANYHANDS_FORBID_SKIPS is 1."""
    result = run_suite(tmp_path, SUITE, forbid=forbid)
    assert summary in result.stdout
    assert result.returncode == code


def test_what_is_not_installed_is_skipped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of a missing program is skipped with what installs it, and the suite's first line names all of them."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.skip.Exception, match="promtool not installed: apt-get install prometheus"):
        require("promtool")
    assert re.fullmatch(
        r"programs: tests of .*Chromium; .* are skipped\. .* apt-get install .*chromium .*", pytest_report_header()
    )


def test_a_skipped_module_fails_where_forbidden(tmp_path: Path) -> None:
    """A module that skips itself while it is collected is an error, not a silent absence of tests."""
    result = run_suite(tmp_path, 'import pytest\npytest.skip("no browser", allow_module_level=True)\n', forbid="1")
    assert result.returncode != 0
    assert "no browser" in result.stdout


def collected(rootdir: Path, options: list[str]) -> set[str]:
    """The tests that these options choose of a plain file and of one beside the whole swarms."""
    swarms = rootdir / "tests" / "system"
    swarms.mkdir(parents=True, exist_ok=True)
    (swarms / "test_swarms.py").write_text(LONG_AND_SHORT)
    result = run_suite(rootdir, LONG_AND_SHORT, "--collect-only", "--quiet", *options)
    return set(re.findall(r"^.*::.*$", result.stdout, re.MULTILINE))


def test_make_test_and_the_rest_are_everything(tmp_path: Path) -> None:
    """`.ci/run` runs what `make test` leaves out: whole swarms but for the smoke tests, and what is marked so."""
    chosen = []
    for target in re.findall(r"\) make (test.*) </dev/null", (ROOT / ".ci" / "run").read_text()):
        command = subprocess.run(
            ["make", "--dry-run", *shlex.split(target)],
            env={"PATH": os.environ["PATH"]},  # without what the `make` that runs this test was given
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        (options,) = re.findall(r"-m pytest .* (-m .*)", command.stdout)
        chosen.append(collected(tmp_path, shlex.split(options)))
    assert chosen == [
        {"tests/system/test_swarms.py::test_smoke", "test_sample.py::test_plain", "test_sample.py::test_smoke"},
        {
            "tests/system/test_swarms.py::test_plain",
            "tests/system/test_swarms.py::test_thorough",
            "test_sample.py::test_thorough",
        },
    ]
    assert collected(tmp_path, []) == chosen[0] | chosen[1]


def test_swarms_are_spread_among_the_other_tests(tmp_path: Path) -> None:
    """A swarm waits while others compute; a file's tests stay together, whatever was chosen of them."""
    for name in ("tests/system/test_b", "tests/system/test_a", "tests/test_1", "tests/test_2", "tests/test_3"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text("def test_x(): pass\ndef test_y(): pass\n")
    result = run_suite(tmp_path, "def test_y(): pass", "--collect-only", "--quiet", "-k", "test_y")
    files = [Path(file).stem for file in re.findall(r"^(.*)::test_y$", result.stdout, re.MULTILINE)]
    assert files == ["test_a", "test_sample", "test_1", "test_b", "test_2", "test_3"]


def test_make_test_starts_some_whole_swarms() -> None:
    """Training together, a killed peer and an outsider are tried with every change."""
    smoke = {
        name
        for path in (ROOT / "tests" / "system").glob("test_*.py")
        for name in re.findall(r"^@pytest\.mark\.smoke\ndef (\w+)", path.read_text(), re.MULTILINE)
    }
    assert smoke == {
        "test_two_peers_equal_one_plain_process",
        "test_killed_peer_costs_its_share_only",
        "test_outsider_can_take_no_part",
    }


def test_the_modules_and_tests_of_make_mutants_are_there() -> None:
    """pytest refuses to run at all when one of the files that it is told does not exist."""
    settings = (ROOT / "pyproject.toml").read_text().partition("[tool.mutmut]")[2].partition("\n[tool.")[0]
    names = re.findall(r'^    "([\w/]+\.py)",', settings, re.MULTILINE)
    assert "tests/auth/test_tokens.py" in names
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_what_is_thorough_is_there() -> None:
    """Each folder and file that `make test` leaves out exists."""
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert [start for start in THOROUGH if not any(file.startswith(start) for file in files)] == []
