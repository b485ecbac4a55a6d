"""The averager of the training state: uploads to members and downloads from donors.

A donor serves few peers at once; the others retry (`Donations`). Each download holds a copy
of the state, and all share the donor's bandwidth. Fifty downloads would exhaust the keeper's memory
and be outdated before completion. An interrupted download cannot be resumed, so the keeper rejects
that device for a while; the device then uses a checkpoint, which is resumable. A peer with an
earlier state downloads only the missed averages (`peer.swarm.average_history`).
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, AsyncIterator, Literal  # noqa: UP035 - hivemind reads the annotations of rpc_ methods and knows only typing's

import torch
from hivemind.compression import RoleAdaptiveCompression, TensorRole
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture, nested_flatten
from hivemind.utils.asyncio import aiter_with_timeout
from hivemind.utils.streaming import combine_from_streaming, split_for_streaming

from auth.errors import SwarmError
from auth.swarm.access import AuthorizedAverager, SwarmAccess
from auth.swarm.authorizer import STATE_READERS
from auth.swarm.directory import while_admitted
from peer.averaging.all_reduce import is_finite
from peer.averaging.gradient_codes import Factors
from peer.averaging.rounds import freeze_imported
from peer.config.training import Compression
from peer.models.optimizers import SharedOptimizer
from peer.network.least_rate import PATIENCE_S, at_least_rate
from peer.network.traffic import Traffic
from peer.protocol.history_pb2 import AverageAfter
from peer.reduction.compression import HALF_BYTES, ROOTS, decode
from peer.reporting.event_log import TAKEN, Downloaded, EventLog
from peer.runtime.processes import name_fork
from peer.swarm.average_history import Average, AverageHistory, Lack, encode_average, whole_average
from peer.swarm.fingerprint import Sketch, sketch_of
from peer.swarm.records import MAX_ERA, MAX_STEP

logger = logging.getLogger(__name__)
AT_ONCE = 4
FOLLOWERS_AT_ONCE = 16  # concurrent downloads of averages, which have a quarter of a state's size and are not copied
OF_ONE_MEMBER = 2  # maximum number of downloads by one member, over all its devices
STALLED_S = 30.0  # time without progress after which a download loses its slot
BROKEN_OFF_S = 120.0  # rejection time after an interrupted download; long enough to write a checkpoint
STATE_OVERHEAD_BYTES = 1 << 20
LOOK_S = 0.5  # interval between checks of a download's progress
HUNG_S = 600.0  # time without progress after which the averager's process is considered hung
QUICK_S, QUICK_DONORS = 1800.0, 3  # time limit in seconds of the first attempts, and their number
STATE_CODE = RoleAdaptiveCompression(optimizer=ROOTS)  # rounds the optimizer moments selected by `moment_roles`
_LACKS = frozenset(lack.value for lack in Lack)
Doubt = Callable[[str, int, Sketch], str | None]  # (donor, step, sketch) -> reason to reject


class SwarmStateAverager(AuthorizedAverager, TrainingStateAverager):
    """The averager that holds the state, uploads it to members and downloads it from donors."""

    def __init__(
        self,
        *args: Any,
        access: SwarmAccess,
        traffic: Traffic,
        interrupted: threading.Event,
        events: EventLog,
        **kwargs: Any,
    ) -> None:
        """Set up the averager; `interrupted` is set when this peer must stop waiting for others."""
        self.access, self._traffic, self._interrupted, self._events = access, traffic, interrupted, events
        self.state_lock = threading.RLock()  # held while a global step changes the state
        self.era = 0  # number of times that the run had returned to a checkpoint before this state
        self.is_downloading = False  # whether this process is waiting for a state or an average
        self._clock = time.monotonic
        writes_checkpoints = "keeper" not in access.donor_roles  # only the keeper writes checkpoints
        self._donations = Donations(self._clock, after_break_s=BROKEN_OFF_S if writes_checkpoints else 0.0)
        self._following = Donations(self._clock, FOLLOWERS_AT_ONCE)
        self._history = AverageHistory()  # used in the forked process
        self._moves = multiprocessing.Value("q", 0)  # progress of a download, counted by the forked process
        self._turned_away = multiprocessing.Value("q", 0)
        super().__init__(*args, state_compression=STATE_CODE, **kwargs)

    def run(self) -> None:
        """Run the forked process, with all imported objects excluded from garbage collection."""
        name_fork("averager of the state")
        freeze_imported()
        super().run()

    @property
    def turned_away(self) -> int:
        """The number of requests for the state that were rejected as busy."""
        return int(self._turned_away.value)

    def get_current_state(self) -> Any:
        """Return a copy of the state, taken between global steps; hivemind shares live tensors."""
        with self.state_lock, torch.no_grad():
            metadata, tensors, infos = super().get_current_state()
            roles = moment_roles(self.optimizer)
            moments = [replace(info, role=role) for info, role in zip(infos[-len(roles) :], roles, strict=True)]
            copies = [tensor.clone() for tensor in tensors]
            return metadata | {"era": self.era}, copies, [*infos[: -len(roles)], *moments]

    def set_step(self, step: int) -> None:
        """Set the number of completed global steps; the learning-rate schedule follows, even backwards."""
        self.local_epoch = step
        self.scheduler._step_count, self.scheduler.last_epoch = step, step - 1
        self.scheduler.step()

    def load_state_from_peers(
        self,
        *,
        minimum_step: int = 0,
        minimum_era: int = 0,
        adopt_era: bool = True,
        doubt: Doubt,
    ) -> bool:
        """Load the first donated state that is recent enough, fits this model and passes `doubt`.

        "Recent enough" means at least `minimum_step` and `minimum_era`. With `adopt_era` this peer
        adopts the state's era; the keeper, which sets eras, does not. Nothing is overwritten before
        all checks pass. Returns False if no donor had such a state, or when this peer is
        interrupted. A download continues while its donor sends at the minimum rate. Raises
        `SwarmError` if the averager's process hangs.
        """
        refused: list[str] = []
        while (found := self._download(refused)) is not None:
            donor, metadata, donated = found
            facts = metadata if isinstance(metadata, dict) else {}
            step, era = facts.get("epoch"), facts.get("era")
            reason = (
                self._misfit(step, minimum_step, donated)
                or _misplaced(era, minimum_era)
                or doubt(donor, int(step or 0), self._sketch(donated))
            )
            self._tell_download("state", donor, step, reason)
            if reason is None:
                self._take(int(step or 0), int(era or 0) if adopt_era else self.era, donated)
                self._outer_pipe.send(("_begin_history", [self.era, self.local_epoch], {}))
                return True
            logger.warning("the state of %s (step %s) %s: not taken", donor, step, reason)
            refused.append(donor)
        self._tell_download("state", "", None, "no donor gave one")
        return False

    def keep_average(
        self, averages: Sequence[torch.Tensor], factors: Mapping[int, Factors], compression: Compression
    ) -> None:
        """Store the averages of the current state's step, for peers that have not taken it yet."""
        encoded = encode_average(averages, factors, compression)
        self._outer_pipe.send(("_keep_average", [self.era, self.local_epoch, encoded], {}))

    def missed_average(self) -> list[torch.Tensor] | Lack:
        """Download the average that leads to the next step; return it, or the reason why there is none.

        Returns at once when interrupted. Raises `SwarmError` if the averager's process hangs.
        """
        found: list[torch.Tensor] | Lack | None = self._ask("_load_average", era=self.era, step=self.local_epoch)
        if found is None:
            return Lack.SILENT
        if isinstance(found, Lack):
            self._tell_download("average", "", self.local_epoch + 1, f"not to be had: {found.value}")
            return found
        average = whole_average(found, [tensor.shape for tensor in self._local_tensors()])
        if average is None:
            logger.warning("the average of a missed step does not fit this peer's model: not taken")
            return Lack.GONE
        self._tell_download("average", "", self.local_epoch + 1, None)
        return average

    def _tell_download(self, what: Literal["state", "average"], donor: str, step: object, fault: str | None) -> None:
        known = step if isinstance(step, int) and step >= 0 else 0
        self._events.add(Downloaded(what=what, donor=donor, step=known, outcome=fault or TAKEN))

    def _download(self, refused: Sequence[str]) -> tuple[str, Any, list[torch.Tensor]] | None:
        found: tuple[str, Any, list[torch.Tensor]] | None = self._ask("_load_state_from_peers", refused=tuple(refused))
        return found

    def _ask(self, method: str, **options: Any) -> Any:
        """Run a download in the averager's process; return its result, or None when interrupted.

        Raises `SwarmError` if that process hangs. After an interrupt, the process ends soon.
        """
        future: MPFuture = MPFuture()
        self._outer_pipe.send((method, [], {"future": future} | options))
        moves, moved_at = -1, self._clock()
        self.is_downloading = True
        try:
            while not self._interrupted.is_set():
                try:
                    return future.result(timeout=LOOK_S)
                except futures.TimeoutError:
                    if self._moves.value != moves:
                        moves, moved_at = self._moves.value, self._clock()
                    elif self._clock() - moved_at > HUNG_S:
                        raise SwarmError("The process that downloads the run's state hangs.") from None
            return None
        finally:
            self.is_downloading = False

    def _state_tensors(self) -> list[torch.Tensor]:
        return [*self._local_tensors(), *optimizer_tensors(self.optimizer)]

    def _misfit(self, step: object, minimum_step: int, donated: Sequence[torch.Tensor]) -> str | None:
        """Return the reason why a state does not fit this peer; None if it fits."""
        if not isinstance(step, int) or isinstance(step, bool) or not minimum_step <= step <= MAX_STEP:
            return f"is none of step {minimum_step} or later"
        own = [tensor.shape for tensor in self._state_tensors()]
        if len(donated) < len(own):
            return f"came with {len(donated)} of {len(own)} tensors"
        return None if [tensor.shape for tensor in donated] == own else "has other tensors than this peer's"

    def _sketch(self, donated: Sequence[torch.Tensor]) -> Sketch:
        parameters = len(list(self._local_tensors()))
        return sketch_of(donated[:parameters], by_parameter(self.optimizer, donated[parameters:]))

    def _take(self, step: int, era: int, donated: Sequence[torch.Tensor]) -> None:
        with self.state_lock, torch.no_grad():
            for tensor, new in zip(self._state_tensors(), donated, strict=True):
                tensor.copy_(new)
            self.era = era
            self.set_step(step)

    async def rpc_download_state(
        self, request: averaging_pb2.DownloadRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """Serve the state to a few peers at once, within the rate limit; reject others as busy."""
        if not await self.directory.admits(context.remote_id, STATE_READERS):
            return
        token = self.directory.token_of(context.remote_id)
        donation = None if token is None else self._donations.begin(token.member, token.device_id)
        if donation is None:
            with self._turned_away.get_lock():
                self._turned_away.value += 1
            yield averaging_pb2.DownloadData(metadata=self.serializer.dumps({"busy": True}))
            return
        is_whole = False
        try:
            async for message in self._traffic.sending_state(super().rpc_download_state(request, context)):
                if not self._donations.goes_on(donation):
                    return
                yield message
            is_whole = True
        finally:  # also runs when a reader disconnects, which closes this generator
            self._donations.end(donation, is_whole=is_whole)

    async def _begin_history(self, era: int, step: int) -> None:
        self._history.begin(era, step)

    async def _keep_average(self, era: int, step: int, average: Average) -> None:
        self._history.keep(era, step, average.copy())

    async def rpc_download_average(
        self, request: AverageAfter, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """Serve the average of the first missed step to a peer that fell behind."""
        if not await self.directory.admits(context.remote_id, STATE_READERS):
            return
        token = self.directory.token_of(context.remote_id)
        donation = None if token is None else self._following.begin(token.member, token.device_id)
        if donation is None:
            yield averaging_pb2.DownloadData(metadata=self.serializer.dumps({"lack": Lack.BUSY.value}))
            return
        try:
            found = self._history.after(request.era, request.step)
            if isinstance(found, Lack):
                yield averaging_pb2.DownloadData(metadata=self.serializer.dumps({"lack": found.value}))
                return
            messages = self._traffic.sending_average(
                _messages_of(found, self.serializer.dumps({"step": request.step + 1}))
            )
            async for message in while_admitted(self.directory, context.remote_id, STATE_READERS, messages):
                if not self._following.goes_on(donation):
                    return
                yield message
        finally:
            self._following.end(donation)

    async def _load_average(self, future: Any, era: int, step: int) -> None:
        """Query the donors in turn; set the future to the tensors of an average, or to a `Lack`."""
        found: list[torch.Tensor] | Lack = Lack.SILENT
        request, most_bytes = AverageAfter(era=era, step=step), self._own_bytes()
        try:
            for donor in await self.directory.with_role(self.access.donor_roles):
                answer = await self._receive(donor, "rpc_download_average", request, most_bytes)
                if answer is None:
                    continue
                facts, tensors = answer
                lacks = facts.get("lack") if isinstance(facts, dict) else None
                found = tensors if lacks is None else Lack(lacks) if lacks in _LACKS else Lack.GONE
                break
        finally:
            if not future.done():
                future.set_result(found)

    async def _load_state_from_peers(self, future: Any, refused: Collection[str] = ()) -> None:
        """Query the donors in turn; set the future to (donor, metadata, tensors), or to None.

        The keeper's donors are trainers, which may be dishonest or take days at the minimum rate.
        They are therefore queried in random order, a few of them first with a short time limit.
        """
        try:
            donors = {donor.to_base58(): donor for donor in await self.directory.with_role(self.access.donor_roles)}
            names = sorted(donors.keys() - {self.peer_id.to_base58(), *refused})
            random.shuffle(names)
            may_lie = len(names) > 1 and "keeper" not in self.access.donor_roles
            quick = names[:QUICK_DONORS] if may_lie else []
            for name, most_s in [*((name, QUICK_S) for name in quick), *((name, None) for name in names)]:
                try:
                    state = await asyncio.wait_for(self._download_from(donors[name]), most_s)
                except asyncio.TimeoutError:
                    logger.warning("the state of %s has not come within %s s", name, most_s)
                    continue
                if state is not None:
                    future.set_result((name, *state))
                    return
        finally:
            if not future.done():
                future.set_result(None)

    def _own_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._averaged_tensors) + STATE_OVERHEAD_BYTES

    async def _download_from(self, donor: PeerID) -> tuple[Any, list[torch.Tensor]] | None:
        """Download one donor's state, with a size limit; None on failure or a busy donor."""
        request = averaging_pb2.DownloadRequest()
        return await self._receive(donor, "rpc_download_state", request, 4 * self._own_bytes())

    async def _receive(
        self, donor: PeerID, call: str, request: Any, limit: int
    ) -> tuple[Any, list[torch.Tensor]] | None:
        """Download a donor's response of at most `limit` bytes; None on failure or a busy donor."""
        metadata, received = None, 0
        parts: list[Any] = []
        tensors: list[torch.Tensor] = []
        self._moves.value += 1
        try:
            stub = self.get_stub(self._p2p, donor, namespace=self.prefix)
            stream = await asyncio.wait_for(getattr(stub, call)(request), PATIENCE_S)
            parts_in_time = aiter_with_timeout(stream, timeout=PATIENCE_S)
            messages = at_least_rate(parts_in_time, averaging_pb2.DownloadData.ByteSize, self._clock)
            async for message in self._traffic.receiving(messages):
                self._moves.value += 1
                received += message.ByteSize()
                if received > limit:
                    raise ValueError(f"what {donor} sends is larger than {limit} bytes")
                if message.metadata:
                    metadata = self.serializer.loads(message.metadata)
                    if isinstance(metadata, dict) and metadata.get("busy") is True:
                        logger.info("%s gives to others now", donor)
                        return None
                if message.tensor_part.dtype and parts:
                    tensors.append(decode(combine_from_streaming(parts), ROOTS, HALF_BYTES))
                    parts = []
                if message.HasField("tensor_part"):
                    parts.append(message.tensor_part)
            if parts:
                tensors.append(decode(combine_from_streaming(parts), ROOTS, HALF_BYTES))
        except Exception as error:  # noqa: BLE001 - fault boundary: after any error the next donor is asked
            logger.warning("%s could not be downloaded from: %r", donor, error)
            return None
        return None if metadata is None or not all(map(is_finite, tensors)) else (metadata, tensors)


async def _messages_of(average: Average, metadata: bytes) -> AsyncIterator[averaging_pb2.DownloadData]:
    yield averaging_pb2.DownloadData(metadata=metadata)
    for tensor in average.tensors():
        for part in split_for_streaming(tensor):
            yield averaging_pb2.DownloadData(tensor_part=part)


def _misplaced(era: object, minimum_era: int) -> str | None:
    if not isinstance(era, int) or isinstance(era, bool) or not minimum_era <= era <= MAX_ERA:
        return f"is none of era {minimum_era} or later"
    return None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the live tensors of the optimizer's state, in hivemind's serialization order."""
    return [value for value in nested_flatten(optimizer.state_dict()) if isinstance(value, torch.Tensor)]


def moments_of(optimizer: torch.optim.Optimizer) -> list[Sequence[torch.Tensor]]:
    """Return the live tensors of the optimizer's state, grouped by parameter."""
    return by_parameter(optimizer, optimizer_tensors(optimizer))


def by_parameter(optimizer: torch.optim.Optimizer, tensors: Sequence[torch.Tensor]) -> list[Sequence[torch.Tensor]]:
    """Group tensors by parameter; the tensors must be in the order of this optimizer's state."""
    ends = list(accumulate(len(state) for state in _states(optimizer)))
    return [tensors[start:end] for start, end in pairwise([0, *ends])]


def moment_roles(optimizer: SharedOptimizer) -> list[TensorRole]:
    """Return each optimizer tensor's role, which selects its encoding in `STATE_CODE`."""
    rounded = [optimizer.rounds(name, state[name]) for state in _states(optimizer) for name in sorted(state)]
    return [TensorRole.OPTIMIZER if each else TensorRole.UNSPECIFIED for each in rounded]


def _states(optimizer: torch.optim.Optimizer) -> list[dict[str, torch.Tensor]]:
    """Return each parameter's state, in the order of the parameter groups."""
    return [state for _, state in sorted(optimizer.state_dict()["state"].items())]


@dataclass(eq=False)
class Donation:
    """One download of the state by a member's device."""

    member: str
    device: str
    moved_at: float  # time at which the last part was read


class Donations:
    """The active downloads from one donor, and the devices with a recently interrupted download."""

    def __init__(self, clock: Callable[[], float], at_once: int = AT_ONCE, after_break_s: float = 0.0) -> None:
        """Set up the slots; reject a device for `after_break_s` after an interrupted download."""
        self._clock, self._at_once, self._after_break_s = clock, at_once, after_break_s
        self._under_way: list[Donation] = []
        self._broken_off: dict[str, float] = {}  # device -> time of the interruption

    def begin(self, member: str, device: str) -> Donation | None:
        """Begin a device's download; return None if no slot is free or the device is rejected."""
        now = self._clock()
        for each in list(self._under_way):
            if now - each.moved_at >= STALLED_S or each.device == device:  # a device has at most one download
                self.end(each, is_whole=False)
        self._broken_off = {who: at for who, at in self._broken_off.items() if now - at < self._after_break_s}
        of_member = sum(each.member == member for each in self._under_way)
        if device in self._broken_off or len(self._under_way) >= self._at_once or of_member >= OF_ONE_MEMBER:
            return None
        donation = Donation(member, device, now)
        self._under_way.append(donation)
        return donation

    def goes_on(self, donation: Donation) -> bool:
        """Record progress of a download; return whether it still has its slot."""
        donation.moved_at = self._clock()
        return donation in self._under_way

    def end(self, donation: Donation, *, is_whole: bool = True) -> None:
        """Release a download's slot if it has one; a partial download counts as interrupted."""
        if donation in self._under_way:
            self._under_way.remove(donation)
            if not is_whole:
                self._broken_off[donation.device] = self._clock()
