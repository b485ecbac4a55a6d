"""The check before publishing: plain transformers must reproduce the manifest's loss.

The check runs in a fresh process without access to secrets; a folder that fails is not published.
`manyhands export --onnx` adds `onnx/` with optimum and checks the ONNX model in the same way.
Optimum requires an older transformers and may therefore be installed in a separate environment.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from auth.errors import ConfigError, StorageError, UnsoundWeightsError
from coordinator.checkpoints.manifest import verify

TIMEOUT_S = 3600.0  # seconds; enough for a large model on one busy core
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "HF_HOME")
SHOWN_CHARACTERS = 300
LOADING_SCRIPT = Path(__file__).with_name("loading_check.py")
TOLERANCE = 1e-3  # kernels round differently; relative for losses above 1, else absolute
ONNX_DIR = "onnx"
ONNX_SCRIPT = Path(__file__).with_name("onnx_check.py")
ONNX_TASKS = {"mlm": "fill-mask", "mlm+sop": "fill-mask", "clm": "text-generation"}


@dataclass(frozen=True)
class LoadingResult:
    """Measurements of an exported model, loaded by plain transformers."""

    loss: float  # probe loss, comparable with the manifest's
    token_loss: float  # probe loss without sentence order
    vocabulary: int  # number of rows in the model's embedding matrix
    tokens: int  # number of tokens in the tokenizer


def check_loads(folder: Path) -> LoadingResult:
    """Load a verified export in a fresh process, and compute its probe losses.

    Raises `UnsoundWeightsError` if loading fails or the loss differs from the manifest's.
    """
    manifest = verify(folder, files=()).manifest
    try:
        found = LoadingResult(**json.loads(run_apart([sys.executable, "-I", str(LOADING_SCRIPT), str(folder)])))
    except (EndedBadlyError, ValueError, TypeError) as error:
        raise UnsoundWeightsError(
            f"The checkpoint of step {manifest.step} cannot be loaded by plain transformers: {error}"
        ) from error
    complaint = difference(manifest.probe_loss, found)
    if complaint:
        raise UnsoundWeightsError(f"The checkpoint of step {manifest.step} is unsound: {complaint}.")
    return found


def difference(expected: float | None, found: LoadingResult) -> str:
    """Describe how a loaded model differs from the checkpoint, or return "" if it does not."""
    if expected is None:
        return "it has no finite loss to compare with"
    if not is_same(expected, found.loss):
        return f"loaded by plain transformers its loss is {found.loss:.4f}, and the manifest says {expected:.4f}"
    if found.tokens > found.vocabulary:
        return f"its tokenizer knows {found.tokens} tokens, and its model only {found.vocabulary}"
    return ""


def is_same(expected: float, found: float) -> bool:
    """Return whether two losses are equal within `TOLERANCE`; False if one is not finite."""
    return math.isfinite(found) and abs(found - expected) <= TOLERANCE * max(1.0, abs(expected))


class EndedBadlyError(Exception):
    """A failure or timeout of a command; the message quotes the end of stderr or the exit code."""


def run_apart(command: Sequence[str]) -> str:
    """Run a command without secrets in its environment, and return the last line of its output.

    Raises `EndedBadlyError` if the command fails or times out.
    """
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        result = subprocess.run(  # noqa: S603  # our own code names the command
            command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EndedBadlyError(f"it was not done after {TIMEOUT_S:g} s") from error
    if result.returncode:
        raise EndedBadlyError(_last_line(result.stderr) or f"exit code {result.returncode}")
    return _last_line(result.stdout)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return " ".join(lines[-1].split())[:SHOWN_CHARACTERS] if lines else ""


def find_exporter() -> Path:
    """Return a Python interpreter with optimum's exporter: the current one or `optimum-cli`'s.

    Raises `ConfigError` if optimum is not installed.
    """
    with suppress(ModuleNotFoundError):  # optimum is not installed in this environment
        if find_spec("optimum.exporters.onnx") is not None:
            return Path(sys.executable)
    command = shutil.which("optimum-cli")
    python = None if command is None else Path(command).resolve().parent / "python"
    if python is None or not python.exists():
        raise ConfigError(
            "--onnx needs optimum's exporter, and there is no `optimum-cli`: install it into an environment of its own "
            "(`pipx install 'optimum[onnxruntime]'`), or export without --onnx."
        )
    return python


def export_onnx(folder: Path, objective: str, token_loss: float, python: Path) -> Path:
    """Write `folder`/onnx, and verify that ONNX Runtime computes `token_loss` for the probe.

    Raises `StorageError` if the export fails, and `UnsoundWeightsError` if the loss differs.
    """
    out = folder / ONNX_DIR
    exporter = ["-m", "optimum.exporters.onnx", "--model", str(folder), "--task", ONNX_TASKS[objective], str(out)]
    try:
        run_apart([str(python), "-I", *exporter])
        found = float(run_apart([str(python), "-I", str(ONNX_SCRIPT), str(folder), objective]))
    except (EndedBadlyError, ValueError) as error:
        shutil.rmtree(out, ignore_errors=True)
        raise StorageError(f"{folder} is exported, but not to ONNX: {error}") from error
    if not is_same(token_loss, found):
        shutil.rmtree(out, ignore_errors=True)
        raise UnsoundWeightsError(
            f"{folder} is exported, but not to ONNX: there the loss is {found:.4f}, and not {token_loss:.4f}."
        )
    return out
