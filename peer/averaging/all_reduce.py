"""hivemind's all-reduce, with identical results on all members and an error for any missing part.

hivemind's reducers return compressed *differences* to each sender, so peers end with slightly
different values. If a reducer fails, a peer silently keeps its own part. Here a reducer returns the
average itself, all members including the reducer use the same bits, and a round with a missing part
fails. Attestations bind senders to their parts and reducers to their averages
(`peer.reduction.attestation`). `peer.reduction.combine` combines the parts. Used by
`peer.averaging.averager`.

A peer without samples (the keeper, an auxiliary peer) sends no parts: it opens its stream to a
reducer with weight 0, closes the sending side, and still receives every average.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, AsyncIterator  # noqa: UP035 - hivemind reads the annotations of rpc_ methods and knows only typing's

import torch
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner
from hivemind.averaging.partition import BannedException, TensorPartReducer
from hivemind.compression import CompressionBase
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import aiter_with_timeout, amap_in_executor

from auth.keys import DeviceKey
from peer.network.traffic import Traffic
from peer.reduction.attestation import (
    AttestedRound,
    AttestedSender,
    AttestedWeight,
    SignedAttestation,
    attested_weights,
    digest_of,
    split_digests,
)
from peer.reduction.audit import Drawn, Evidence
from peer.reduction.combine import Combine, PartReducer, ReducedPart, RefusedPart
from peer.reduction.compression import HALF_BYTES, decode, is_finite
from peer.reduction.findings import Finding
from peer.reduction.guard import RoundGuard, norm_of, too_large
from peer.reduction.screening import require_weight
from peer.reduction.top_k import TOP_K
from peer.reduction.undercounting import Accounts
from peer.reporting.event_log import MOST_PEERS, PartsOfPeer, PartsPassed

Answer = tuple[runtime_pb2.Tensor, float]  # a part's encoded average and its total weight
ATTESTED = 32  # message code for attestations; higher than any code of hivemind


@dataclass(frozen=True)
class Attesting:
    """The key and round details for signing and verifying attestations."""

    round: AttestedRound
    key: DeviceKey
    key_of: Callable[[PeerID], bytes | None]  # peer -> public key (OpenSSH) in its token
    members: Mapping[str, str] = field(default_factory=dict)  # peer ID -> member that owns the device
    trusted: frozenset[str] = frozenset()  # peer IDs of keepers


class FalseAverage(AllreduceException):
    """Raised for an average that no honest reducer returns."""


class ExactAllReduce(AllReduceRunner):
    """Butterfly all-reduce in which all members receive identical averages."""

    def __init__(
        self,
        *,
        traffic: Traffic,
        note: Callable[[Finding], None],
        limits: Sequence[float],
        accused: Collection[str],
        may_contribute: Callable[[PeerID], Awaitable[bool]],
        guard: RoundGuard,
        unawaited: Collection[str] = (),
        tensors: Sequence[torch.Tensor],
        attesting: Attesting,
        **kwargs: Any,
    ) -> None:
        """Set up the round; `unawaited`: senders (peer IDs) that were silent in recent rounds.

        For the sparse encoding, `tensors` holds decoded values; averages take half a byte each.
        """
        super().__init__(tensors=tensors, group_id=attesting.round.group_id, **kwargs)
        self._part_code = self.tensor_part_container.compression
        is_sparse = self._part_code is TOP_K
        self._own_code = TOP_K.compression_type if is_sparse else runtime_pb2.CompressionType.NONE
        self._answer_code = HALF_BYTES if is_sparse else self._part_code
        self._unawaited = {peer for peer in self.sender_peer_ids if peer.to_base58() in unawaited}
        indices = [self.sender_peer_ids.index(peer) for peer in self._unawaited]
        self.tensor_part_reducer: PartReducer = _own_reducer(self.tensor_part_reducer, guard.combine, indices)
        self._note, self._guard = note, guard
        self._set_up_guard(tensors)
        self._limits, self._accused = limits, accused  # norm limit of each tensor, and already accused reducers
        self._sizes: dict[str, float] = {}  # reducer (peer ID) -> its largest average in multiples of the limit
        self._attesting = attesting
        self.evidence = Evidence(
            attesting.round,
            parts=self.tensor_part_container.num_parts_by_peer,
            own=self.ordered_peer_ids.index(self.peer_id),
            weight=self.weight,
            rng=random.SystemRandom(),
        )
        self._own_infos = [
            info
            for _, info in self.tensor_part_container._input_parts_by_peer[self.ordered_peer_ids.index(self.peer_id)]
        ]
        loop = asyncio.get_running_loop()
        self._answers: list[asyncio.Future[Answer]] = [loop.create_future() for _ in self._own_infos]  # own averages
        self._inputs: dict[int, list[bytes]] = {}  # sender index -> digests of its parts
        self._attestation: asyncio.Future[SignedAttestation] = loop.create_future()
        self._may_contribute = may_contribute
        self._traffic = traffic
        self._weights: dict[int, float] = {}  # sender index -> weight in this peer's reduction
        self.missed: set[str] = set()  # reducers (peer IDs) that did not return all averages
        self.received_bytes = 0  # bytes received from others for reduction
        self._returned = [0] * len(self.ordered_peer_ids)  # averages returned by each reducer
        self.least_weight = float("inf")  # smallest total weight of any average

    def _set_up_guard(self, tensors: Sequence[torch.Tensor]) -> None:
        own_parts = self.tensor_part_container._input_parts_by_peer[self.ordered_peer_ids.index(self.peer_id)]
        senders = [peer.to_base58() for peer in self.sender_peer_ids]
        self._guard.set_up(senders, tensors, list(own_parts), self.weight)
        for index, peer in enumerate(self.sender_peer_ids):
            if senders[index] in self._guard.refused:  # banned in the first half of this round
                self.banned_senders.add(peer)
                self.tensor_part_reducer.on_sender_failed(index)

    @property
    def missing_values(self) -> int:
        """The number of values whose averages did not arrive."""
        return int(self.tensor_part_container.failed_size)

    @property
    def other_reducers(self) -> set[str]:
        """The other peers (peer IDs) that reduce a part."""
        counts = zip(self.ordered_peer_ids, self.tensor_part_container.num_parts_by_peer, strict=True)
        return {peer.to_base58() for peer, parts in counts if parts and peer != self.peer_id}

    @property
    def silent(self) -> set[str]:
        """The awaited senders (peer IDs) that stopped early; empty if this peer reduced nothing.

        A sender without samples is not included once its stream is open, as no peer waits for it.
        """
        weightless = {self.sender_peer_ids[index] for index in self.tensor_part_reducer.weightless}
        return {peer.to_base58() for peer in self.banned_senders - self._unawaited - weightless} - self._guard.refused

    @property
    def late(self) -> set[str]:
        """The awaited senders (peer IDs) whose parts were missing when the round ended early."""
        late = {self.sender_peer_ids[index] for index in self.tensor_part_reducer.late}
        return {peer.to_base58() for peer in late - self._unawaited}

    def should_delay_results(self, peer_id: PeerID) -> bool:
        """Return False: hivemind would delay results for a client-mode peer until its stream ends."""
        del peer_id
        return False

    @property
    def weights_by_peer(self) -> dict[str, float]:
        """The senders' declared weights in this peer's reduction, by peer ID; may be empty."""
        out = self.tensor_part_reducer.banned
        weights = {self.sender_peer_ids[index]: weight for index, weight in self._weights.items() if index not in out}
        return {peer.to_base58(): weight for peer, weight in weights.items() if peer not in self.banned_senders}

    @property
    def counted_by_peer(self) -> dict[str, float]:
        """The senders' weights, each limited to the sender's credible samples, by peer ID."""
        named = self.weights_by_peer
        counted = {peer.to_base58(): self._guard.credited(index) for index, peer in enumerate(self.sender_peer_ids)}
        return {peer: counted[peer] for peer in named}

    @property
    def accounts(self) -> Accounts:
        """The attestations of all reducers that have finished, including this peer."""
        held = list(self.evidence.attestations.items())  # a copy, because a thread may add this peer's attestation
        return Accounts(
            {self.ordered_peer_ids[reducer].to_base58(): opened for reducer, (_, opened) in held},
            [peer.to_base58() for peer in self.sender_peer_ids],
            self._attesting.members,
            self._attesting.trusted,
        )

    @property
    def attested_by_peer(self) -> dict[str, AttestedWeight]:
        """Each sender's attested weight; reducers that cut most members' weights are ignored."""
        accounts = self.accounts
        left_out = accounts.cutting_most()
        heard = [attestation for reducer, attestation in accounts.attestations.items() if reducer not in left_out]
        return attested_weights(heard, accounts.senders)

    def passed(self, is_whole: bool) -> PartsPassed:
        """Return an event that reports the parts exchanged with each peer."""
        named, counted = self.weights_by_peer, self.counted_by_peer
        due = self.tensor_part_container.num_parts_by_peer
        parts = tuple(
            PartsOfPeer(
                peer=peer.to_base58(),
                returned=self._returned[index],
                due=due[index],
                weight=named.get(peer.to_base58()),
                counted=counted.get(peer.to_base58()),
                is_banned=peer in self.banned_senders,
            )
            for index, peer in enumerate(self.ordered_peer_ids[:MOST_PEERS])
        )
        return PartsPassed(group=self.group_id.hex(), is_whole=is_whole, parts=parts)

    async def _reduce_own_parts(self, peer_index: int) -> None:
        sender_index = self.sender_peer_ids.index(self.peer_id)
        self._weights[sender_index] = self.weight
        weight = self._guard.believed(sender_index, self.weight)
        try:
            for part_index, part in enumerate(self.parts_for_local_averaging):
                self.evidence.keep_own(part, self._own_code)
                reduced = await self.tensor_part_reducer.accumulate_part(sender_index, part_index, part, weight=weight)
                self.least_weight = min(self.least_weight, reduced.weight)
                wire, _ = self._answer(part_index, reduced)
                rounded = decode(wire, self._answer_code)  # the same rounding as in the other members' copies
                self._measure(self.peer_id, self._own_infos[part_index].key, rounded)
                self.evidence.keep_returned(Drawn(peer_index, part_index), wire, rounded, reduced.weight)
                self._returned[peer_index] += 1
                if part_index == len(self.parts_for_local_averaging) - 1:
                    self._attestation.set_result(await asyncio.to_thread(self._attest, peer_index))
                self.tensor_part_container.register_processed_part(peer_index, part_index, rounded)
                await asyncio.sleep(0)  # lets the streams run; with a single sender, nothing else here awaits
        except BaseException:
            self._cancel_pending()
            raise

    def finalize(self, *, cancel: bool = False, exception: BaseException | None = None) -> None:
        """End the round, also for senders that are still waiting for averages."""
        super().finalize(cancel=cancel, exception=exception)
        self._cancel_pending()

    def _cancel_pending(self) -> None:
        for answer in self._answers:
            answer.cancel()
        if not self._attestation.done():
            self._attestation.set_exception(AllreduceException("the round has failed here"))
            self._attestation.exception()  # avoids asyncio's warning about an exception never retrieved

    def _answer(self, part_index: int, reduced: ReducedPart) -> Answer:
        """Return a part's encoded average, which is the same for all senders."""
        answer = self._answers[part_index]
        if not answer.done():
            info = self._own_infos[part_index]
            wire = self._answer_code.compress(reduced.average, info, allow_inplace=False)
            answer.set_result((wire, reduced.weight))
        return answer.result()

    def _attest(self, peer_index: int) -> SignedAttestation:
        """Sign this peer's attestation, and store it with the attestations of other reducers."""
        lines = []
        for index, sender in enumerate(self.sender_peer_ids):
            inputs = self.evidence.inputs(peer_index) if sender == self.peer_id else self._inputs.get(index, [])
            counted = (weights.get(index, 0.0) for weights in self.tensor_part_reducer.counted)
            lines.append(AttestedSender.of_parts(self._weights.get(index, 0.0), inputs, counted))
        attestation = self.evidence.attestation(lines)
        signed = SignedAttestation.sign(self._attesting.key, attestation)
        self.evidence.take(peer_index, signed, attestation)
        return signed

    async def _committed_parts(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Yield digests of a reducer's parts, then the parts; both are empty without samples."""
        weight, digests, held = self.weight, list[bytes](), list[averaging_pb2.AveragingData]()
        if weight:
            held = [message async for message in self._generate_input_for_peer(peer_index)]
            weight = held[0].weight
            parts = [message.tensor_part for message in held]
            digests = await asyncio.to_thread(self.evidence.commit, peer_index, parts, weight)
        yield averaging_pb2.AveragingData(
            code=averaging_pb2.PART_FOR_AVERAGING,
            group_id=self.group_id,
            peer_id=self._attesting.round.layout,
            tensor_part=runtime_pb2.Tensor(buffer=b"".join(digests)),
            weight=weight,
        )
        for message in held:
            yield message

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        """Send this peer's parts to one reducer, and receive the averages."""
        peer_index = self.ordered_peer_ids.index(peer_id)
        if peer_id == self.peer_id:
            await self._reduce_own_parts(peer_index)
            return
        container = self.tensor_part_container
        try:
            sent = self._traffic.sending(self._committed_parts(peer_index))
            stream = await self._get_peer_stub(peer_id).rpc_aggregate_part(sent)
            part_index, expected, is_attested = 0, container.num_parts_by_peer[peer_index], False
            last = torch.empty(0)  # the last average, which is accepted only after the attestation
            answers = aiter_with_timeout(stream, self.reducer_timeout)
            received = self._traffic.receiving(answers)
            read = partial(self._averaged_part, peer_id)
            async for average, message in amap_in_executor(read, received, max_prefetch=container.prefetch):
                if average is None and part_index == expected and not is_attested:
                    self._take_attestation(peer_id, message.tensor_part.buffer)
                    container.register_processed_part(peer_index, expected - 1, last)
                    is_attested = True
                    continue
                asked = container._input_parts_by_peer[peer_index]
                if average is None or part_index >= expected or average.shape != asked[part_index][0].shape:
                    raise AllreduceException(f"{peer_id} returned parts that were not asked for")
                self._measure(peer_id, asked[part_index][1].key, average)
                self.evidence.keep_returned(Drawn(peer_index, part_index), message.tensor_part, average, message.weight)
                if part_index < expected - 1:
                    container.register_processed_part(peer_index, part_index, average)
                last = average
                self._returned[peer_index] += 1
                self.least_weight = min(self.least_weight, message.weight)
                part_index += 1
            if not is_attested:
                raise AllreduceException(f"{peer_id} returned {part_index} of {expected} parts, and no attestation")
        except BaseException as error:  # also on cancellation: callers must not keep waiting for this reducer
            if not isinstance(error, FalseAverage):
                self.missed.add(peer_id.to_base58())  # set before hivemind's container raises at the round's end
            container.register_failed_reducer(peer_index)
            raise

    def _take_attestation(self, reducer: PeerID, content: bytes) -> None:
        """Store an attestation; if it is false, report its reducer and raise `FalseAverage`.

        Raises `AllreduceException` instead if the leader gave the reducer another step or order.
        """
        key = self._attesting.key_of(reducer)
        if key is None:
            raise AllreduceException(f"{reducer} holds no valid token any more")
        signed, attested = SignedAttestation(content), self._attesting.round
        try:
            opened = signed.opened(key)
            if opened.round.group_id != attested.group_id:
                raise ValueError("it is of another group")
            if opened.round != attested:
                raise AllreduceException(f"{reducer} was led to another step, or in another order")
            if len(opened.senders) != len(self.sender_peer_ids):
                raise ValueError(f"it names {len(opened.senders)} senders")
            self.evidence.take(self.ordered_peer_ids.index(reducer), signed, opened)
        except ValueError as error:
            self._note(Finding(reducer.to_base58(), "average", f"attested its averages falsely: {error}"))
            raise FalseAverage(f"{reducer} attested its averages falsely: {error}") from error

    def _averaged_part(
        self, reducer: PeerID, message: averaging_pb2.AveragingData
    ) -> tuple[torch.Tensor | None, averaging_pb2.AveragingData]:
        """Return the average in a message (None for an attestation), and the message itself.

        Raises `FalseAverage` if the average is not finite, `AllreduceException` for other messages.
        """
        if message.code == ATTESTED:
            return None, message
        if message.code != averaging_pb2.AVERAGED_PART:
            raise AllreduceException(f"{reducer} answered {averaging_pb2.MessageCode.Name(message.code)}")
        average = decode(message.tensor_part, self._answer_code)
        if not (is_finite(average) and math.isfinite(message.weight)):
            self._note(Finding(reducer.to_base58(), "average", "returned an average that is not finite"))
            raise FalseAverage(f"{reducer} returned an average that is not finite")
        return average, message

    def _measure(self, reducer: PeerID, tensor: int, average: torch.Tensor) -> None:
        """Record the size of an average, for a comparison at the end of the round."""
        peer_id = reducer.to_base58()
        self._sizes[peer_id] = max(self._sizes.get(peer_id, 0.0), norm_of(average) / self._limits[tensor])

    def require_plausible(self, own: Sequence[torch.Tensor]) -> None:
        """Report a reducer, once, and raise `FalseAverage` if its averages are far too large.

        `own`: this peer's own gradient, a reference because all peers' gradients grow together.
        """
        if max(self._sizes.values(), default=0.0) <= 1:
            return
        own_size = 0.0
        if self.weight > 0:
            own_size = max(norm_of(tensor) / limit for tensor, limit in zip(own, self._limits, strict=True))
        for reducer, times in too_large(self._sizes, own_size, trusted=self.peer_id.to_base58()).items():
            if reducer not in self._accused:
                detail = f"returned an average {times:.2g} times as large as could be beside others of its round"
                self._note(Finding(reducer, "average", detail))
                raise FalseAverage(f"{reducer} {detail}")

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Answer one sender, and disconnect it if it does not read within a reducer's time limit.

        An open stream would keep the round in memory.
        """
        loop, handler = asyncio.get_running_loop(), asyncio.current_task()
        assert handler is not None
        async for answer in super().rpc_aggregate_part(stream, context):
            limit = loop.call_later(self.reducer_timeout or math.inf, handler.cancel)
            try:
                yield answer
            finally:
                limit.cancel()

    async def _accumulate_parts_streaming(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], sender_index: int
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Receive one sender's digests and parts; yield each part's average, then the attestation.

        A sender without weight has no parts, and receives each average as soon as it is available.
        """
        returned = 0
        try:
            messages = self._traffic.receiving(stream)
            await self._take_digests(sender_index, await anext(messages))
            answers = self._reduce_parts if self._weights[sender_index] else self._await_averages
            async for wire, weight in answers(sender_index, messages):
                returned += 1
                yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=wire, weight=weight)
                if returned == self.tensor_part_reducer.num_parts:
                    signed = await asyncio.shield(self._attestation)  # shielded, because other senders await it too
                    yield averaging_pb2.AveragingData(
                        code=ATTESTED, tensor_part=runtime_pb2.Tensor(buffer=signed.content)
                    )
        except RefusedPart as refused:
            self._guard.refuse(sender_index, str(refused))
            raise
        finally:
            if returned != self.tensor_part_reducer.num_parts:
                await self._ban_sender(self.sender_peer_ids[sender_index])

    async def _reduce_parts(
        self, sender_index: int, messages: AsyncIterator[averaging_pb2.AveragingData]
    ) -> AsyncIterator[Answer]:
        """Reduce a sender's parts together with the other senders' parts; yield each average."""
        part_index = 0
        async for part, weight, digest, size in amap_in_executor(
            partial(_received_part, self._part_code), messages, max_prefetch=self.tensor_part_container.prefetch
        ):
            self._check_part(part_index, part)
            await self._check_weight(sender_index, weight)
            if self._inputs[sender_index][part_index] != digest:
                raise RefusedPart(f"sent part {part_index} with another digest than it had named before")
            believed = self._guard.believed(sender_index, weight)
            self.received_bytes += size
            try:
                reduced = await self.tensor_part_reducer.accumulate_part(
                    sender_index, part_index, part, weight=believed
                )
            except BannedException:
                return
            yield self._answer(part_index, reduced)
            part_index += 1

    async def _await_averages(
        self, sender_index: int, messages: AsyncIterator[averaging_pb2.AveragingData]
    ) -> AsyncIterator[Answer]:
        """Yield the averages of the other senders' parts to a sender without weight.

        An unawaited sender receives all averages even if it opens its stream late.
        """
        self.tensor_part_reducer.on_sender_weightless(sender_index)
        async for _ in messages:
            raise RefusedPart("named no weight, and sent a part all the same")
        for answer in self._answers:
            known = await asyncio.shield(answer)
            if self.sender_peer_ids[sender_index] in self.banned_senders:
                return
            yield known

    async def _handle_missing_senders(self) -> None:
        """Ban senders that sent nothing before the time limit, or before all parts were averaged."""
        events = self.all_senders_started, self.tensor_part_reducer.finished
        waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, timeout=self.sender_timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        for peer in set(self.sender_peer_ids) - self.active_senders - self.banned_senders:
            await self._ban_sender(peer)

    async def _take_digests(self, sender_index: int, message: averaging_pb2.AveragingData) -> None:
        """Store the digests of a sender's parts. Raises `RefusedPart` if their number is wrong."""
        if sender_index in self._inputs:
            raise RefusedPart("named the digests of its parts twice")
        self._inputs[sender_index] = []  # a second stream could start during the await below
        if message.peer_id != self._attesting.round.layout:  # a field that hivemind leaves unused
            raise AllreduceException("the group's leader has told this sender another order")
        await self._check_weight(sender_index, message.weight)
        try:
            digests = split_digests(message.tensor_part.buffer)
        except ValueError as error:
            raise RefusedPart(f"named no digests of its parts: {error}") from error
        if len(digests) != (self.tensor_part_reducer.num_parts if message.weight else 0):
            raise RefusedPart(f"named the digests of {len(digests)} parts, which were not asked for")
        self._inputs[sender_index], self._weights[sender_index] = digests, message.weight

    async def _check_weight(self, sender_index: int, weight: float) -> None:
        """Raise `RefusedPart` if the weight is implausible or the sender's role permits none."""
        sender, before = self.sender_peer_ids[sender_index], self._weights.get(sender_index)
        if weight != 0 and not before and not await self._may_contribute(sender):
            raise RefusedPart(f"may not contribute, and sent parts with weight {weight:g}")
        require_weight(weight, before)

    def _check_part(self, part_index: int, part: torch.Tensor) -> None:
        """Raise `RefusedPart` for an unexpected shape, which torch would broadcast silently."""
        shapes = self.tensor_part_reducer.part_shapes
        if part_index >= len(shapes) or part.shape != shapes[part_index] or part.dtype != torch.float32:
            raise RefusedPart(f"sent part {part_index} ({part.dtype}, {tuple(part.shape)}), which was not asked for")


def _own_reducer(hiveminds: TensorPartReducer, combine: Combine, unawaited: Collection[int]) -> PartReducer:
    """Mark hivemind's reducer as finished, to avoid a warning, and return its replacement."""
    hiveminds.finished.set()
    return PartReducer(hiveminds.part_shapes, hiveminds.num_senders, combine, unawaited)


def _received_part(
    code: CompressionBase, message: averaging_pb2.AveragingData
) -> tuple[torch.Tensor, float, bytes, int]:
    """Return a part, its weight, digest and size in bytes. Raises `RefusedPart` if invalid."""
    wire = message.tensor_part
    try:
        part = decode(wire, code)
    except ValueError as error:
        raise RefusedPart(f"sent what is no part: {error}") from error
    if not is_finite(part):
        raise RefusedPart("sent values that are not finite")
    return part, message.weight, digest_of(wire), len(wire.buffer)


async def take_averages(runner: ExactAllReduce, tensors: Sequence[torch.Tensor]) -> None:
    """Run the round and store its averages. Raises `AllreduceException` if one is invalid.

    An average without samples is invalid. An error leaves the tensors unchanged, for a retry.
    """
    averages = [average async for average in runner]
    if runner.missing_values:
        raise AllreduceException(f"{runner.missing_values} values came back unaveraged")
    if not (math.isfinite(runner.least_weight) and all(map(is_finite, averages))):
        raise AllreduceException("the average is not finite")
    if runner.least_weight <= 0:
        raise AllreduceException("nobody's samples are in an average")
    runner.require_plausible(tensors)
    for tensor, average in zip(tensors, averages, strict=True):
        tensor.copy_(average)
