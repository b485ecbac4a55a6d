"""The streams on which other peers send their parts of a round to this peer, and receive the averages.

A sender may call before this peer knows of their group, since the leader's message can reach the
sender first, and before this peer begins its round. Such a sender waits. Used by `peer.averaging.exchange`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import aclosing, contextmanager

from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import achain, as_aiter

from auth.swarm.authorizer import CONTRIBUTING_ROLES, TRAINING_ROLES
from auth.swarm.directory import PeerDirectory, while_admitted
from peer.averaging.reducer import Messages, Reducer, decoded
from peer.network.least_rate import PATIENCE_S
from peer.network.traffic import Traffic
from peer.transport.transport import Transport

logger = logging.getLogger(__name__)


class ReductionService:
    """This peer's service to the senders of the rounds in which it takes part."""

    def __init__(self, transport: Transport, name: str, directory: PeerDirectory, traffic: Traffic) -> None:
        """Set up the service over streams of this name."""
        self.name = name
        self._transport, self._directory, self._traffic = transport, directory, traffic
        self._expected: dict[bytes, asyncio.Future[Reducer]] = {}  # group ID -> its round, once that has begun
        self._over: Collection[bytes] = ()  # the group IDs that were expected last
        self._is_in_group = asyncio.Event()

    async def serve(self) -> None:
        """Let the members of a group send parts to this peer."""
        await self._transport.serve(self.name, self.answer)

    @contextmanager
    def expecting(self, group_ids: Collection[bytes]) -> Iterator[None]:
        """Accept the senders of these rounds; at the end, release the senders of those that never began."""
        loop = asyncio.get_running_loop()
        self._expected = {group_id: loop.create_future() for group_id in group_ids}
        self._is_in_group.set()
        try:
            yield
        finally:
            for beginning in self._expected.values():
                beginning.cancel()  # no effect on a round that has begun
            self._expected, self._over = {}, tuple(group_ids)
            self._is_in_group.clear()

    def begin(self, group_id: bytes, reducer: Reducer) -> None:
        """Let a reducer answer the senders of its round, which is expected."""
        self._expected[group_id].set_result(reducer)

    async def may_contribute(self, peer: str) -> bool:
        """Return whether a peer's gradients may have a weight in the average; if not, log a warning."""
        if await self._directory.admits(peer, CONTRIBUTING_ROLES):
            return True
        who = self._directory.name_of(peer)
        logger.warning("suspicious: %s, peer %s, sent gradients with a weight: banned from the round", who, peer)
        return False

    async def answer(self, caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Exchange parts and averages with a member while it is admitted, within this peer's upload limit.

        Raises `DecodeError` for a malformed first message; a later one ends the stream as a failure.
        """
        if not await self._directory.admits(caller, TRAINING_ROLES):
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION).SerializeToString()
            return
        parts = while_admitted(self._directory, caller, TRAINING_ROLES, decoded(requests))
        averages = while_admitted(self._directory, caller, TRAINING_ROLES, self._averages_for(caller, parts))
        async with aclosing(parts), aclosing(averages):
            async for message in self._traffic.sending(averages):
                yield message.SerializeToString()

    async def _averages_for(self, caller: str, parts: Messages) -> AsyncGenerator[averaging_pb2.AveragingData, None]:
        first = await asyncio.wait_for(anext(parts, None), PATIENCE_S)
        reducer = None if first is None else await self._reducer_of(first.group_id)
        if reducer is None:
            yield averaging_pb2.AveragingData(code=averaging_pb2.BAD_GROUP_ID)
            return
        async with aclosing(reducer.answer(caller, achain(as_aiter(first), parts))) as averages:
            async for average in averages:
                yield average

    async def _reducer_of(self, group_id: bytes) -> Reducer | None:
        """Wait for a group's round to begin. Return None if it is not one of this peer's next group."""
        if group_id not in self._over:
            await self._is_in_group.wait()  # senders have a limit of their own
        beginning = self._expected.get(group_id)
        if beginning is None:
            return None
        await asyncio.wait([beginning])  # cancellation of one sender must not affect the others
        return None if beginning.cancelled() else beginning.result()
