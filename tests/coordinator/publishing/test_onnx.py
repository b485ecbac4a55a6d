"""ONNX through the optimum of another environment; here it is a script, as the real one wants an older transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from auth.errors import ConfigError, ManyhandsError, StorageError, UnsoundWeightsError
from coordinator.publishing.onnx_check import IGNORED, token_loss
from coordinator.publishing.soundness import export_onnx, find_exporter

EXPORTER = """#!/bin/sh
case "$*" in
    "-I -m optimum.exporters.onnx --model $DIR --task fill-mask $DIR/onnx") {export} ;;
    *onnx_check.py*) {check} ;;
    *) exit 9 ;;
esac
"""


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, beside the system's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def install(bin_dir: Path, folder: Path, export: str, check: str) -> None:
    """An environment with an exporter that does this."""
    script = EXPORTER.replace("$DIR", str(folder)).format(export=export, check=check)
    for name, text in (("optimum-cli", "#!/bin/sh\n"), ("python", script)):
        (bin_dir / name).write_text(text)
        (bin_dir / name).chmod(0o700)


def test_no_exporter_is_one_sentence(bin_dir: Path) -> None:
    """It says what to install."""
    with pytest.raises(ConfigError, match=r"pipx install 'optimum\[onnxruntime\]'"):
        find_exporter()


@pytest.mark.parametrize(
    ("export", "check", "error", "message"),
    [
        ("mkdir {out}", "echo noise; echo 2.0001", None, ""),
        ("mkdir {out}", "echo 3.5", UnsoundWeightsError, r"the loss is 3\.5000, and not 2\.0000"),
        ("mkdir {out}", "echo nan", UnsoundWeightsError, "the loss is nan"),
        ("mkdir {out}", "exit 4", StorageError, "not to ONNX: exit code 4"),
        (
            "mkdir {out}; echo much; echo no task >&2; exit 1",
            "exit 4",
            StorageError,
            "not to ONNX: no task",
        ),
    ],
)
def test_only_what_computes_the_same_stays(
    bin_dir: Path, tmp_path: Path, export: str, check: str, error: type[ManyhandsError] | None, message: str
) -> None:
    """The exporter's folder goes if ONNX Runtime finds another loss in it than transformers, or none."""
    folder = tmp_path / "out"
    folder.mkdir()
    install(bin_dir, folder, export.format(out=folder / "onnx"), check)
    if error is None:
        assert export_onnx(folder, "mlm+sop", 2.0, find_exporter()).is_dir()
        return
    with pytest.raises(error, match=message):
        export_onnx(folder, "mlm+sop", 2.0, find_exporter())
    assert not (folder / "onnx").exists()


def test_the_loss_of_logits_is_that_of_torch() -> None:
    """Over the labelled places only, and for logits that overflow when they are exponentiated."""
    generator = np.random.default_rng(3)
    logits = generator.normal(size=(2, 5, 7), scale=400).astype(np.float32)
    labels = generator.integers(0, 7, size=(2, 5))
    labels[0, :3] = IGNORED
    theirs = functional.cross_entropy(torch.tensor(logits).flatten(0, 1), torch.tensor(labels).flatten())
    assert token_loss(logits, labels) == pytest.approx(float(theirs), rel=1e-5)
