"""What a member changes to reduce falsely: it claims the fattest line, and returns whatever it wants.

The rounds run in a forked process, so it is patched before the peer joins, and told through shared memory.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from peer.part_reducer import PartReducer, ReducedPart
from tests.security.processes import Orders

Falsify = Callable[[torch.Tensor, int], torch.Tensor]  # (the true average, the receiver's index) -> what it is given
FALSE_AVERAGES: Mapping[str, Falsify] = {
    "not finite": lambda average, _: torch.full_like(average, float("nan")),
    "huge": lambda average, _: average * 1e6,
    "flipped": lambda average, _: -average,
    "unlike": lambda average, receiver: average * (1 + receiver),
}
FOLLOW_S = 0.05
ATTACKS = ("", *FALSE_AVERAGES)


class FalseReducer:
    """Returns false averages while it is told to."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._attack = mp.Value(ctypes.c_int, 0)
        self._falsified = mp.Value(ctypes.c_int, 0)
        honest, attack, falsified = PartReducer.accumulate_part, self._attack, self._falsified

        async def accumulate_part(reducer: PartReducer, sender_index: int, *args: Any, **kwargs: Any) -> ReducedPart:
            reduced = await honest(reducer, sender_index, *args, **kwargs)
            if not attack.value:
                return reduced
            falsified.value += 1
            return replace(reduced, average=FALSE_AVERAGES[ATTACKS[attack.value]](reduced.average, sender_index))

        PartReducer.accumulate_part = accumulate_part  # type: ignore[method-assign]

        threading.Thread(target=self._follow_orders, daemon=True).start()

    def _follow_orders(self) -> None:
        """Take up what it is told, also while a round runs; say when it has falsified anything."""
        while not self._orders.stop.wait(FOLLOW_S):
            self._attack.value = ATTACKS.index(self._orders.attack) if self._orders.attack in ATTACKS else 0
            if self._falsified.value:
                self._orders.say("falsified", parts=self._falsified.value)
                self._falsified.value = 0
