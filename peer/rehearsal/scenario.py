"""Scenarios of rehearsals: participants, their connections and devices, sessions and faults.

A scenario is a YAML file, or drawn by `peer.rehearsal.population`. Time 0 is the run's start.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from auth.errors import ConfigError
from peer.config.base import Fraction, Positive, PositiveFloat, Section, WholeNumber, first_mistake
from peer.config.training import Averaging
from peer.network.traffic import BYTES_PER_S_OF_MBIT
from peer.reduction.sizes import round_bytes
from peer.transport.lines import Line

MOST_PEERS = 20_000
KEEPER = "keeper"  # name of the keeper's device
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1, max_length=80)]


class HomeLine(Section):
    """A peer's connection."""

    up_mbit_per_second: PositiveFloat
    """Upload bandwidth, in megabits per second."""
    down_mbit_per_second: PositiveFloat
    """Download bandwidth, in megabits per second."""
    latency_s: _Seconds = 0.02
    """Time of a packet to another peer with the same latency; between two different peers, the mean of both."""

    @property
    def slower_rate(self) -> float:
        """Bytes per second of the slower direction, which a peer declares to its groups."""
        return self.at().slower_rate

    def at(self, factor: float = 1.0) -> Line:
        """Return the connection slowed down to a fraction of its speed."""
        per_mbit = factor * BYTES_PER_S_OF_MBIT
        return Line(self.up_mbit_per_second * per_mbit, self.down_mbit_per_second * per_mbit, self.latency_s)


class Visit(Section):
    """A period in which a participant is in the swarm."""

    begin_s: _Seconds = 0.0
    """Time at which its program is started."""
    end_s: PositiveFloat | None = None
    """Time at which the visit ends; left out: with the rehearsal."""
    ends: Literal["leaves", "dies"] = "leaves"
    """How the visit ends: `leaves` notifies the other peers, `dies` does not."""

    @model_validator(mode="after")
    def _ends_after_its_begin(self) -> Visit:
        if self.end_s is not None and self.end_s <= self.begin_s:
            raise ValueError(f"`end_s` ({self.end_s:g}) must be above `begin_s` ({self.begin_s:g})")
        return self


class Rehearsed(Section):
    """A device that takes part in the rehearsal."""

    name: _Name
    """Name of the device."""
    member: _Name | None = None
    """Member who owns the device; left out: the device's name."""
    line: HomeLine
    """Connection of the device."""
    is_reachable: bool = True
    """Whether others can connect to the device, directly or by hole punching; only such a device reduces a part."""
    samples_per_second: PositiveFloat | None = None
    """Speed of the device with the run's model and sequence length; left out: an auxiliary peer, which only
    averages."""
    visits: tuple[Visit, ...] = Field((Visit(),), strict=False)
    """Visits of the device, in order."""

    @model_validator(mode="after")
    def _visits_in_order(self) -> Rehearsed:
        for before, after in zip(self.visits, self.visits[1:], strict=False):
            if before.end_s is None or after.begin_s < before.end_s:
                raise ValueError(f"`visits` of {self.name}: each must begin after the end of the one before")
        return self


class Mishap(Section):
    """A fault that lasts for some time."""

    kind: Literal["line", "keeper", "stop", "partition", "records", "lies"]
    """`line`: a connection is slower, or dead. `keeper`: the keeper's process is killed, and restarted at the end.
    `stop`: a device's processes are suspended (SIGSTOP). `partition`: two sides cannot reach each other. `records`:
    a device's records arrive late. `lies`: a device is dishonest."""
    begin_s: _Seconds
    """Time at which the fault begins."""
    end_s: PositiveFloat
    """Time at which the fault ends."""
    who: _Name | None = None
    """Name of the device; left out for `keeper` and `partition`."""
    factor: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """For `line`: remaining fraction of the connection's speed."""
    side: tuple[_Name, ...] = Field((), strict=False)
    """For `partition`: names of the devices on one side."""
    delay_s: _Seconds = 0.0
    """For `records`: additional delay until other peers see them."""
    lie: Literal["claims", "weight", "leaves", "withholds", "leads"] | None = None
    """For `lies`: `claims` reports many times the real samples; `weight` also uses that number as the weight in
    rounds; `leaves` abandons every group that has formed; `withholds` sends no averages as a reducer; `leads`
    says, as a leader, that the batch is full, or begins at once with all that have followed it."""

    @model_validator(mode="after")
    def _is_complete(self) -> Mishap:
        if self.end_s <= self.begin_s:
            raise ValueError(f"`end_s` ({self.end_s:g}) must be above `begin_s` ({self.begin_s:g})")
        if (self.who is None) != (self.kind in ("keeper", "partition")):
            raise ValueError(f"`who` names a device, and is left out for `keeper` and `partition` ({self.kind})")
        if bool(self.side) != (self.kind == "partition"):
            raise ValueError(f"`side` names the devices on one side of a `partition` only ({self.kind})")
        if (self.lie is None) == (self.kind == "lies"):
            raise ValueError(f"`lie` says how a device `lies`, and is for that kind only ({self.kind})")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the affected devices."""
        return self.side if self.who is None else (self.who,)


class MeasuredRun(Section):
    """Measured figures of the past run in a scenario, which `manyhands rehearse` also prints."""

    averaging: Averaging
    """The run's settings."""
    steps: WholeNumber
    """Number of steps."""
    step_s: tuple[_Seconds, _Seconds, _Seconds] = Field(strict=False)
    """Times between steps, at the 5th, 50th and 95th percentiles."""
    counted_share: Fraction
    """Share of the reported samples (in steps or lost) that count."""


class Scenario(Section):
    """A swarm and the duration of its rehearsal."""

    duration_s: PositiveFloat
    """Virtual time of the rehearsal."""
    parameters: Positive
    """Number of the model's parameters."""
    averaged: Positive | None = None
    """Number of values averaged in a round; left out: as many as `parameters`. PowerSGD averages fewer."""
    start_s: _Seconds = 15.0
    """Time from the start of a program until it loads the run's state."""
    has_checkpoints: bool = True
    """Whether joining peers can also download the run's state from the coordinator's web server."""
    keeper: HomeLine = HomeLine(up_mbit_per_second=500, down_mbit_per_second=500, latency_s=0.02)
    """Connection of the coordinator's machine."""
    line_mbit: PositiveFloat | None = None
    """`line_mbit` of the coordinator's settings; left out: peers assume the bandwidth of the fastest peer."""
    devices: Annotated[tuple[Rehearsed, ...], Field(max_length=MOST_PEERS, strict=False)]
    """Devices that take part."""
    mishaps: tuple[Mishap, ...] = Field((), strict=False)
    """Faults during the rehearsal."""
    measured: MeasuredRun | None = None
    """Figures measured in the past run that this scenario describes; `manyhands scenario` writes them."""

    def gradient_bytes(self, averaging: Averaging) -> int:
        """Return the bytes of gradients that a peer sends per round."""
        return round(round_bytes(averaging, self.averaged or self.parameters))

    @model_validator(mode="after")
    def _names_are_unique(self) -> Scenario:
        names = Counter(device.name for device in self.devices)
        if twice := [name for name, times in names.items() if times > 1 or name == KEEPER]:
            raise ValueError(f"`devices`: the name {twice[0]} must be one device's, and not the keeper's")
        if strangers := {name for mishap in self.mishaps for name in mishap.names} - names.keys() - {KEEPER}:
            raise ValueError(f"`mishaps`: {sorted(strangers)[0]} is no device of `devices`")
        return self


def load_scenario(path: Path) -> Scenario:
    """Load a scenario file. Raises `ConfigError`, with the key's name, if the file is invalid."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"The scenario {path} cannot be read: {reason}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"The scenario {path} is not YAML: {' '.join(str(error).split())[:200]}.") from error
    try:
        return Scenario.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"The scenario {path} cannot be used: {first_mistake(error)}.") from error
