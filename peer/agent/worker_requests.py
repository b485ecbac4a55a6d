"""Worker requests that the agent answers: a checkpoint, the bandwidth, the keeper's addresses.

The worker has no connection to the coordinator, and the agent has no model. Each request is handled
in a background task; the answer is an event, which the agent forwards to the worker. If the
checkpoint cannot be downloaded, the worker gets the state from the swarm.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path

from auth.errors import ManyhandsError, StorageError, VersionError
from peer.control.checkpoints import CheckpointOffer, download_checkpoint, read_offer
from peer.network.endpoints import are_keepers, best_ways
from peer.network.placement import describe_rate
from peer.network.traffic import Throttle
from peer.protocol import control_pb2
from peer.reporting.messages import CheckpointFetched, CheckpointWanted, KeeperAt, LineMeasured, Notice

logger = logging.getLogger(__name__)
MeasureLine = Callable[[], Awaitable[float | None]]  # returns bytes/s in the slower direction, or None on failure
CHECKPOINT_FOLDER = "checkpoint"  # name of the folder in the device's data folder
AskForOffer = Callable[[], Awaitable[control_pb2.CheckpointReply]]
REST_S = 300.0  # minimum time between a failed download and the next attempt


class CheckpointWatch:
    """A downloader that fetches the newest checkpoint when a worker requests it."""

    def __init__(
        self,
        ask: AskForOffer,
        folder: Path,
        *,
        link_hosts: Collection[str],
        throttle: Throttle,
        room_bytes: Callable[[], int | None],
        tell: Callable[[CheckpointFetched | Notice], None],
        rng: random.Random,
    ) -> None:
        self._ask, self._folder, self._link_hosts, self._room_bytes = ask, folder, link_hosts, room_bytes
        self._throttle, self._tell, self._rng = throttle, tell, rng
        self._warned = ""  # last warning shown, to avoid repeating it
        self._resting_until_s = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    def fetch(self, wanted: CheckpointWanted) -> None:
        """Start a download; if one is already in progress, its answer serves both requests."""
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._answer(wanted))

    def stop(self) -> None:
        """Cancel the download without sending an answer; keep partial files."""
        if self._fetching is not None:
            self._fetching.cancel()
            self._fetching = None

    async def _answer(self, wanted: CheckpointWanted) -> None:
        answer = CheckpointFetched(0, "")
        try:
            if asyncio.get_running_loop().time() < self._resting_until_s:
                return
            offer = read_offer(await self._ask(), wanted)
            if offer is not None:
                self._require_room(offer)
                await download_checkpoint(
                    offer, self._folder, link_hosts=self._link_hosts, throttle=self._throttle, rng=self._rng
                )
                answer = CheckpointFetched(offer.step, str(self._folder))
        except VersionError as error:  # this coordinator version offers no checkpoints
            logger.info("%s", error)
        except ManyhandsError as error:
            self._resting_until_s = asyncio.get_running_loop().time() + REST_S
            self._warn(f"{error} The run's state comes from the swarm instead.")
        finally:
            if self._fetching is asyncio.current_task():
                self._tell(answer)

    def _require_room(self, offer: CheckpointOffer) -> None:
        """Raise `StorageError` if the checkpoint would exceed the volunteer's disk limit."""
        room = self._room_bytes()
        if room is not None and offer.size_bytes > room:
            needed, left = offer.size_bytes / 1e6, max(0, room) / 1e6
            raise StorageError(f"`--max-disk` leaves {left:.0f} MB, the run's checkpoint has {needed:.0f} MB.")

    def _warn(self, text: str) -> None:
        if text != self._warned:
            self._warned = text
            self._tell(Notice("warning", text))


class LineWatch:
    """A bandwidth meter that runs when a worker requests a measurement."""

    def __init__(self, measure: MeasureLine, tell: Callable[[LineMeasured | Notice], None]) -> None:
        self._measure, self._tell = measure, tell
        self._measuring: asyncio.Task[None] | None = None

    def measure(self) -> None:
        """Start a measurement; if one is already in progress, its answer serves both requests."""
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._answer())

    async def _answer(self) -> None:
        rate = await self._measure()
        if rate is not None:  # after a failure, the worker asks again later
            self._tell(LineMeasured(rate))
            self._tell(Notice("info", f"The line was measured again: it has {describe_rate(rate)}."))

    def stop(self) -> None:
        """Cancel the measurement without sending an answer."""
        if self._measuring is not None:
            self._measuring.cancel()


class KeeperSearch:
    """A search for reachable addresses of the keeper.

    It starts when the coordinator sends new addresses, or when a worker cannot reach the keeper.
    """

    def __init__(self, ask: Callable[[], Awaitable[Sequence[str]]], tell: Callable[[KeeperAt], None]) -> None:
        self._ask, self._tell = ask, tell
        self.known = asyncio.Event()  # set once the coordinator has sent addresses
        self.addresses: tuple[str, ...] = ()  # the coordinator's latest addresses
        self._trying: asyncio.Task[None] | None = None

    def hear(self, addresses: Sequence[str]) -> None:
        """Store the keeper's addresses and, if they have changed, try to connect."""
        if self._take(addresses):
            self._begin(self._try())

    def seek(self) -> None:
        """Fetch the keeper's addresses again and try to connect."""
        self._begin(self._ask_again())

    def stop(self) -> None:
        """Stop looking for the keeper."""
        if self._trying is not None:
            self._trying.cancel()

    def _take(self, addresses: Sequence[str]) -> bool:
        """Store new keeper addresses if they are valid; return whether any were stored."""
        if not addresses or tuple(addresses) == self.addresses or not are_keepers(addresses):
            return False
        self.addresses = tuple(addresses)
        self.known.set()
        return True

    def _begin(self, trying: Coroutine[None, None, None]) -> None:
        self.stop()
        self._trying = asyncio.ensure_future(trying)

    async def _ask_again(self) -> None:
        with suppress(ManyhandsError):  # the session will receive the addresses later
            self._take(await self._ask())
        await self._try()

    async def _try(self) -> None:
        self._tell(KeeperAt(await best_ways(self.addresses)))
