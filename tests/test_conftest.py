"""The suite's own rules hold: see tests/conftest.py."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import pytest_report_header
from tests.programs import require

SUITE = """
import pytest

def test_passes(): pass
@pytest.mark.skip(reason="no network")
def test_skipped(): pass
@pytest.mark.xfail(reason="known bug")
def test_expected_to_fail(): assert False
"""


def run_suite(directory: Path, text: str, forbid: str) -> subprocess.CompletedProcess[str]:
    """Run `text` as a test module next to a copy of our conftest."""
    shutil.copy(Path(__file__).with_name("conftest.py"), directory / "conftest.py")
    (directory / "test_sample.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(directory), str(directory)],
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
    result = run_suite(tmp_path, SUITE, forbid)
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
    result = run_suite(tmp_path, 'import pytest\npytest.skip("no browser", allow_module_level=True)\n', "1")
    assert result.returncode != 0
    assert "no browser" in result.stdout
