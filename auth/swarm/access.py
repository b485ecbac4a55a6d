"""Access control for averaging groups.

hivemind authorizes only DHT requests. In manyhands, every peer publishes its access token in the
DHT, and DHT nodes reject records without a valid token. An averager exchanges RPCs and tensors only
with libp2p identities that have a valid, unrevoked token. The transport authenticates these
identities.

Only the worker and the keeper import this module, because hivemind imports torch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import (  # noqa: UP035 - hivemind reads the annotations of rpc_ methods and knows only typing's
    Any,
    AsyncIterator,
)

from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2

from auth.clock import swarm_time
from auth.credentials import Credentials
from auth.swarm.authorizer import CONTRIBUTING_ROLES, TRAINING_ROLES, Clock
from auth.swarm.directory import PeerDirectory, while_admitted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SwarmAccess:
    """The credentials and roles that an averager's forked process uses to check other peers."""

    credentials: Credentials
    run: str
    donor_roles: frozenset[str]  # roles of the peers from which this peer downloads state
    clock: Clock = swarm_time


class AuthorizedAverager:
    """A mixin for hivemind averagers that admits only peers with valid tokens."""

    rpc_join_group = rpc_download_state = None  # not served: hivemind's means for both are not used
    access: SwarmAccess
    _directory: PeerDirectory | None = None

    @property
    def directory(self: Any) -> PeerDirectory:
        """The directory of admitted peers, created on first use in the averager's process."""
        if self._directory is None:
            self._directory = PeerDirectory(self.dht, self.access.credentials, self.access.run, self.access.clock)
        return self._directory

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Exchange parts with members only; members without samples only receive averages."""
        caller = context.remote_id.to_base58()
        if not await self.directory.admits(caller, TRAINING_ROLES):
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        parts = while_admitted(self.directory, caller, TRAINING_ROLES, stream)
        averages = super().rpc_aggregate_part(parts, context)  # type: ignore[misc]
        async for message in while_admitted(self.directory, caller, TRAINING_ROLES, averages):
            yield message

    async def _declare_for_download_periodically(self) -> None:
        """Do nothing: peers find state donors by token, and nodes reject the key hivemind uses."""

    async def may_contribute(self, peer: PeerID) -> bool:
        """Return whether a peer's gradients may have a weight in the average; if not, log a warning."""
        if await self.directory.admits(peer.to_base58(), CONTRIBUTING_ROLES):
            return True
        token = self.directory.token_of(peer.to_base58())
        who = "no member" if token is None else f"{token.member} (device {token.device_id}, {token.role})"
        logger.warning("suspicious: %s, peer %s, sent gradients with a weight: banned from the round", who, peer)
        return False
