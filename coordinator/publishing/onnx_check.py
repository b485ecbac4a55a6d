"""A script that prints a model's probe loss in ONNX Runtime: `onnx_check.py DIR mlm|mlm+sop|clm`.

The script runs in optimum's Python environment, and imports nothing from manyhands.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

IGNORED = -100


def token_loss(logits: Any, labels: Any) -> float:
    """Return the mean cross entropy of logits (b, l, vocabulary) at labels (b, l) except -100."""
    logits, labels = logits[labels != IGNORED].astype(np.float64), labels[labels != IGNORED]
    logits -= logits.max(axis=-1, keepdims=True)
    chosen = logits[np.arange(len(labels)), labels]
    return float((np.log(np.exp(logits).sum(axis=-1)) - chosen).mean())


def main() -> None:
    """Print the loss of the model in DIR/onnx on the probe in DIR."""
    from onnxruntime import InferenceSession
    from safetensors.numpy import load_file

    folder, objective = Path(sys.argv[1]), sys.argv[2]
    probe = load_file(folder / "probe.safetensors")
    labels = probe["labels"]
    places = np.broadcast_to(np.arange(labels.shape[1]), labels.shape).copy()
    given = {"token_type_ids": np.zeros_like(labels), "position_ids": places, **probe}
    session = InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], {each.name: given[each.name] for each in session.get_inputs()})[0]
    shifted = (logits[:, :-1], labels[:, 1:]) if objective == "clm" else (logits, labels)
    sys.stdout.write(f"{token_loss(*shifted)!r}\n")


if __name__ == "__main__":
    main()
