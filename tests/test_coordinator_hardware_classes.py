"""What kind of hardware a device is."""

from __future__ import annotations

import pytest

from coordinator.hardware_classes import class_of


@pytest.mark.parametrize(
    ("hardware", "kind"),
    [
        ("cuda:0 (Tesla T4)", "gpu"),
        ("2 x cuda (NVIDIA GeForce RTX 4090)", "gpu"),
        ("cuda:0 (NVIDIA A100-SXM4-40GB)", "large-gpu"),
        ("cuda:0 (NVIDIA H100 80GB HBM3)", "large-gpu"),
        ("cuda:0 (Tesla V100-SXM2-16GB)", "large-gpu"),
        ("cuda:0 (Tesla P100-PCIE-16GB)", "gpu"),
        ("8 TPU v3 cores", "tpu"),
        ("2 × cuda (Tesla T4, 15 GiB), fp16", "gpu"),
        ("TPU v4 × 8 (JAX, bfloat16)", "tpu"),
        ("cpu (2 threads)", "cpu"),
        ("mps (Apple GPU)", "apple"),
        ("cpu", "cpu"),
        ("cpu, 8 cores", "cpu"),
        ("auto, 8 cores", "unknown"),
        ("", "unknown"),
        ("<img src=x onerror=alert(1)>", "unknown"),
    ],
)
def test_kinds(hardware: str, kind: str) -> None:
    """Words decide, not parts of words; what nobody knows is unknown."""
    assert class_of(hardware).value == kind
