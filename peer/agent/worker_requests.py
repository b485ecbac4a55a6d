"""The agent's answers to a worker's requests: the newest checkpoint, downloaded, and a new measurement of the line.

The worker has no connection to the coordinator, and the agent has no model. A failure costs only the detour: the worker
then takes the state from the swarm.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path

from auth.errors import ManyhandsError, StorageError, VersionError
from peer.agent.worker_process import WorkerProcess
from peer.control.checkpoints import CheckpointOffer, download_checkpoint, read_offer
from peer.network.placement import describe_rate
from peer.network.traffic import Throttle
from peer.protocol import control_pb2
from peer.reporting.messages import CheckpointFetched, CheckpointWanted, LineMeasured, Notice, WorkerPlan

logger = logging.getLogger(__name__)
MeasureLine = Callable[[], Awaitable[float | None]]  # bytes per second, slower direction; None: could not be measured
CHECKPOINT_FOLDER = "checkpoint"  # in the data folder
AskForOffer = Callable[[], Awaitable[control_pb2.CheckpointReply]]
REST_S = 300.0  # after a failure: until then the swarm alone is asked


class CheckpointWatch:
    """Downloads the newest checkpoint when a worker wants it, and tells it the folder; one for each stay."""

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
                    offer, self._folder, link_hosts=self._link_hosts, throttle=self._throttle, rng=self._rng
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

    def _warn(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._show(Notice("warning", text))


class LineWatch:
    """Measures the line again when a worker asks, and tells that one and those after it; one for each stay.

    How often a worker asks is its own decision (`peer.averaging.bandwidth`).
    """

    def __init__(self, measure: MeasureLine, show: Callable[[Notice], None]) -> None:
        self._measure, self._show = measure, show
        self._rate: float | None = None  # as measured last; None: not since joining
        self._measuring: asyncio.Task[None] | None = None

    def within(self, plan: WorkerPlan) -> WorkerPlan:
        """The plan for a worker that starts now."""
        return plan if self._rate is None else replace(plan, place=replace(plan.place, bandwidth=self._rate))

    def measure_for(self, worker: WorkerProcess) -> None:
        """Measure beside everything else; a worker that asks again meanwhile gets the same answer."""
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._tell(worker))

    async def _tell(self, worker: WorkerProcess) -> None:
        rate = await self._measure()
        if rate is None:  # it is asked again, later
            return
        self._rate = rate
        worker.tell(LineMeasured(rate))
        self._show(Notice("info", f"The line was measured again: it has {describe_rate(rate)}."))

    def stop(self) -> None:
        """Nobody waits for the answer any more."""
        if self._measuring is not None:
            self._measuring.cancel()
