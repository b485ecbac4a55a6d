"""A worker's initial state, from a checkpoint downloaded by its agent over HTTPS or from a donor.

A checkpoint is usable while the keeper holds the averages of all later steps, which the peer
applies before its first microbatch. After a restart, during a pause, or soon after a checkpoint,
many peers can therefore join from the web server at once. At other times they join from a donor,
which serves a few peers at a time and writes a new checkpoint for the others.
"""

from __future__ import annotations

import logging
import queue
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from auth.errors import StorageError
from peer.models.checkpoint_state import restore_model, restore_optimizer
from peer.progress.decision import ASK_EVERY, RETRY_S
from peer.progress.fingerprint import drifted, sketch_of
from peer.reporting.messages import CheckpointFetched, CheckpointWanted, KeeperSought, Notice
from peer.swarm.swarm import Swarm
from peer.swarm.training_state import moments_of, optimizer_tensors

logger = logging.getLogger(__name__)
TAKEN = "Took the run's state after step {step} from {origin}."
POLL_S = 0.2
BEACON_WAIT_S = 5.0  # timeout for the swarm's first beacon
NOTICE_EVERY = 15  # number of retries between notices to the user
SEEK_AFTER_S = 60.0  # time without a visible keeper before its addresses are requested


class StateTaking:
    """A loader of a worker's initial state; `hear` may be called from another thread."""

    def __init__(
        self,
        swarm: Swarm,
        model: torch.nn.Module,
        tell: Callable[[CheckpointWanted | KeeperSought | Notice], None],
        stop: threading.Event,
        rng: random.Random,
        clock: Callable[[], float],
    ) -> None:
        self._swarm, self._model, self._tell, self._stop, self._rng = swarm, model, tell, stop, rng
        self._clock, self._missed_since = clock, clock()
        self._fetched: queue.Queue[CheckpointFetched] = queue.Queue()

    def hear(self, fetched: CheckpointFetched) -> None:
        """Receive the agent's response to a checkpoint request."""
        self._fetched.put(fetched)

    def run(self) -> bool:
        """Retry until this peer has the swarm's state; return False if stopped first."""
        attempts = 0
        while not self._stop.is_set():
            if attempts % ASK_EVERY == 0 and self._from_checkpoint():
                return True
            if self._swarm.download():
                self._tell(Notice("info", TAKEN.format(step=self._swarm.state.step, origin="the swarm")))
                return True
            if self._stop.is_set():
                break
            self._look_for_keeper()
            if attempts % NOTICE_EVERY == 0:
                self._tell(Notice("warning", f"Waiting for the run's state: {self._reason()}"))
            attempts += 1
            self._stop.wait(self._rng.uniform(0.5, 1.5) * RETRY_S)  # so that peers do not all retry at once
        return False

    def _reason(self) -> str:
        if self._swarm.sees_keeper:
            return "the keeper gives it to joining peers, a few at once."
        return "the keeper, which gives it to joining peers, has not been found in the swarm yet."

    def _look_for_keeper(self) -> None:
        """Ask the agent for the keeper's addresses if the keeper has been missing for some time."""
        now = self._clock()
        if self._swarm.sees_keeper:
            self._missed_since = now
        elif now - self._missed_since >= SEEK_AFTER_S:
            self._missed_since = now
            self._tell(KeeperSought())

    def _from_checkpoint(self) -> bool:
        fetched = self._ask_agent()
        if fetched is None or not fetched.directory:
            return False
        try:
            return self._take(fetched.step, Path(fetched.directory))
        except StorageError as error:
            logger.warning("the checkpoint of step %d is not taken: %s", fetched.step, error)
            return False
        finally:
            shutil.rmtree(fetched.directory, ignore_errors=True)

    def _ask_agent(self) -> CheckpointFetched | None:
        most_bytes = most_state_bytes(self._model, self._swarm.training.optimizer)
        self._tell(CheckpointWanted(most_bytes, self._swarm.averages_held // 2))  # others follow during the download
        while not self._stop.is_set():
            try:
                return self._fetched.get(timeout=POLL_S)
            except queue.Empty:
                continue
        return None

    def _take(self, step: int, directory: Path) -> bool:
        """Load a checkpoint's state if this peer can catch up from there; return whether it can.

        If the keeper's beacon is for the same step, the state is compared with the beacon's sketch
        immediately, otherwise after the next steps.
        """
        beacon = self._swarm.await_beacon(BEACON_WAIT_S)
        if beacon is None or not 0 <= beacon.step - step <= self._swarm.averages_held or not beacon.sketch:
            logger.info("the checkpoint of step %d does not match the swarm's current state", step)
            return False
        with self._swarm.training.lock:
            restore_model(self._model, directory)
            restore_optimizer(self._model, self._swarm.training.optimizer, directory)
            moments = moments_of(self._swarm.training.optimizer)
            if beacon.step == step and drifted(sketch_of(self._swarm.training.parameters, moments), beacon.sketch):
                logger.warning("the checkpoint of step %d does not hold the keeper's state", step)
                return False
            self._swarm.state.restore(step, beacon.era)
        self._tell(Notice("info", TAKEN.format(step=step, origin="its checkpoint")))
        return True


def most_state_bytes(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return an upper bound on the size of the files of this run's state."""
    tensors = [*model.state_dict().values(), *optimizer_tensors(optimizer)]
    return int(sum(tensor.numel() * tensor.element_size() for tensor in tensors)) + (1 << 20)
