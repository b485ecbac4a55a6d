"""The access rules of an averager, as its process receives them.

In manyhands, every peer publishes its access token in the DHT, and DHT nodes reject records without
a valid token. An averager exchanges messages and tensors only with libp2p identities that have a
valid, unrevoked token (`auth.swarm.directory`). The transport authenticates these identities.
"""

from __future__ import annotations

from dataclasses import dataclass

from auth.clock import swarm_time
from auth.credentials import Credentials
from auth.swarm.authorizer import Clock


@dataclass(frozen=True)
class SwarmAccess:
    """The credentials and roles that an averager's forked process uses to check other peers."""

    credentials: Credentials
    run: str
    donor_roles: frozenset[str]  # roles of the peers from which this peer downloads state
    clock: Clock = swarm_time
