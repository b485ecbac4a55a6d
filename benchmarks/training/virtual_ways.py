"""The ways to average that `virtual_workers.py` compares, as sections of a run file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

BATCH = 64  # samples of a common step, and of the local steps that all workers take beside each other
SHARES = 32  # of the text, each with as many samples of a batch
LOCAL_STEPS = 8  # of each worker between averages
CODES = ("exact", "float16", "8bit-blockwise")
RANKS = (16, 8, 4)


@dataclass(frozen=True)
class Way:
    """One way to average."""

    baseline: str  # the way with exact averages and the same optimizer
    optimizer: Mapping[str, Any]  # of common or of local steps
    averaging: Mapping[str, Any]
    is_local: bool = False
    is_one_bit: bool = False  # with the optimizer of 1-bit LAMB; its wire, too, unless averages are exact


def _common() -> dict[str, Way]:
    lamb = {"name": "lamb", "learning_rate": 0.05}
    sections: dict[str, dict[str, Any]] = {code: {"compression": "none" if code == "exact" else code} for code in CODES}
    sections |= {f"PowerSGD rank {rank}": {"compression": "float16", "powersgd_rank": rank} for rank in RANKS}
    sections["topk-2bit"] = {"compression": "topk-2bit"}
    ways = {name: Way("exact", lamb, averaging) for name, averaging in sections.items()}
    for name, code in (("1-bit LAMB, exact", "none"), ("1-bit LAMB", "float16")):
        ways[name] = Way("1-bit LAMB, exact", lamb, {"compression": code}, is_one_bit=True)
    return ways


def _local(name: str, optimizer: Mapping[str, Any]) -> dict[str, Way]:
    """Return the ways of DiLoCo, SparseLoCo or MuLoCo; `outer momentum` is DiLoCo's and MuLoCo's, else a plain mean."""
    plain = {"outer_learning_rate": 1.0, "outer_momentum": 0.0}
    sections: dict[str, dict[str, Any]] = {
        code: {"compression": "none" if code == "exact" else code, **plain} for code in (*CODES, "topk-2bit")
    }
    sections["float16, outer momentum"] = {
        "compression": "float16",
        "outer_learning_rate": 0.7,
        "outer_momentum": 0.9,
    }
    return {
        f"{name}, {code}": Way(f"{name}, exact", optimizer, averaging, is_local=True)
        for code, averaging in sections.items()
    }


def _with_delay(ways: Mapping[str, Way]) -> dict[str, Way]:
    """Return the ways, and each of them with training beside its rounds."""
    delayed = {
        f"{name}, delayed": replace(way, averaging={**way.averaging, "delay": True}) for name, way in ways.items()
    }
    return {**ways, **delayed}


WAYS: Mapping[str, Way] = _with_delay(
    _common()
    | _local("AdamW", {"name": "adamw", "learning_rate": 0.003})
    | _local("Muon", {"name": "muon", "learning_rate": 0.02})
)
