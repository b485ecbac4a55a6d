"""Programs that some tests drive and a machine may lack. Tests ask for them here, and are skipped with a sentence.

`python3 tests/support/programs.py` prints the Debian packages of those that are missing. `.ci/run` installs them before
anything else: hence nothing but the standard library is imported at the top.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

POSTGRESQL = Path("/usr/lib/postgresql")  # Debian's; its server's programs are on no PATH


@dataclass(frozen=True)
class Program:
    """Something that is installed beside Python."""

    name: str  # as a sentence names it
    packages: tuple[str, ...]  # Debian's
    is_there: Callable[[], bool]


def _commands(*names: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(name) for name in names)


PROGRAMS = {
    "git": Program("Git", ("git",), _commands("git")),
    "chromium": Program("Chromium", ("chromium",), _commands("chromium")),
    "postgresql": Program("PostgreSQL", ("postgresql",), lambda: any(POSTGRESQL.glob("*/bin/initdb"))),
    "promtool": Program("Prometheus' promtool", ("prometheus",), _commands("promtool")),
    "proxies": Program("nginx and Caddy", ("nginx-light", "caddy"), _commands("nginx", "caddy")),
    "networks": Program("tc and nft", ("iproute2", "nftables"), _commands("ip", "tc", "nft")),
    "systemd": Program("systemd", ("systemd",), _commands("systemd-analyze")),
    "compiler": Program(
        "a C++ compiler, CMake and Python's headers",
        ("g++", "cmake", "python3-dev"),
        lambda: _commands("c++", "cmake")() and Path(sysconfig.get_path("include"), "Python.h").is_file(),
    ),
    "lmplz": Program(
        "KenLM's lmplz, which .ci/lmplz builds",
        (
            *(f"libboost-{part}-dev" for part in ("program-options", "system", "test", "thread")),
            *("zlib1g-dev", "libbz2-dev", "liblzma-dev"),
        ),
        _commands("lmplz"),
    ),
}


def require(key: str) -> None:
    """Skip the running test where this program is not installed."""
    program = PROGRAMS[key]
    if not program.is_there():
        _skip(f"{program.name} not installed: apt-get install {' '.join(program.packages)}")


def require_kenlm() -> None:
    """Skip the running test where the package kenlm is not installed, which pip compiles."""
    if importlib.util.find_spec("kenlm") is None:
        packages = " ".join(PROGRAMS["compiler"].packages)
        _skip(f"the package kenlm is not installed: apt-get install {packages}, then remove .venv and run again")


def require_root() -> None:
    """Skip the running test where it may not mount a disk of its own."""
    if os.geteuid() != 0:
        _skip("only root can mount the small disk that this test fills")


def missing() -> tuple[list[str], list[str]]:
    """Names of the programs that are not installed on this machine, and the Debian packages that bring them."""
    absent = [program for program in PROGRAMS.values() if not program.is_there()]
    return [program.name for program in absent], [package for program in absent for package in program.packages]


def _skip(reason: str) -> None:
    import pytest

    pytest.skip(reason)


if __name__ == "__main__":
    print(*missing()[1])  # noqa: T201
