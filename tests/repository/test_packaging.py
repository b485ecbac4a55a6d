"""The wheel holds everything that the installed program needs, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.programs import require

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("auth", "peer", "coordinator", "dashboards")
TYPED = {"auth/py.typed", "peer/py.typed", "coordinator/py.typed"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel built from this checkout, without network or isolation."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = directory.glob("manyhands_swarm-*.whl")
    return zipfile.ZipFile(path)


def source_files() -> set[str]:
    """Every file of the packages in the checkout, relative to its root."""
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {"manyhands.py"}


def test_wheel_holds_exactly_the_packages_files(wheel: zipfile.ZipFile) -> None:
    """Code, migrations, run files, the dashboard's page and the gRPC stubs are packed; tests and tools are not."""
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == source_files() >= TYPED


def test_wheel_installs_the_command_and_its_licence(wheel: zipfile.ZipFile) -> None:
    """The `manyhands` command and the licence come with the wheel."""
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert "manyhands = manyhands:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert f"{info}/licenses/LICENSE" in wheel.namelist()


INSTALLATION = re.compile(r"\b(?:(?:pip3?|pipx|uv)\b.*?\s(?:install|run)|uvx)\s+(?P<rest>[^&|;`]*)")
OUR_NAME = re.compile(r"manyhands(-swarm)?(\[.*\])?([=!~]=.*)?")


def installs_a_bare_name(line: str) -> bool:
    """Whether a command asks a package index for us by name: there our names belong to strangers, or may some day."""
    if re.search(r"\bmanyhands\[", line):
        return True
    found = INSTALLATION.search(line)
    words = [] if found is None else [word.rstrip(".,") for word in re.split(r"[\s'\"`\\()<>]+", found["rest"])]
    following = [*words[1:], ""]
    return any(OUR_NAME.fullmatch(word) and after != "@" for word, after in zip(words, following, strict=False))


@pytest.mark.parametrize(
    ("line", "bare"),
    [
        ("pip install manyhands", True),
        ("manyhands/bin/pip install manyhands</code>", True),
        ("run `pip install 'manyhands[tpu]'` and start again", True),
        ("python -m pip install --upgrade manyhands-swarm", True),
        ("uv pip install 'manyhands-swarm[coordinator]'", True),
        ("uv tool install manyhands && manyhands demo", True),
        ("pip install manyhands==0.1.0", True),
        ("pipx run manyhands demo", True),
        ("uvx manyhands demo", True),
        ("| TPU | `manyhands[tpu]` |", True),
        ("pip install -c constraints.txt '.[kenlm]'", False),
        ("pip install -c constraints.txt . && .venv/bin/manyhands demo", False),
        ("pip install 'manyhands-swarm @ https://run.example/software/x.whl#sha256=0'", False),
        ("pip install ./manyhands_swarm-0.1.0-py3-none-any.whl", False),
        ("docker run --volume manyhands:/data manyhands-peer join", False),
    ],
)
def test_a_bare_install_is_recognized(line: str, bare: bool) -> None:
    """The test below sees each way to take a stranger's package for ours, and nothing else."""
    assert installs_a_bare_name(line) == bare


def test_nothing_installs_a_bare_name() -> None:
    """No file tells a person, or a program, to install this software by a name: it comes from a run or a checkout."""
    require("git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    own = Path(__file__).resolve()
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in listed.rstrip("\0").split("\0")
        if (path := ROOT / name).is_file() and path.resolve() != own and path.suffix not in (".png", ".parquet")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if installs_a_bare_name(line)
    ]
    assert found == []
