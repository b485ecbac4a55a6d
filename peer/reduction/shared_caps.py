"""Weight caps per sender, written by the trainer's process and read by the averager's.

The trainer's process follows the run and computes the credible number of samples of each device.
The averager's process, forked from the trainer's, reduces parts. Both share the table in memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import multiprocessing as mp
from collections.abc import Mapping
from dataclasses import dataclass

MOST_DEVICES = 4096  # capacity of the table; all other devices are treated as newcomers


@dataclass(frozen=True)
class CapsOfRound:
    """The caps at the beginning of a round."""

    by_hash: Mapping[int, float]
    newcomers: float

    def of(self, peer_id: str) -> float:
        """Return the largest accepted weight of this device, in samples."""
        return self.by_hash.get(_hash_of(peer_id), self.newcomers)


class WeightCaps:
    """The shared table of caps; no limits apply before the first `publish`."""

    def __init__(self) -> None:
        self._lock = mp.Lock()
        self._hashes = mp.RawArray(ctypes.c_uint64, MOST_DEVICES)
        self._caps = mp.RawArray(ctypes.c_double, MOST_DEVICES)
        self._count = mp.RawValue(ctypes.c_int, 0)
        self._newcomers = mp.RawValue(ctypes.c_double, math.inf)

    def publish(self, caps: Mapping[str, float], newcomers: float) -> None:
        """Replace the caps (peer ID -> samples); `newcomers` is the cap of every other device."""
        known = [(_hash_of(peer_id), cap) for peer_id, cap in caps.items()][:MOST_DEVICES]
        with self._lock:
            for index, (peer_hash, cap) in enumerate(known):
                self._hashes[index], self._caps[index] = peer_hash, cap
            self._count.value, self._newcomers.value = len(known), newcomers

    def read(self) -> CapsOfRound:
        """Return the current caps."""
        with self._lock:
            count = self._count.value
            by_hash = dict(zip(self._hashes[:count], self._caps[:count], strict=True))
            return CapsOfRound(by_hash, self._newcomers.value)


def _hash_of(peer_id: str) -> int:
    return int.from_bytes(hashlib.sha256(peer_id.encode()).digest()[:8], "big")
