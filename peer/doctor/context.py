"""The context shared by the stages of the volunteer's doctor: options, and earlier findings.

A coordinator sends its run's description to anyone. Like all network input, it is validated.
"""

from __future__ import annotations

import ipaddress
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from auth.errors import RequestError
from auth.join_link import Address, JoinLink
from peer.config.run import RunConfig
from peer.control.client import ControlClient
from peer.control.reachability import LineSpeed
from peer.doctor.answers import Speed
from peer.doctor.helper import Helper, as_it_is
from peer.network.endpoints import IPAddress, is_peer_address
from peer.protocol import control_pb2

MAX_JSON_CHARS = 64 * 1024
MAX_ADDRESSES = 16


@dataclass(frozen=True)
class Options:
    """The volunteer's options, with the same meaning as in `manyhands join`."""

    state_dir: Path
    link: JoinLink | None = None
    device: str = "auto"
    threads: int | None = None
    microbatch_size: int | None = None
    listen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timing:
    """The timeouts and durations of the stages, in seconds."""

    connect_s: float = 10.0
    daemon_s: float = 20.0  # time limit for starting the p2p daemon, which usually takes less than a second
    helper_s: float = 120.0  # time limit for the helper's answer, including the import of torch
    dial_back_s: float = 8.0
    probe_s: float = 5.0  # duration of the bandwidth measurement in each direction
    speed_s: float = 5.0  # duration of the speed measurement


@dataclass
class Context:
    """The state of one examination; the caller must enter `resources`, which closes open connections."""

    options: Options
    clock: Callable[[], float] = time.time
    stopwatch: Callable[[], float] = time.monotonic
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    timing: Timing = Timing()
    prepare_helper: Callable[[Path], None] = as_it_is  # function that the helper process calls first
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)

    # Findings used by later stages.
    addresses: dict[Address, JoinLink] = field(default_factory=dict)  # join link by resolved address
    reached: tuple[Address, ...] = ()  # addresses that accepted a connection
    answering: JoinLink | None = None  # link to the address with the right certificate
    certificate: str = ""  # the verified certificate, in PEM format
    client: ControlClient | None = None
    greeting: control_pb2.ChallengeReply | None = None
    description: RunDescription | None = None
    line: LineSpeed | None = None  # bandwidth to the coordinator
    speed: Speed | None = None
    reachable: bool | None = None
    relays: bool = False  # whether the keeper is a relay

    @cached_property
    def helper(self) -> Helper:
        """The helper process, which loads PyTorch and hivemind."""
        helper = Helper(self.timing.helper_s, self.prepare_helper)
        self.resources.push_async_callback(helper.end)
        return helper

    @property
    def link(self) -> JoinLink:
        """The join link, reduced to the answering address once that is known."""
        link = self.answering or self.options.link
        assert link is not None
        return link


@dataclass(frozen=True)
class RunDescription:
    """The public description of a run, as sent by its coordinator."""

    config: RunConfig  # only sizes come from the run; other fields have default values
    swarm_addresses: tuple[str, ...]  # multiaddresses of the keeper
    observed_address: IPAddress  # this machine's address as seen by the coordinator
    samples_per_second: float  # speed of the whole swarm

    def addresses_over(self, transport: str) -> tuple[str, ...]:
        """Return the keeper's addresses over "tcp" or "udp"."""
        return tuple(address for address in self.swarm_addresses if f"/{transport}/" in address)


def read_description(reply: control_pb2.DescribeReply) -> RunDescription:
    """Validate and parse a coordinator's description. Raises `RequestError` or `ConfigError`."""
    if len(reply.run_config_json) > MAX_JSON_CHARS:
        raise RequestError("The coordinator's description of its run is too long.")
    try:
        observed = ipaddress.ip_address(reply.observed_address)
    except ValueError as error:
        raise RequestError(f"The coordinator's `observed_address` ({reply.observed_address!r:.60}) is none.") from error
    rate = reply.samples_per_second
    return RunDescription(
        config=RunConfig.from_json(reply.run_config_json),
        swarm_addresses=tuple(filter(is_peer_address, reply.swarm_addresses[:MAX_ADDRESSES])),  # drop invalid addresses
        observed_address=observed,
        samples_per_second=rate if math.isfinite(rate) and rate > 0 else 0.0,
    )
