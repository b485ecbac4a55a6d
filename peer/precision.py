"""In which precision products are computed, and the loss scale without which half precision loses small gradients."""

from __future__ import annotations

from typing import Literal

Precision = Literal["fp32", "bf16", "fp16"]
Wanted = Literal["auto", "fp32", "bf16", "fp16"]
FIRST_SCALE = 2.0**16
GROW_AFTER = 2000  # microbatches in a row without an overflow


class LossScale:
    """Multiplies the loss, so that half-precision gradients do not vanish; moved as PyTorch's `GradScaler` moves it.

    Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2. Gradients are divided by it again before anybody sees
    them, and a microbatch that overflowed is computed again: neither a sample nor what was accumulated is lost.
    """

    def __init__(self, precision: Precision) -> None:
        self.value = FIRST_SCALE if precision == "fp16" else 1.0
        self._grows = precision == "fp16"
        self._successes = 0

    def lower(self) -> None:
        """Halve it, down to 1, after a microbatch that overflowed, however far that one had to go down."""
        self._successes = 0
        self.value = max(1.0, self.value / 2)

    def succeeded(self) -> None:
        """Count a microbatch that did not overflow; after many in a row the scale doubles."""
        self._successes += 1
        if self._grows and self._successes == GROW_AFTER:
            self._successes = 0
            self.value *= 2
