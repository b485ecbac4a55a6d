"""One peer of `benchmarks.swarm.homes`: `python -m benchmarks.swarm.home_peer PLAN` runs until its standard input ends.

The peer prints each event as a line of JSON with the time, the samples computed, the bytes sent and received by its
host, and the bytes of its DHT calls.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import random
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NoReturn

import psutil
import torch
from google.protobuf.message import Message
from hivemind.p2p import P2P, PeerID

from auth.credentials import Credentials
from auth.receipts import read_receipt
from auth.swarm.hivemind_patches import patch_hivemind
from benchmarks.swarm.homes import Plan
from benchmarks.training.trainer import SPECIAL, random_batch
from peer.backends import MicrobatchResult
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.models.build import build_model
from peer.network.placement import Placement
from peer.reporting.messages import (
    CheckpointFetched,
    CheckpointWanted,
    KeeperSought,
    Lost,
    Notice,
    Progress,
    StepReport,
)
from peer.runtime.processes import exit_now, kill_forks_at_end
from peer.swarm.moves import StepOutcome
from peer.swarm.swarm import Swarm
from peer.training.bootstrap import StateTaking
from peer.training.trainer import train

KEEPER_POLL_S, WATCH_S = 0.03, 0.2
BYTES_PER_PARAMETER = 4
WHOLE = 0.9  # a download of more than this share of the parameters' bytes is a whole state
PORT = 31330
BATCHES = 128  # number of batches made in advance and repeated, to take no time during training


class RepeatedBatches:
    """A stream of batches that never waits for data; each peer draws different words.

    Peers with the same words would show no gradient noise, and averaging would cut their weights.
    """

    wait_s = 0.0

    def __init__(self, config: RunConfig) -> None:
        self._batches = [random_batch(config, secrets.randbits(48)) for _ in range(BATCHES)]

    def __iter__(self) -> Iterator[Batch]:
        return cycle(self._batches)


class DhtCalls:
    """A counter of the bytes of this peer's calls to other DHT nodes, including responses, by kind of call.

    Each call is counted by its caller only; averaged over all peers, the count equals the bytes a peer sends.
    """

    KINDS = ("find", "store", "ping")

    def __init__(self) -> None:
        self._bytes = {kind: multiprocessing.Value("q", 0) for kind in self.KINDS}
        patch_hivemind()  # first, because it replaces the function wrapped below
        call: Any = P2P._call_unary_protobuf_handler

        async def counted(p2p: P2P, peer: PeerID, name: str, request: Message, answer: type[Message]) -> Message:
            response: Message = await call(p2p, peer, name, request, answer)
            self._count(name, request.ByteSize() + response.ByteSize())
            return response

        P2P._call_unary_protobuf_handler = counted

    def _count(self, name: str, size_bytes: int) -> None:
        kind = self._bytes.get(name.rpartition("DHTProtocol.rpc_")[2])
        if kind is not None:
            with kind.get_lock():
                kind.value += size_bytes

    def read(self) -> dict[str, int]:
        """Return the number of bytes so far by kind of call."""
        return {kind: counted.value for kind, counted in self._bytes.items()}


class Journal:
    """A log of this peer's events for the benchmark, one line of JSON per event."""

    def __init__(self, calls: DhtCalls) -> None:
        self.computed = 0  # number of samples
        self._calls = calls
        self._lock = threading.Lock()

    def count(self, samples: int) -> None:
        """Count computed samples, and log them."""
        self.computed += samples
        self.say("computed")

    def say(self, event: str, **facts: Any) -> None:
        """Print one event as a line of JSON."""
        sent, received = line_traffic()
        known = {"at": time.monotonic(), "computed": self.computed, "sent": sent, "received": received}
        with self._lock:
            print(json.dumps({"event": event} | known | {"dht": self._calls.read()} | facts), flush=True)


class DownloadWatch:
    """A log of downloads of a whole state, recognized by the bytes received."""

    def __init__(self, journal: Journal, model: torch.nn.Module) -> None:
        self._journal = journal
        self._least_bytes = WHOLE * BYTES_PER_PARAMETER * sum(each.numel() for each in model.parameters())
        self._began: tuple[float, int] | None = None

    def look(self, is_downloading: bool) -> None:
        """Record whether a state download is running, and log a completed download."""
        if is_downloading and self._began is None:
            self._began = time.monotonic(), line_traffic()[1]
        elif not is_downloading and self._began is not None:
            (at, received), self._began = self._began, None
            if line_traffic()[1] - received >= self._least_bytes:
                self._journal.say("download", seconds=time.monotonic() - at)


class PacedBackend(TorchBackend):
    """A backend that sleeps after computing, until the samples have taken the time set by the plan."""

    def __init__(self, config: RunConfig, model: Any, journal: Journal, plan: Plan) -> None:
        super().__init__(config, model)
        self._journal, self._seconds_per_sample, self._begin_at = journal, plan.seconds_per_sample, plan.begin_at

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient, taking as long as the volunteer's device would."""
        time.sleep(max(0.0, self._begin_at - time.monotonic()))
        began = time.monotonic()
        result = super().accumulate(batch)
        time.sleep(max(0.0, self._seconds_per_sample * batch.samples - (time.monotonic() - began)))
        self._journal.count(result.samples)
        return result


def line_traffic() -> tuple[int, int]:
    """Return the bytes sent and received by all processes of this host."""
    lines = [counters for name, counters in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    return sum(each.bytes_sent for each in lines), sum(each.bytes_recv for each in lines)


def end_of_input(then: Callable[[], None] = lambda: None) -> threading.Event:
    """Return an event that is set, before a call of `then`, when the benchmark asks this peer to leave."""
    ended = threading.Event()

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin, whose lock would block a forked child forever
        ended.set()
        then()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def run_to_end(act: Callable[[], None]) -> NoReturn:
    """Run `act`, then exit immediately, because threads and processes would delay a normal exit."""
    try:
        act()
    except Exception:  # noqa: BLE001 - the process's outermost boundary; the log has the trace
        traceback.print_exc()
        exit_now(1)
    exit_now(0)


def begin() -> tuple[Plan, RunConfig, Any, Journal]:
    """Start a peer of either system; return its plan, run, model and event log."""
    kill_forks_at_end()
    plan = Plan(**json.loads(sys.argv[1]))
    log_format = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=log_format, force=True)  # a forked process may already have handlers
    torch.set_num_threads(1)
    config = RunConfig.from_json(plan.config_json)
    return plan, config, build_model(config, config.tokenizer.vocab_size, SPECIAL), Journal(DhtCalls())


def main() -> None:
    """Join the swarm, then act as keeper or trainer according to the plan in the first argument."""
    plan, config, model, journal = begin()
    maddr = f"/ip4/0.0.0.0/tcp/{PORT}"
    announced = None if plan.behind_nat else (f"/ip4/{plan.address}/tcp/{PORT}",)
    swarm = Swarm.join(
        config=config,
        model=model,
        credentials=Credentials(Path(plan.credentials_dir)),
        initial_peers=plan.initial_peers,
        place=Placement("relayed" if plan.behind_nat else "direct", (maddr,), announced, plan.rate),
    )
    (keep if plan.role == "keeper" else take_part)(plan, config, swarm, model, journal)
    journal.say("left")


def keep(_plan: Plan, _config: RunConfig, swarm: Swarm, _model: Any, journal: Journal) -> None:
    """Average with the trainers and send the state to joiners, as the keeper does."""
    ended = end_of_input(swarm.interrupt)
    journal.say("addresses", addresses=swarm.addresses)
    while not ended.wait(KEEPER_POLL_S):
        outcome = swarm.advance()
        if outcome is not None and outcome.averaged:
            journal.say("step", samples=0, **facts_of(outcome, swarm))
    swarm.leave()


def facts_of(taken: StepOutcome | StepReport, swarm: Swarm) -> dict[str, Any]:
    """Return a step's log entry, with the average's weights from the receipt if this peer reduced a part."""
    return {
        "step": taken.step,
        "seconds": taken.averaging_s,
        "group": taken.group_size,
        "group_samples": taken.group_samples,
        "weights": json.loads(read_receipt(taken.receipt).body)["samples"] if taken.receipt else {},
        "digest": digest_after(swarm, taken.step),
    }


def digest_after(swarm: Swarm, step: int) -> str:
    """Return a digest of all bits of the parameters after a step, or "" if a later step has been taken."""
    found = hashlib.sha256()
    with swarm.training.lock:
        for parameter in swarm.training.parameters:
            found.update(parameter.detach().contiguous().view(torch.uint8).numpy().data)
        return found.hexdigest() if swarm.step == step else ""


def take_part(plan: Plan, config: RunConfig, swarm: Swarm, model: Any, journal: Journal) -> None:
    """Download the run's state and train, as the worker does."""
    ended = end_of_input(swarm.interrupt)
    threading.Thread(target=_watch, args=(swarm, DownloadWatch(journal, model)), daemon=True).start()

    def answer(message: CheckpointWanted | KeeperSought | Notice) -> None:
        if isinstance(message, CheckpointWanted):
            taking.hear(CheckpointFetched(0, ""))  # no checkpoint: load a donor's state

    taking = StateTaking(swarm, model, answer, ended, random.Random(), time.monotonic)
    if not taking.run():
        return
    key = Credentials(Path(plan.credentials_dir)).device_key.receipt_key(config.run.name)
    journal.say("ready", step=swarm.step, pseudonym=key.pseudonym)

    def note(message: Progress | StepReport | Lost) -> None:
        if isinstance(message, StepReport):
            journal.say("step", samples=message.samples, **facts_of(message, swarm))
            if message.lost:
                journal.say("lost", by_cause=dict(message.lost))
        elif isinstance(message, Lost):
            journal.say("lost", by_cause=dict(message.by_cause))
        else:
            journal.say("progress", step=message.step, swarm_samples=message.swarm_samples, peers=message.peers)

    backend = PacedBackend(config, model, journal, plan)
    train(backend, RepeatedBatches(config), swarm, note, ended.is_set, time.monotonic)
    swarm.leave()


def _watch(swarm: Swarm, downloads: DownloadWatch) -> None:
    while True:
        downloads.look(swarm.state.is_downloading)
        time.sleep(WATCH_S)


if __name__ == "__main__":
    run_to_end(main)
