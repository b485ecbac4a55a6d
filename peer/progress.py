"""How far the swarm is towards its next global step: every peer's signed record in the DHT, and what follows from them.

hivemind's tracker begins a step at an *estimated* time and believes the highest step that anybody claims. This one
begins a step only when the samples have really been reported, and takes a step as the swarm's when the keeper or most
trainers have reached it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from hivemind.dht import DHT
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.node import DHTNode
from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, ProgressTracker
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time
from hivemind.utils.timed_storage import ValueWithExpiration
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from auth.swarm_auth import RecordKey, SwarmAccess, checked_token, peers_key
from auth.tokens import AccessToken
from peer.sketch import SKETCH_SIZE, Sketch, drifted

MAX_STEP = 2**40
MAX_RATE = 1e7  # samples per second
GREETING_PERIOD_S = 5.0


class PeerRecord(BaseModel):
    """One peer's record as it lies in the DHT; untrusted until validated."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    token: Annotated[str, Field(max_length=4096)]
    step: Annotated[int, Field(ge=0, le=MAX_STEP)]  # global steps completed
    samples: Annotated[int, Field(ge=0, le=2**31)]  # accumulated towards the next
    rate: Annotated[float, Field(ge=0, le=MAX_RATE, allow_inf_nan=False)]  # samples per second
    time: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    training: bool  # takes part in averaging: has begun to accumulate, or is the keeper or an auxiliary peer
    client_mode: bool
    sketch: Annotated[tuple[FiniteFloat, ...], Field(max_length=SKETCH_SIZE, strict=False)] = ()


@dataclass(frozen=True)
class KnownPeer:
    """A validated record and whose it is, as its token says."""

    peer_id: str
    role: str
    record: PeerRecord


@dataclass(frozen=True)
class SwarmView:
    """The swarm as one peer sees it in the records of a moment."""

    step: int  # the swarm's: what the keeper or most trainers have completed
    samples: int  # accumulated towards the next step by the peers at `step`
    trainers: int  # training peers, whatever their step
    averaging: int  # peers at `step` that will take part in the next averaging, keeper and auxiliary peers included
    rate: float  # samples per second of all trainers
    keepers: int
    keeper_sketch: Sketch  # the keeper's at `step`; empty if it is elsewhere
    arriving: int = 0  # peers one step behind: they have averaged it, and most likely are about to take it


def view_swarm(peers: Iterable[KnownPeer]) -> SwarmView:
    """What the records say; the loudest claim does not win (DESIGN: nobody's word sets the run's course)."""
    active = [peer for peer in peers if peer.record.training]
    trainers = [peer.record for peer in active if peer.role == "trainer"]
    assistants = [peer.record for peer in active if peer.role == "auxiliary"]
    keepers = [peer.record for peer in active if peer.role == "keeper"]
    step = max([record.step for record in keepers], default=0)
    claims = sorted((record.step for record in trainers), reverse=True)
    if claims:
        step = max(step, claims[len(claims) // 2])  # more than half of the trainers have reached it
    current = [record for record in trainers if record.step == step]
    keeper = next((record for record in keepers if record.step == step), None)
    return SwarmView(
        step=step,
        samples=sum(record.samples for record in current),
        trainers=len(trainers),
        averaging=len(current) + sum(record.step == step for record in [*keepers, *assistants]),
        rate=sum(record.rate for record in trainers),
        keepers=len(keepers),
        keeper_sketch=() if keeper is None else keeper.sketch,
        arriving=sum(peer.record.step == step - 1 for peer in active),
    )


def read_records(records: Any, check: Callable[[str], AccessToken | None]) -> list[KnownPeer]:
    """Validate each record of the DHT's dictionary alone; a bad one is dropped and spoils no other."""
    known = []
    for entry in records.values() if isinstance(records, dict) else ():
        if not isinstance(entry, ValueWithExpiration) or not isinstance(entry.value, dict):
            continue
        try:
            record = PeerRecord.model_validate(entry.value)
        except ValidationError:
            continue
        token = check(record.token)
        if token is not None:
            known.append(KnownPeer(token.peer_id, token.role, record))
    return known


async def _greet(_dht: DHT, node: DHTNode, peer_ids: tuple[PeerID, ...]) -> None:
    """Ping these peers, which makes them add this one to their routing tables; runs in the DHT's process."""
    await asyncio.gather(*(node.protocol.call_ping(peer_id) for peer_id in peer_ids))


class StepTracker(ProgressTracker):
    """hivemind's tracker over our records; see the module's docstring."""

    def __init__(
        self,
        dht: DHT,
        *,
        access: SwarmAccess,
        key: RecordKey,
        role: str,
        keeper_ids: Iterable[PeerID] = (),
        **kwargs: Any,
    ) -> None:
        self.local_progress: LocalTrainingProgress
        self._access = access
        self._role = role
        self._training = role == "keeper"
        self._sketch: tuple[int, Sketch] = (-1, ())
        self._keeper_ids = tuple(keeper_ids)
        self._greeted_at = float("-inf")
        self._keeper_seen_at = get_dht_time() if self._keeper_ids else float("-inf")  # it let this peer join
        self.view = SwarmView(0, 0, 0, 0, 0.0, 0, ())
        super().__init__(dht, private_key=key, start=False, **kwargs)
        self.training_progress_key = peers_key(access.run)
        self._owner = RSASignatureValidator(key).local_public_key
        self.heartbeat_s = self.metadata_expiration / 4

    @property
    def ready_to_update_epoch(self) -> bool:
        """Whether the samples that were really reported fill the global batch of this peer's next step."""
        progress = self.global_progress
        return progress.epoch == self.local_progress.epoch and progress.samples_accumulated >= self.target_batch_size

    @property
    def swarm_step(self) -> int:
        """The swarm's step as far as this peer knows."""
        return int(self.global_progress.epoch)

    @property
    def keeper_may_be_late(self) -> bool:
        """Whether the keeper was there a short while ago: its record, or the look at it, may only be delayed."""
        return get_dht_time() - self._keeper_seen_at < self.metadata_expiration

    def set_sketch(self, step: int, sketch: Sketch) -> None:
        """The sketch of this peer's parameters after `step`; goes out with the reports of that step."""
        self._sketch = (step, sketch)

    def carry_over(self, samples: int) -> None:
        """This many samples are towards the step that just began, computed before it; call while updates are paused."""
        self.local_progress = self._get_local_progress(self.local_progress.epoch, samples)
        self.should_report_progress.set()

    @property
    def has_drifted(self) -> bool:
        """Whether the keeper's parameters after this very step are clearly others than this peer's."""
        step, sketch = self._sketch
        return self._role != "keeper" and step == self.view.step and drifted(sketch, self.view.keeper_sketch)

    def begin_training(self) -> None:
        """From now on the others wait for this peer when they average."""
        self._training = True

    def publish(self, timeout_s: float = 10.0) -> bool:
        """Store this peer's record now; true if any node took it."""
        now = get_dht_time()
        return bool(
            self.dht.store(
                key=self.training_progress_key,
                subkey=self._owner,
                value=self._record(now).model_dump(),
                expiration_time=now + self.metadata_expiration,
                return_future=True,
            ).result(timeout_s)
        )

    def _record(self, now: float) -> PeerRecord:
        progress = self.local_progress
        return PeerRecord(
            token=self._access.credentials.token_jwt,
            step=progress.epoch,
            samples=progress.samples_accumulated,
            rate=min(float(progress.samples_per_second), MAX_RATE),
            time=now,
            training=self._training,
            client_mode=self.client_mode,
            sketch=self._sketch[1] if self._sketch[0] == progress.epoch else (),
        )

    async def _progress_reporter(self) -> None:
        """Publish the record whenever progress is reported, and as a heartbeat."""
        loop = asyncio.get_running_loop()
        while not self.shutdown_triggered.is_set():
            await loop.run_in_executor(None, self.should_report_progress.wait, self.heartbeat_s)
            self.should_report_progress.clear()
            if self.shutdown_triggered.is_set():
                break
            await loop.run_in_executor(None, self._publish_quietly)

    def _publish_quietly(self) -> None:
        try:
            self.publish()
            self._greet_lost_keeper()
        except Exception:  # noqa: BLE001 - a fault boundary: the next heartbeat tries again
            time.sleep(min(1.0, self.heartbeat_s))

    def _greet_lost_keeper(self) -> None:
        """A keeper that was restarted knows nobody: let it know this peer, as at joining."""
        if self._keeper_ids and self.view.keepers == 0 and get_dht_time() > self._greeted_at + GREETING_PERIOD_S:
            self._greeted_at = get_dht_time()
            self.dht.run_coroutine(partial(_greet, peer_ids=self._keeper_ids), return_future=True)

    def _parse_swarm_progress_data(self, metadata: Any) -> GlobalTrainingProgress:
        """Turn the records (a dictionary of values with expirations) into hivemind's form; keeps the view beside it."""
        now = get_dht_time()
        own = self.local_progress
        self.view = view = view_swarm(self._with_own(read_records(metadata, self._check)))
        if view.keepers:
            self._keeper_seen_at = now
        samples = view.samples
        remaining_s = max(0, self.target_batch_size - samples) / view.rate if view.rate > 0 else float("inf")
        return GlobalTrainingProgress(
            epoch=max(view.step, own.epoch) if view.trainers == 0 else view.step,
            samples_accumulated=samples,
            target_batch_size=self.target_batch_size,
            num_peers=view.averaging,
            num_clients=0,
            eta_next_epoch=now + remaining_s,
            next_fetch_time=now + min(self.max_refresh_period, max(self.min_refresh_period, remaining_s / 4)),
        )

    def _with_own(self, peers: list[KnownPeer]) -> list[KnownPeer]:
        """The records with this peer's own as it is now, not as it was last published."""
        own_id = self.dht.peer_id.to_base58()
        others = [peer for peer in peers if peer.peer_id != own_id]
        return [*others, KnownPeer(own_id, self._role, self._record(get_dht_time()))] if self._training else others

    def _check(self, jwt: str) -> AccessToken | None:
        return checked_token(self._access.credentials, jwt, self._access.clock())

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop tracking and tell the others not to wait for this peer."""
        for event in self.shutdown_triggered, self.should_report_progress, self.global_state_updated:
            event.set()
        if self.is_alive():
            self.shutdown_complete.wait(timeout)
        self._training = False
        self._publish_quietly()
