"""Install the wheel that contains this file into a new environment.

Usage: `python3 WHEEL/peer/installer [FOLDER]`. Python can run a folder inside a zip file, so no
other file is needed. The wheel pins exact versions. Only the standard library is imported.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import urllib.request
import venv
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU_TORCH = "https://download.pytorch.org/whl/cpu"
CONSTRAINTS = "peer/constraints.txt"  # path, in the wheel, of the file with exact versions
CACHE = "cache"  # folder in the environment, removed after the installation
TEMPORARY = "temporary"  # folder in the environment, because /tmp may be too small for PyTorch with CUDA
LOOK_EVERY_S = 2
INTERRUPTED = 130
PROBE_S = 60
FIRST_PIP_WITH_PYTHON = (22, 3)  # first pip version that can install into another environment
# Environment variables that add package locations (the first two) or redirect pip's installs.
OTHER_PLACES = ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")


def main(wheel: Path, arguments: Sequence[str]) -> None:
    """Create or update the environment with this wheel."""
    parser = argparse.ArgumentParser(prog=f"python3 {wheel.name}/peer/installer", description="Installs manyhands.")
    parser.add_argument(
        "folder", nargs="?", default="manyhands", type=Path, help="folder of the environment (default: manyhands)"
    )
    parser.add_argument("--extra", action="append", default=[], help="an optional part, such as tpu; repeatable")
    options = parser.parse_args(arguments)
    folder = Path(os.path.abspath(options.folder))  # noqa: PTH100  # `resolve` would follow symlinks
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, symlinks=True)  # without pip, because adding pip fails on Colab and Debian
    kept = folder / wheel.name
    if not (kept.exists() and kept.samefile(wheel)):  # the wheel may be running from this folder
        shutil.copy(wheel, kept)
    with zipfile.ZipFile(kept) as archive:
        (folder / "constraints.txt").write_bytes(archive.read(CONSTRAINTS))
    say(f"Installing in {options.folder}, which takes a few minutes the first time ...")
    program = installer_for(python, folder)
    install = [*program, *own_cache(program, folder), "--quiet", "-c", str(folder / "constraints.txt")]
    if not has_nvidia_driver() and sys.platform == "linux":
        install_cpu_torch(install, folder)
    wanted = f"{kept}[{','.join(options.extra)}]" if options.extra else str(kept)
    if run([*install, wanted], folder) or run([*install, "--force-reinstall", "--no-deps", str(kept)], folder):
        sys.exit("The installation did not succeed: see above, fix the cause, and run the same command again.")
    shutil.rmtree(folder / CACHE, ignore_errors=True)
    say(f"Installed; the command is {options.folder / 'bin' / 'manyhands'}")


def installer_for(python: Path, folder: Path) -> list[str]:
    """Return the install command: uv, this Python's pip, or pip installed in the environment."""
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", str(python)]
    try:
        ours = tuple(int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        ours = (0,)
    if ours >= FIRST_PIP_WITH_PYTHON:
        return [sys.executable, "-m", "pip", "--python", str(python), "install"]
    if run([str(python), "-m", "ensurepip", "--upgrade"], folder):
        sys.exit("This Python has no pip: install python3-venv (or uv), and run the same command again.")
    return [str(python), "-m", "pip", "install"]


def own_cache(program: Sequence[str], folder: Path) -> list[str]:
    """Return options for a package cache in the folder, or [] if the machine already has a cache.

    With this cache, the installation leaves no files outside the folder, and can be resumed.
    """
    asked = [*(program[:1] if program[0] == "uv" else (program[0], "-m", "pip")), "cache", "dir"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    if said.returncode or Path(said.stdout.strip()).exists():
        return []
    return ["--cache-dir", str(folder / CACHE)]


def has_nvidia_driver() -> bool:
    """Return whether an NVIDIA driver works, which PyTorch's CUDA build requires."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=PROBE_S, check=False).returncode == 0  # noqa: S607
    except (OSError, subprocess.TimeoutExpired):
        return False


def install_cpu_torch(install: Sequence[str], folder: Path) -> None:
    """Install PyTorch's CPU build if possible, because PyPI's build needs gigabytes of CUDA libraries."""
    try:
        urllib.request.urlopen(f"{CPU_TORCH}/torch/", timeout=PROBE_S).close()  # noqa: S310
        failed = run([*install, "--no-deps", "--index-url", CPU_TORCH, "torch"], folder) != 0
    except OSError:
        failed = True
    if failed:
        say(f"{CPU_TORCH} did not answer: PyTorch comes from the package index, perhaps with CUDA.")


def run(command: Sequence[str], folder: Path) -> int:
    """Run a command and return its exit status.

    Our environment variables, such as an invite code, are removed; temporary files are in `folder`.
    """
    temporary = folder / TEMPORARY
    temporary.mkdir(exist_ok=True)
    environment = {**without_ours(os.environ), "TMPDIR": str(temporary)}
    try:
        with subprocess.Popen(command, env=environment) as process:  # noqa: S603
            try:
                return wait_for(process, folder)
            except BaseException:
                process.kill()  # Ctrl-C may have reached this process only
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def wait_for(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Wait for a process and return its exit status; in a terminal, show the folder's size."""
    shown = ""
    while True:
        try:
            status = process.wait(LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            if sys.stdout.isatty():
                shown = f"{size_of(folder) / 1e6:,.0f} MB so far"
                sys.stdout.write(f"\r{shown}")
                sys.stdout.flush()
        else:
            sys.stdout.write(f"\r{' ' * len(shown)}\r" if shown else "")
            return status


def size_of(folder: Path) -> int:
    """Return the total size of a folder's files in bytes, counting hard links once."""
    sizes = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # the file may have been deleted
                found = os.lstat(os.path.join(place, name))  # noqa: PTH118  # faster than pathlib
                sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


def say(line: str) -> None:
    """Print a line and flush, so that the line precedes other programs' output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without manyhands' own variables and those in `OTHER_PLACES`."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("MANYHANDS_") and name not in OTHER_PLACES
    }


if __name__ == "__main__":
    try:
        main(Path(__file__).parents[2], sys.argv[1:])
    except KeyboardInterrupt:
        say("\nInterrupted: run the same command again to continue.")
        sys.exit(INTERRUPTED)
