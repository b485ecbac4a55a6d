"""Whether it is worth a try to compile the model's layers: `--compile`, decided before anything is compiled.

What a try costs and gains is measured by `peer.compilation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CompileMode = Literal["auto", "on", "off"]
LEAST_STEPS = 200  # of the run, still to come
LEAST_HOURS = 1.0  # of this device's stay: a minute or two of compiling is little of them
LEAST_GAIN = 0.05  # of the time of a microbatch, or one may as well go on without


@dataclass(frozen=True)
class Stay:
    """What this device is about to do."""

    steps_left: int  # global steps of the run
    hours: float | None  # None: until it is stopped


@dataclass(frozen=True)
class Trial:
    """What was measured, in seconds for one microbatch."""

    plain_s: float
    compile_s: float  # spent on compiling, once
    compiled_s: float

    @property
    def pays(self) -> bool:
        """Whether compiled layers are so much faster that one should keep them."""
        return self.compiled_s <= (1 - LEAST_GAIN) * self.plain_s


def worth_trying(mode: CompileMode, on_gpus: bool, stay: Stay) -> tuple[bool, str]:
    """Whether to compile, and why not.

    On CPUs it is left to who asks for it: there it takes a C++ compiler and a minute or more of one core.
    """
    if mode != "auto":
        return mode == "on", f"--compile {mode}"
    if not on_gpus:
        return False, "no GPU"
    if stay.steps_left < LEAST_STEPS:
        return False, f"the run has only {stay.steps_left} steps left"
    if stay.hours is not None and stay.hours < LEAST_HOURS:
        return False, "the stay is short"
    return True, ""
