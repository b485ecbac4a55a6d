"""The meetings of a device that may lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from peer.averaging.declarations import DeclaredGroup
from peer.averaging.meetings import BEGIN, Meetings, count_word
from peer.averaging.requirements import Heard, Requirements
from peer.progress.records import PeerRecord
from peer.rehearsal.members import signature, verify
from peer.rehearsal.world import World
from peer.transport.transport import Transport

FALSE_COUNTS = 0.5  # share of its followers to which a lying leader says that the batch is full, and nothing more


class RehearsedMeetings(Meetings):
    """Real meetings, unless the device lies to its leader or to its followers."""

    def __init__(self, world: World, name: str, transport: Transport, deliver: Callable[[Heard], bool]) -> None:
        """Set up the meetings of a device; `deliver` takes what it hears."""
        members = world.members
        super().__init__(transport, "meet", members, members.opened, partial(signature, name), deliver, verify)
        self._world, self._device, self._deceived = world, name, dict[str, bytes]()

    def want(self, wanted: Requirements) -> None:
        """Set the requirements for the next group; a device that lies reports other samples to its leader."""
        if wanted.report and self._world.troubles.lies(self._device, "claims", "weight"):
            told = self._world.as_told(self._device, PeerRecord.read_report(wanted.report))
            wanted = replace(wanted, report=told.report())
        super().want(wanted)

    async def welcome(self, caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Lead a follower; a device that lies counts a full batch, or begins with all that have ever followed it."""
        if not self._world.troubles.lies(self._device, "leads"):
            async with aclosing(super().welcome(caller, requests)) as words:
                async for word in words:
                    yield word
            return
        self._deceived[caller] = await anext(requests, b"")
        if self._world.rng.random() < FALSE_COUNTS:
            yield count_word(self._world.target, 0.0)
            await asyncio.Event().wait()
        group = self._deceived | {self._device: self._declared}
        yield BEGIN + DeclaredGroup(caller.encode(), tuple(group), tuple(group.values())).message()
