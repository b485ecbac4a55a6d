"""The wheel holds everything that the installed program needs, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("auth", "peer", "coordinator", "corpus", "dashboards")


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
    (path,) = directory.glob("manyhands-*.whl")
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
    assert packed == source_files()


@pytest.mark.parametrize(
    "name",
    [
        "coordinator/store/migrations/env.py",
        "dashboards/web/frame.html",
        "dashboards/web/i18n/bn.json",
        "peer/protocol/control.proto",
        "peer/protocol/control_pb2.py",
        "peer/protocol/control_pb2_grpc.py",
        "peer/runs/demo.yaml",
        "peer/runs/sahajbert.yaml",
    ],
)
def test_wheel_holds_data_files_that_code_opens_by_name(wheel: zipfile.ZipFile, name: str) -> None:
    """Each file that the code looks up by name is where it looks."""
    assert name in wheel.namelist()


def test_wheel_installs_the_command_and_its_licence(wheel: zipfile.ZipFile) -> None:
    """The `manyhands` command, the extras that the documentation names and the licence come with the wheel."""
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    assert "manyhands = manyhands:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "peer",
        "coordinator",
        "corpus",
        "kenlm",
        "s3",
        "tensorboard",
        "wandb",
        "trackio",
        "evaluate",
        "tpu",
        "demo",
        "dev",
    }
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
