"""Whether an exported folder computes what its manifest says, in plain transformers' hands: else nobody gets it."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from auth.errors import UnsoundWeightsError
from coordinator.fresh_process import EndedBadlyError, run_apart
from coordinator.manifests import verify

SCRIPT = Path(__file__).with_name("loading_check.py")
TOLERANCE = 1e-3  # relative, from 1 on: other kernels round differently


@dataclass(frozen=True)
class Computed:
    """What plain transformers makes of an exported folder."""

    loss: float  # of the probe, as the manifest has it
    token_loss: float  # without that of the sentences' order
    vocabulary: int  # rows of the model's embedding
    tokens: int  # that the tokenizer knows


def check_loads(folder: Path) -> Computed:
    """Load an exported folder, which was verified, in a fresh process and compute the losses of its probe.

    Raises `UnsoundWeightsError` if it cannot be loaded or the loss is not the manifest's.
    """
    manifest = verify(folder, files=()).manifest
    try:
        found = Computed(**json.loads(run_apart([sys.executable, "-I", str(SCRIPT), str(folder)])))
    except (EndedBadlyError, ValueError, TypeError) as error:
        raise UnsoundWeightsError(
            f"The checkpoint of step {manifest.step} cannot be loaded by plain transformers: {error}"
        ) from error
    complaint = difference(manifest.probe_loss, found)
    if complaint:
        raise UnsoundWeightsError(f"The checkpoint of step {manifest.step} is unsound: {complaint}.")
    return found


def difference(expected: float | None, found: Computed) -> str:
    """Why what was loaded cannot be the checkpoint; empty if it can."""
    if expected is None:
        return "it has no finite loss to compare with"
    if not is_same(expected, found.loss):
        return f"loaded by plain transformers its loss is {found.loss:.4f}, and the manifest says {expected:.4f}"
    if found.tokens > found.vocabulary:
        return f"its tokenizer knows {found.tokens} tokens, and its model only {found.vocabulary}"
    return ""


def is_same(expected: float, found: float) -> bool:
    """Whether two losses differ by no more than rounding."""
    return math.isfinite(found) and abs(found - expected) <= TOLERANCE * max(1.0, abs(expected))
