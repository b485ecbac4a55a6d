"""When layers are worth a try to be compiled."""

from __future__ import annotations

import pytest

from peer.compile_choice import CompileMode, Stay, Trial, worth_trying

LONG = Stay(steps_left=10_000, hours=None)


@pytest.mark.parametrize(
    ("mode", "on_gpus", "stay", "wanted", "reason"),
    [
        ("auto", True, LONG, True, ""),
        ("auto", True, Stay(10_000, hours=8.0), True, ""),
        ("auto", False, LONG, False, "no GPU"),
        ("auto", True, Stay(50, hours=None), False, "only 50 steps left"),
        ("auto", True, Stay(10_000, hours=0.5), False, "short"),
        ("on", False, Stay(1, hours=0.1), True, "--compile on"),
        ("off", True, LONG, False, "--compile off"),
    ],
)
def test_it_has_to_pay_off(mode: CompileMode, on_gpus: bool, stay: Stay, wanted: bool, reason: str) -> None:
    """Unasked only on GPUs, for long enough; what was asked for is done."""
    found, why = worth_trying(mode, on_gpus, stay)
    assert found is wanted
    assert reason in why


def test_a_little_faster_is_not_enough() -> None:
    """Compiled layers are kept for five percent and more."""
    assert Trial(plain_s=1.0, compile_s=60.0, compiled_s=0.9).pays
    assert not Trial(plain_s=1.0, compile_s=0.0, compiled_s=0.97).pays
    assert not Trial(plain_s=1.0, compile_s=0.0, compiled_s=1.2).pays
