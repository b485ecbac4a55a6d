"""The agent's part in starting from a checkpoint: asks for the newest when a worker wants it, downloads it, says where.

The worker has no line to the coordinator; the agent has no model. Whatever goes wrong here costs only the detour: the
worker then takes the state from the swarm.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from auth.errors import ManyhandsError, StorageError, VersionError
from peer.checkpoint_download import download_checkpoint
from peer.checkpoint_offer import CheckpointOffer, read_offer
from peer.guest.traffic import Throttle
from peer.messages import CheckpointFetched, CheckpointWanted, Notice
from peer.protocol import control_pb2
from peer.worker_process import WorkerProcess

logger = logging.getLogger(__name__)
CHECKPOINT_FOLDER = "checkpoint"  # in the data folder
AskForOffer = Callable[[], Awaitable[control_pb2.CheckpointReply]]
RETRY_FIRST_S = 1.0
REST_S = 300.0  # after a failure: until then the swarm alone is asked


class CheckpointWatch:
    """One stay's."""

    def __init__(
        self,
        ask: AskForOffer,
        folder: Path,
        *,
        link_hosts: Collection[str],
        throttle: Throttle,
        room_bytes: Callable[[], int | None],
        show: Callable[[Notice], None],
        rng: random.Random,
    ) -> None:
        self._ask, self._folder, self._link_hosts, self._room_bytes = ask, folder, link_hosts, room_bytes
        self._throttle, self._show, self._rng = throttle, show, rng
        self._told = ""  # the last warning: the same one is shown once
        self._resting_until_s = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    def fetch_for(self, worker: WorkerProcess, wanted: CheckpointWanted) -> None:
        """Fetch it beside everything else; a worker that asks again meanwhile gets the same answer."""
        if not self.is_fetching:
            self._fetching = asyncio.create_task(self._answer(worker, wanted))

    @property
    def is_fetching(self) -> bool:
        """Whether a worker waits for the answer."""
        return self._fetching is not None and not self._fetching.done()

    def stop(self) -> None:
        """Nobody waits for the answer any more; what has arrived is kept."""
        if self._fetching is not None:
            self._fetching.cancel()

    async def _answer(self, worker: WorkerProcess, wanted: CheckpointWanted) -> None:
        answer = CheckpointFetched(0, "")
        try:
            if asyncio.get_running_loop().time() < self._resting_until_s:
                return
            offer = read_offer(await self._ask(), wanted.most_bytes)
            if offer is not None:
                self._require_room(offer)
                await download_checkpoint(
                    offer, self._folder, link_hosts=self._link_hosts, throttle=self._throttle, wait=self._wait
                )
                answer = CheckpointFetched(offer.step, str(self._folder))
        except VersionError as error:  # a coordinator that offers none
            logger.info("%s", error)
        except ManyhandsError as error:
            self._resting_until_s = asyncio.get_running_loop().time() + REST_S
            self._warn(f"{error} The run's state comes from the swarm instead.")
        finally:
            worker.tell(answer)

    def _require_room(self, offer: CheckpointOffer) -> None:
        """Raise `StorageError` where the volunteer does not allow so much of the disk."""
        room = self._room_bytes()
        if room is not None and offer.size_bytes > room:
            needed, left = offer.size_bytes / 1e6, max(0, room) / 1e6
            raise StorageError(f"`--max-disk` leaves {left:.0f} MB, the run's checkpoint has {needed:.0f} MB.")

    async def _wait(self, failed: int) -> None:
        await asyncio.sleep(self._rng.uniform(0.5, 1.5) * RETRY_FIRST_S * 2.0**failed)

    def _warn(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._show(Notice("warning", text))
