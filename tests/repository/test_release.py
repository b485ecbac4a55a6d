"""The workflows of GitHub, and what a release builds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_follows_the_schema(workflow: Path) -> None:
    """The schema is GitHub's own."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_only_programs_of_the_project(workflow: Path) -> None:
    """So everything but the publishing itself can be tried on any machine."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    programs = [step["run"].split()[0] for job in jobs for step in job["steps"] if "run" in step]
    assert programs
    assert [program for program in programs if not (ROOT / program).is_file()] == []


def test_a_tag_that_does_not_fit_the_version_builds_nothing() -> None:
    """The sentence names both."""
    version = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
    refused = subprocess.run([".ci/distribution", "v0.0.0"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"The tag v0.0.0 does not fit the version {version} ")
