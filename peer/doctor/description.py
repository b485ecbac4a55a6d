"""What a coordinator says of its run to those who have not joined; read as anything that a stranger sends."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass

from auth.errors import RequestError
from peer.protocol import control_pb2
from peer.run_config import RunConfig
from peer.ways import IPAddress, is_peer_address

MAX_JSON_CHARS = 64 * 1024
MAX_ADDRESSES = 16


@dataclass(frozen=True)
class RunDescription:
    """The public part of a run."""

    config: RunConfig  # sizes; everything else is at its default
    swarm_addresses: tuple[str, ...]  # libp2p multiaddresses of the keeper
    observed_address: IPAddress  # this machine's, as the coordinator sees it
    samples_per_second: float  # of the whole swarm

    def addresses_over(self, transport: str) -> tuple[str, ...]:
        """The keeper's addresses over "tcp" or "udp"."""
        return tuple(address for address in self.swarm_addresses if f"/{transport}/" in address)


def read_description(reply: control_pb2.DescribeReply) -> RunDescription:
    """Raises `RequestError` or `ConfigError` for what no coordinator sends; addresses of unknown form are left out."""
    if len(reply.run_config_json) > MAX_JSON_CHARS:
        raise RequestError("The coordinator's description of its run is too long.")
    try:
        observed = ipaddress.ip_address(reply.observed_address)
    except ValueError as error:
        raise RequestError(f"The coordinator's `observed_address` ({reply.observed_address!r:.60}) is none.") from error
    rate = reply.samples_per_second
    return RunDescription(
        config=RunConfig.from_json(reply.run_config_json),
        swarm_addresses=tuple(filter(is_peer_address, reply.swarm_addresses[:MAX_ADDRESSES])),
        observed_address=observed,
        samples_per_second=rate if math.isfinite(rate) and rate > 0 else 0.0,
    )
