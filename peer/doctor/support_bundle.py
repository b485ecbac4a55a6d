"""The support bundle: a small, redacted archive of text that shows an operator why a volunteer's machine has trouble.

Only the files and facts listed here go in; keys, tokens and reports stay where they are.
"""

from __future__ import annotations

import io
import json
import platform
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from auth.files import write_private
from peer.doctor.machine import read_memory, read_processor

LOG_BYTES = 200_000  # of each log's end
LOGS = ("data/worker.log",)
TEXTS = ("data/stream.json", "data/microbatch.json")
MAX_TEXT_BYTES = 100_000
README = """This archive was made by `manyhands support-bundle` for the operator of a run.
It holds versions, this machine's size, the end of the training log, the place in the data and, with a link, what the
doctor found. Keys, tokens, invite codes, e-mail addresses and the names of user, host and home folder were taken out.
Read it before you send it.
"""


def collect(state_dir: Path, findings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The files of the archive by name, not redacted yet; what is missing or cannot be read is said in its place."""
    files = {
        "versions.json": json.dumps(versions(), indent=1),
        "machine.json": json.dumps(machine(), indent=1),
        "doctor.json": json.dumps(list(findings), indent=1),
    }
    for name in LOGS:
        files[name] = _end_of(state_dir / name, LOG_BYTES)
    for name in TEXTS:
        files[name] = _end_of(state_dir / name, MAX_TEXT_BYTES)
    return files


def versions() -> dict[str, str]:
    """Return the versions of Python, the operating system, and every installed package."""
    packages = {str(found.metadata["Name"]): found.version for found in distributions() if found.metadata["Name"]}
    return {"python": sys.version, "system": platform.platform(), **dict(sorted(packages.items()))}


def machine() -> dict[str, Any]:
    """Return the machine's size and load."""
    memory, processor = read_memory(), read_processor()
    return {
        "architecture": platform.machine(),
        "cores": processor.cores,
        "core_quota": processor.quota,
        "load": processor.load,
        "memory_bytes": memory.total_bytes,
        "available_memory_bytes": memory.available_bytes,
    }


def write_bundle(path: Path, files: Mapping[str, str], redact: Callable[[str], str]) -> None:
    """Write the archive, readable by its owner only, whole or not at all. Raises `StorageError` if that fails."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("README.txt", README)
        for name, text in files.items():
            bundle.writestr(name, redact(text))
    write_private(path, archive.getvalue())


def _end_of(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, io.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return "There is no such file.\n"
    except OSError as error:
        return f"It cannot be read: {error.strerror}.\n"
