"""The installer that a run's wheel carries, run out of a small wheel as out of a real one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from uv import find_uv_bin

from coordinator.run.software import pack
from peer.installer import __main__ as installer
from peer.installer.__main__ import installer_for, own_cache, without_ours

NAME = "manyhands_swarm-9.0-py3-none-any.whl"
INFO = "manyhands_swarm-9.0.dist-info"


def small_wheel(folder: Path, content: str) -> Path:
    """A wheel of the same name and version each time, whatever is in it, and of no dependency."""
    files = {
        "auth.py": content,
        "peer/constraints.txt": "torch==2.13.0\n",
        "peer/installer/__main__.py": Path(installer.__file__).read_text(),
        f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: manyhands-swarm\nVersion: 9.0\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(parents=True)
    wheel = folder / NAME
    wheel.write_bytes(pack({name: text.encode() for name, text in files.items()}, f"{INFO}/RECORD"))
    return wheel


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the only programs beside Python's: an NVIDIA driver, so that PyTorch is not asked for."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\n")
    (programs / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("MANYHANDS_INVITE", "secret")
    return programs


@pytest.mark.thorough
@pytest.mark.parametrize("with_uv", [False, True], ids=["pip", "uv"])
def test_an_environment_is_made_and_brought_up_to_date(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_uv: bool
) -> None:
    """By pip or uv; another wheel replaces the one before, also under the same version, and a copy of it is kept.

    Nothing is left outside of the environment's folder, and no cache in it.
    """
    if with_uv:
        (machine / "uv").symlink_to(find_uv_bin())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "PIP_CACHE_DIR", "UV_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    wheels = [small_wheel(tmp_path / content, content) for content in ("BEFORE = 1", "AFTER = 1")]
    for wheel in [*wheels, tmp_path / "its place" / NAME]:  # the last is the copy that is kept
        command = [sys.executable, "-I", f"{wheel}/peer/installer", "its place"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
        assert "its place/bin/manyhands" in said.stdout
    place = tmp_path / "its place"
    (installed,) = place.glob("lib/python3*/site-packages/auth.py")
    assert installed.read_text() == "AFTER = 1"
    assert (place / NAME).read_bytes() == wheels[-1].read_bytes()
    assert (place / "constraints.txt").read_text() == "torch==2.13.0\n"
    assert not (place / "cache").exists()
    assert not list((tmp_path / "home").rglob("*"))


@pytest.mark.parametrize(("program", "variable"), [("pip", "PIP_CACHE_DIR"), ("uv", "UV_CACHE_DIR")])
def test_the_cache_of_a_machine_that_has_one_is_used(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, variable: str
) -> None:
    """Else one in the folder."""
    if program == "uv":
        (machine / "uv").symlink_to(find_uv_bin())
    monkeypatch.delenv("PIP_NO_CACHE_DIR", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "its own"))
    install = installer_for(Path(sys.executable), tmp_path)
    assert own_cache(install, tmp_path) == ["--cache-dir", str(tmp_path / "cache")]
    (tmp_path / "its own").mkdir()
    assert own_cache(install, tmp_path) == []


def test_what_does_not_install_is_one_sentence(machine: Path, tmp_path: Path) -> None:
    """Below what the program that installs has said itself."""
    wheel = small_wheel(tmp_path / "made", "")
    broken = tmp_path / "not-a-wheels-name.whl"
    wheel.rename(broken)
    command = [sys.executable, f"{broken}/peer/installer", str(tmp_path / "place")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith("The installation did not succeed")


def test_what_installs_sees_no_invite() -> None:
    """Programs of others get neither what is meant for manyhands, nor another place to install to."""
    given = {"MANYHANDS_INVITE": "secret", "PYTHONPATH": "/host", "PIP_USER": "1", "PIP_INDEX_URL": "x", "HOME": "/h"}
    assert without_ours(given) == {"PIP_INDEX_URL": "x", "HOME": "/h"}


def test_uv_installs_where_it_is_there(machine: Path) -> None:
    """Else this Python's own pip does, into the other environment."""
    assert installer_for(Path("/x/python"), Path("/x")) == [
        sys.executable,
        "-m",
        "pip",
        "--python",
        "/x/python",
        "install",
    ]
    (machine / "uv").symlink_to(find_uv_bin())
    assert installer_for(Path("/x/python"), Path("/x")) == ["uv", "pip", "install", "--python", "/x/python"]


def test_temporary_files_lie_in_the_folder_and_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some hosts keep /tmp in memory, where PyTorch with CUDA does not fit; a command's status is returned."""
    monkeypatch.chdir(tmp_path)
    command = ["/bin/sh", "-c", 'touch "$TMPDIR/left" && echo "$TMPDIR" > said; exit 3']
    assert installer.run(command, tmp_path) == 3
    assert Path("said").read_text().strip() == str(tmp_path / "temporary")
    assert not (tmp_path / "temporary").exists()


def test_an_interrupt_ends_the_program_that_installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt of a notebook's cell reaches the installer alone; what was temporary is deleted."""
    waited: list[subprocess.Popen[bytes]] = []

    def interrupted(process: subprocess.Popen[bytes], _folder: Path) -> int:
        waited.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(installer, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        installer.run([sys.executable, "-c", "input()"], tmp_path)
    assert waited[0].returncode == -9
    assert list(tmp_path.iterdir()) == []


class Terminal(StringIO):
    """A terminal that is told when the size has been shown."""

    def __init__(self, shown: Callable[[], object]) -> None:
        super().__init__()
        self._shown = shown

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if "MB so far" in text:
            self._shown()
        return super().write(text)


def test_a_terminal_shows_how_the_folder_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is cleared when the program that installs has ended; a file with two names counts once."""
    (tmp_path / "torch").write_bytes(bytes(3_000_000))
    (tmp_path / "the same").hardlink_to(tmp_path / "torch")
    monkeypatch.setattr(installer, "LOOK_EVERY_S", 0.01)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        terminal = Terminal(process.stdin.close)
        monkeypatch.setattr(sys, "stdout", terminal)
        assert installer.wait_for(process, tmp_path) == 0
    assert terminal.getvalue().startswith("\r3 MB so far")
    assert terminal.getvalue().endswith("\r" + " " * len("3 MB so far") + "\r")
