"""A peer's node of the swarm's DHT: started for members only, at the place in the network that the peer has."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Sequence
from pathlib import Path

import hivemind
from hivemind.dht.crypto import RSASignatureValidator

from auth.credentials import Credentials
from auth.errors import SwarmError
from auth.swarm_auth import Clock, PeerRecordValidator, RecordKey, SwarmAuthorizer

DAEMON_START_TIMEOUT_S = 60.0


def start_dht(
    run: str,
    credentials: Credentials,
    initial_peers: Sequence[str],
    host_maddrs: Sequence[str],
    announce_maddrs: Sequence[str] | None = None,
    *,
    client_mode: bool = False,
    clock: Clock = time.time,
) -> hivemind.DHT:
    """Start the p2p daemon and the DHT's process, which this forks; raises `SwarmError`."""
    mp.set_start_method("fork", force=True)  # a spawned process spawns by default; hivemind's must be forked
    key = RecordKey(credentials.device_key.private_der)
    try:
        return hivemind.DHT(
            initial_peers=list(initial_peers),
            start=True,
            host_maddrs=list(host_maddrs),
            announce_maddrs=None if announce_maddrs is None else list(announce_maddrs),
            identity_path=str(Path(credentials.directory) / "device.key"),
            check_if_identity_free=False,
            client_mode=client_mode,
            startup_timeout=DAEMON_START_TIMEOUT_S,
            use_ipfs=False,
            nat_port_map=False,
            authorizer=SwarmAuthorizer(credentials, key, clock),
            record_validators=[RSASignatureValidator(key), PeerRecordValidator(credentials, run, clock)],
        )
    except Exception as error:
        raise SwarmError(
            f"The swarm cannot be joined ({error}): check that this machine may open connections to "
            f"{', '.join(initial_peers) or 'others'} and that the run is being served."
        ) from error
