"""Adds `onnx/` to an exported folder through optimum, and tries it: `manyhands export --onnx`.

optimum's exporter wants an older transformers than ours, so it runs in an environment of its own, if that is there.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from auth.errors import ConfigError, StorageError, UnsoundWeightsError
from coordinator.publishing.soundness import EndedBadlyError, is_same, run_apart

ONNX_DIR = "onnx"
SCRIPT = Path(__file__).with_name("onnx_check.py")
TASKS = {"mlm": "fill-mask", "mlm+sop": "fill-mask", "clm": "text-generation"}


def find_exporter() -> Path:
    """The Python that has optimum's exporter: this one, or that of the `optimum-cli` on the PATH.

    Raises `ConfigError` where there is none.
    """
    if _is_here():
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
    """Write `folder`/onnx and return it, if ONNX Runtime finds this loss of the folder's probe with it.

    Raises `StorageError` with the exporter's last words if that fails, `UnsoundWeightsError` for another loss.
    """
    out = folder / ONNX_DIR
    exporter = ["-m", "optimum.exporters.onnx", "--model", str(folder), "--task", TASKS[objective], str(out)]
    try:
        run_apart([str(python), "-I", *exporter])
        found = float(run_apart([str(python), "-I", str(SCRIPT), str(folder), objective]))
    except (EndedBadlyError, ValueError) as error:
        shutil.rmtree(out, ignore_errors=True)
        raise StorageError(f"{folder} is exported, but not to ONNX: {error}") from error
    if not is_same(token_loss, found):
        shutil.rmtree(out, ignore_errors=True)
        raise UnsoundWeightsError(
            f"{folder} is exported, but not to ONNX: there the loss is {found:.4f}, and not {token_loss:.4f}."
        )
    return out


def _is_here() -> bool:
    try:
        return find_spec("optimum.exporters.onnx") is not None
    except ModuleNotFoundError:
        return False
