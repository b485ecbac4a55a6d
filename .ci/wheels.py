#!/usr/bin/env python3
"""Packages of constraints.txt without a wheel on PyPI: `python .ci/wheels.py [--uv COMMAND] [--lock FILE]`.

For each platform and Python version, the script prints the number of packages that a volunteer needs and the packages
without a wheel; then the same with all extras. uv (`pip install uv`) resolves the project for all platforms at once,
which needs the network and takes half a minute, so CI does not run the script; docs/volunteers/hardware.md has the last
results. `--lock` reads a lock file written by `uv pip compile --universal --format pylock.toml`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
EXTRAS = ("coordinator", "corpus", "kenlm", "evaluate", "embeddings", "tpu")
NEWEST_GLIBC = 31  # minor version; 2.31 is in Debian 11 and Ubuntu 20.04, PyTorch requires 2.28, libtpu 2.31


@dataclass(frozen=True)
class Platform:
    """A kind of machine, described by environment markers and wheel tags."""

    name: str
    system: str
    sys_platform: str
    machine: str
    tags: tuple[str, ...]  # platform tags of compatible wheels

    def marks(self, python: str) -> dict[str, str]:
        """Return the environment for evaluating a requirement's marker."""
        return {
            "os_name": "posix",
            "sys_platform": self.sys_platform,
            "platform_system": self.system,
            "platform_machine": self.machine,
            "python_version": python,
            "python_full_version": f"{python}.9",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }

    def wheel_tags(self, python: str) -> frozenset[Tag]:
        """Return the tags of all wheels that pip would install on this platform."""
        version = tuple(map(int, python.split(".")))
        interpreter = "cp" + python.replace(".", "")
        return frozenset(
            [
                *cpython_tags(version, platforms=self.tags, abis=[interpreter]),
                *compatible_tags(version, interpreter, self.tags),
            ]
        )


def linux(name: str, machine: str) -> Platform:
    old = [f"manylinux{year}_{machine}" for year in (2014, 2010, 1)]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, 4, -1)]
    return Platform(name, "Linux", "linux", machine, (*tags, *old))


PLATFORMS = (
    linux("Linux x86-64", "x86_64"),
    linux("Linux arm64", "aarch64"),
    Platform("macOS arm64", "Darwin", "darwin", "arm64", tuple(mac_platforms((14, 0), "arm64"))),
)


@dataclass(frozen=True)
class Found:
    """The number of needed packages, and the packages without a wheel (`name==version`)."""

    needed: int
    missing: tuple[str, ...]


def examine(packages: Sequence[dict[str, Any]], platform: Platform, python: str) -> Found:
    """Count a lock file's packages for a platform and Python; find those without a wheel."""
    marks, tags = platform.marks(python), platform.wheel_tags(python)
    needed = [package for package in packages if _is_needed(package, marks)]
    missing = [f"{package['name']}=={package['version']}" for package in needed if not tags & set(_tags(package))]
    return Found(len(needed), tuple(sorted(missing)))


def _is_needed(package: dict[str, Any], marks: dict[str, str]) -> bool:
    return "marker" not in package or Marker(package["marker"]).evaluate(marks)


def _tags(package: dict[str, Any]) -> Iterator[Tag]:
    for wheel in package.get("wheels", []):
        yield from parse_wheel_filename(wheel["url"].rpartition("/")[2].replace("%2B", "+"))[3]


def resolve(uv: str, extras: Sequence[str]) -> list[dict[str, Any]]:
    """Resolve the project's dependencies for all platforms, at the versions in constraints.txt."""
    wanted = [word for extra in extras for word in ("--extra", extra)]
    form = ["--universal", "--python-version", PYTHONS[0], "--format", "pylock.toml", "--no-header"]
    command = [uv, "pip", "compile", "-q", *form, "-c", "constraints.txt", "pyproject.toml", *wanted]
    written = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603
    return read(written)


def read(lock: str) -> list[dict[str, Any]]:
    packages: list[dict[str, Any]] = tomllib.loads(lock)["packages"]
    return packages


def show(title: str, packages: Sequence[dict[str, Any]]) -> None:
    """Print a line for each platform and Python version."""
    print(title)  # noqa: T201
    for platform in PLATFORMS:
        for python in PYTHONS:
            found = examine(packages, platform, python)
            missing = ", ".join(found.missing) or "none"
            print(f"  {platform.name:13} Python {python:5} {found.needed:4} packages, without a wheel: {missing}")  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Packages of constraints.txt without a wheel on PyPI.")
    parser.add_argument("--uv", default="uv", help="how to start uv (default: uv)")
    parser.add_argument("--lock", type=Path, help="a pylock.toml to read instead of resolving")
    options = parser.parse_args(arguments)
    if options.lock is not None:
        show(str(options.lock), read(options.lock.read_text(encoding="utf-8")))
        return
    show("What a volunteer needs:", resolve(options.uv, ()))
    show(f"With the extras {', '.join(EXTRAS)}:", resolve(options.uv, EXTRAS))


if __name__ == "__main__":
    main()
