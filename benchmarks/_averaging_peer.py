"""One peer of averaging.py: `python -m benchmarks._averaging_peer PLAN` averages with the others, round after round.

It prints its addresses. Each line of standard input is the rate that it declares (bytes per second, or null) for one
round; it answers with the seconds that the round took here.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import torch
from hivemind.compression import Float16Compression
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.utils import get_dht_time

from auth.credentials import Credentials
from auth.swarm_auth import RecordKey, SwarmAccess, peers_key
from benchmarks.averaging import RUN, Plan
from peer.averaging import SwarmGradientAverager
from peer.dht import start_dht
from peer.guest.traffic import Traffic
from peer.place import Place

MATCHMAKING_S = 4.0
ROUND_TIMEOUT_S = 300.0
LIFETIME_S = 3600.0


def main() -> None:
    """Do what the plan says."""
    plan = Plan(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)
    credentials = Credentials(Path(plan.credentials_dir))
    dht = start_dht(RUN, credentials, plan.initial_peers, Place(host_maddrs=(f"/ip4/{plan.address}/tcp/0",)))
    owner = RSASignatureValidator(RecordKey(credentials.device_key.private_der)).local_public_key
    dht.store(peers_key(RUN), {"token": credentials.token_jwt}, get_dht_time() + LIFETIME_S, owner)
    access = SwarmAccess(credentials, RUN, frozenset({"keeper"}))
    gradient = torch.nn.Parameter(torch.zeros(plan.values))
    gradient.grad = torch.full((plan.values,), float(plan.place))
    averager = SwarmGradientAverager(
        traffic=Traffic(),
        dht=dht,
        access=access,
        prefix=f"{RUN}_averager",
        parameters=[gradient],
        compression=Float16Compression(),
        min_matchmaking_time=MATCHMAKING_S,
        request_timeout=2.0,
        allreduce_timeout=ROUND_TIMEOUT_S,
        next_chunk_timeout=ROUND_TIMEOUT_S / 3,
        start=True,
        warn=False,
    )
    averager.required_group_size = plan.peers
    print(json.dumps([str(address) for address in dht.get_visible_maddrs()]), flush=True)
    for line in sys.stdin:
        averager.bandwidth = json.loads(line)
        averager.local_samples_accumulated = 1
        control = averager.schedule_step(timeout=ROUND_TIMEOUT_S)
        averager.step(control=control, reset_accumulators=False, wait=False)
        print(json.dumps(control.result(ROUND_TIMEOUT_S).seconds), flush=True)
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
