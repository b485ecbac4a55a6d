"""What kind of hardware trains, by what a session says of its machine: `cuda:0,1, 4 cores`, `tpu, 96 cores`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "tpu", "apple", "cpu", "other"]
KINDS: tuple[Kind, ...] = ("gpu", "tpu", "apple", "cpu", "other")
_SEVERAL = re.compile(r"\b(\d{1,2}) × cuda\b")  # as workers describe them: `2 × cuda (Tesla T4, 15 GiB)`
_CUDA = re.compile(r"cuda(?::(\d+(?:,\d+)*))?(?![\w])")


@dataclass(frozen=True)
class Hardware:
    """What computes in a machine."""

    kind: Kind
    accelerators: int  # GPUs that it trains on; 1 for whatever else computes


def hardware_of(said: str) -> Hardware:
    """The kind of a machine, by a session's own words; peers may write anything there."""
    text = said.strip().lower()
    if several := _SEVERAL.findall(text):
        return Hardware("gpu", min(64, sum(map(int, several))))
    if found := _CUDA.match(text):
        return Hardware("gpu", 1 if found[1] is None else min(64, 1 + found[1].count(",")))
    first = re.split(r"[^a-z]", text, maxsplit=1)[0]
    kinds: dict[str, Kind] = {"tpu": "tpu", "jax": "tpu", "mps": "apple", "cpu": "cpu"}
    return Hardware(kinds.get(first, "other"), 1)
