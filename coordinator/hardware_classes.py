"""Which class of hardware a device is in, from what it says of itself: so that like is compared with like. Pure."""

from __future__ import annotations

import re
from enum import Enum


class HardwareClass(str, Enum):
    """The values are part of the public API."""

    TPU = "tpu"
    LARGE_GPU = "large-gpu"  # what data centres compute with
    GPU = "gpu"  # all others, those of free notebooks among them
    APPLE = "apple"
    CPU = "cpu"
    UNKNOWN = "unknown"


_LARGE = re.compile(r"\b(a100|a800|h100|h200|h800|gh200|b100|b200|gb200|v100|l40s?|a40|a30|a6000|mi[123]\d\d)\b")
_PATTERNS = (
    (HardwareClass.TPU, re.compile(r"\btpu\b")),
    (HardwareClass.APPLE, re.compile(r"\b(mps|apple)\b")),
    (HardwareClass.GPU, re.compile(r"\b(cuda|gpu|nvidia|tesla|rocm)\b")),
    (HardwareClass.CPU, re.compile(r"\bcpu\b")),
)


def class_of(hardware: str) -> HardwareClass:
    """The kind of a device that describes itself so, e.g. `cuda:0 (Tesla T4)`."""
    words = hardware.lower()
    kind = next((kind for kind, pattern in _PATTERNS if pattern.search(words)), HardwareClass.UNKNOWN)
    return HardwareClass.LARGE_GPU if kind is HardwareClass.GPU and _LARGE.search(words) else kind
