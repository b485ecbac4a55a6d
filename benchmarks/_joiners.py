"""Joiners who want the run's state of now: each does what a joining peer does until it has the checkpoint on its disk.

Their keys are made beforehand, as a device has its own before it joins. Used by stampede.py.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from auth.join_link import JoinLink
from auth.keys import DeviceKey
from coordinator.context.open_run import OpenRun
from peer.control.checkpoints import CheckpointOffer, download_checkpoint, read_offer
from peer.control.client import ControlClient
from peer.network.traffic import Throttle


@dataclass(frozen=True)
class Visit:
    """How it went for one joiner; moments in Unix seconds."""

    came_at: float
    offered_at: float  # it has joined, and knows what to fetch from where
    done_at: float  # all of it lies on its disk, and has the right digests
    size_bytes: int
    broken_off: int  # attempts that ended before the file did

    @property
    def download_s(self) -> float:
        """From the offer to the last digest."""
        return self.done_at - self.offered_at


@dataclass(frozen=True)
class Joiner:
    """A device that has not joined yet."""

    link: JoinLink
    key: DeviceKey
    invite: str
    folder: Path  # its disk

    async def join(self, most_bytes: int) -> Visit:
        """Become a member, fetch the newest checkpoint, and delete it; raises `RuntimeError` where none is offered."""
        came_at, broken_off = time.time(), 0

        async def rest(seconds: float) -> None:
            nonlocal broken_off
            broken_off += 1
            await asyncio.sleep(seconds)

        offer = await self._offer(most_bytes)
        offered_at, hosts = time.time(), {link.host for link in self.link.each()}
        await download_checkpoint(
            offer, self.folder, link_hosts=hosts, throttle=Throttle(), rng=random.Random(), rest=rest
        )
        done_at = time.time()
        await asyncio.to_thread(shutil.rmtree, self.folder)
        return Visit(came_at, offered_at, done_at, offer.size_bytes, broken_off)

    async def _offer(self, most_bytes: int) -> CheckpointOffer:
        client = await ControlClient.connect(self.link, time.time)
        try:
            token = (await client.join(self.key, self.invite)).token
            offer = read_offer(await client.newest_checkpoint(token), most_bytes)
        finally:
            await client.close()
        if offer is None:
            raise RuntimeError("the coordinator offers no checkpoint of now")
        return offer


def make_joiners(run: OpenRun, count: int, folder: Path) -> list[Joiner]:
    """So many devices, each invited as a member of its own."""
    link = run.directory.join_link
    keys = [DeviceKey.load_or_create(folder / f"{number}.key") for number in range(count)]
    invites = [run.membership.invite(f"joiner {number}")[0] for number in range(count)]
    return [Joiner(link, keys[n], invites[n], folder / f"disk {n}") for n in range(count)]


def most_at_once(visits: list[Visit]) -> int:
    """How many downloads went on at the busiest moment."""
    return max(sum(one.offered_at <= each.offered_at < one.done_at for one in visits) for each in visits)
