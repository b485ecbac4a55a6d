"""In which order a device takes up the units of a source."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Its multiples, modulo one, spread evenly over [0, 1) however many there are.
GOLDEN_RATIO = (5**0.5 - 1) / 2


def deal_units(units: int, device_number: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """All (units,) in the device's order: one order for all devices, each of which begins elsewhere and goes round.

    So devices read different units at the same time, and together they cover all of them evenly, without talking to
    each other and without knowing how many they are.
    """
    order = np.random.default_rng(seed).permutation(units)
    begin = int(device_number * GOLDEN_RATIO % 1.0 * units)
    return np.roll(order, -begin)
