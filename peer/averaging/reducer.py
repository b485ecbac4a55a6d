"""A peer's work as a reducer in one round: it averages its share of the values, for all senders.

A sender names its weight and the digests of all its parts, and then sends the parts. Each part is
averaged once all senders have sent it (`peer.reduction.combine`). The sender receives the average
itself, encoded in the same bytes for all, and after the last average this peer's attestation
(`peer.reduction.attestation`). A sender without samples names the weight 0, closes the sending side
of its stream, and still receives every average. Used by `peer.averaging.all_reduce`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import torch
from hivemind.averaging.partition import AllreduceException, BannedException
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import aiter_with_timeout, amap_in_executor

from peer.network.traffic import Traffic
from peer.reduction.attestation import AttestedSender, Attesting, SignedAttestation, digest_of, split_digests
from peer.reduction.audit import Evidence
from peer.reduction.combine import PartReducer, ReducedPart, RefusedPart
from peer.reduction.compression import decode, is_finite
from peer.reduction.guard import RoundGuard
from peer.reduction.screening import require_weight

logger = logging.getLogger(__name__)
Answer = tuple[runtime_pb2.Tensor, float]  # a part's encoded average and its total weight
Messages = AsyncIterator[averaging_pb2.AveragingData]
Read = TypeVar("Read")
THREAD_VALUES = 2**16  # fewer values are decoded in less time than a change of threads takes
ATTESTED = 32  # message code for attestations; higher than any code of hivemind


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RoundTerms:
    """The terms on which a peer takes part in one round, as a sender and as a reducer."""

    peers: Sequence[str]  # peer IDs of the group, in order
    weight: float  # this peer's samples
    compression: CompressionBase  # of parts and averages
    sender_timeout: float  # seconds to wait for a sender's next part
    reducer_timeout: float  # seconds for a reducer's next average, and to read it; longer, as reducers wait for senders
    traffic: Traffic
    may_contribute: Callable[[str], Awaitable[bool]]
    guard: RoundGuard
    unawaited: Collection[str]  # senders that were silent in recent rounds
    attesting: Attesting


@dataclass(eq=False, repr=False)
class Reducer:
    """This peer as a reducer in one round; a peer without a share has no parts to reduce."""

    terms: RoundTerms
    own: int  # this peer's index in the group
    parts: Sequence[tuple[torch.Tensor, CompressionInfo]]  # with this peer's own values

    def __post_init__(self) -> None:
        """Begin the round, without the senders that were banned in its first half."""
        self.peers = self.terms.peers
        not_awaited = [index for index, peer in enumerate(self.peers) if peer in self.terms.unawaited]
        shapes = [part.shape for part, _ in self.parts]
        self._buffer = PartReducer(shapes, len(self.peers), self.terms.guard.combine, not_awaited)
        loop = asyncio.get_running_loop()
        self._answers: list[asyncio.Future[Answer]] = [loop.create_future() for _ in shapes]
        self._attestation: asyncio.Future[SignedAttestation] = loop.create_future()
        self._inputs: dict[int, list[bytes]] = {}  # sender -> digests of its parts
        self._weights: dict[int, float] = {}  # sender -> weight in this peer's reduction
        self._opened = {self.own}  # senders that have opened a stream
        self._all_opened = asyncio.Event()
        self._has_ended = False
        self.banned: set[str] = set()
        self.received_bytes = 0  # bytes received from others for reduction
        for index, peer in enumerate(self.peers):
            if peer in self.terms.guard.refused:
                self._ban(index)

    @property
    def silent(self) -> set[str]:
        """The awaited senders that stopped early; empty if this peer reduced nothing.

        A sender without samples is not included once its stream is open, as no peer waits for it.
        """
        weightless = {self.peers[index] for index in self._buffer.weightless}
        return self.banned.difference(self.terms.unawaited, weightless, self.terms.guard.refused)

    @property
    def late(self) -> set[str]:
        """The awaited senders whose parts were missing when the round ended early."""
        return {self.peers[index] for index in self._buffer.late}.difference(self.terms.unawaited)

    @property
    def weights_by_peer(self) -> dict[str, float]:
        """The senders' declared weights in this peer's reduction; may be empty."""
        left = {index: weight for index, weight in self._weights.items() if index not in self._buffer.banned}
        return {self.peers[index]: weight for index, weight in left.items() if self.peers[index] not in self.banned}

    @property
    def counted_by_peer(self) -> dict[str, float]:
        """The senders' weights, each limited to the sender's credible samples."""
        return {peer: self.terms.guard.credited(self.peers.index(peer)) for peer in self.weights_by_peer}

    async def reduce_own(self, part_index: int, part: torch.Tensor) -> Answer:
        """Reduce one of this peer's own parts together with the other senders' parts."""
        self._weights[self.own] = self.terms.weight
        weight = self.terms.guard.believed(self.own, self.terms.weight)
        reduced = await self._buffer.accumulate_part(self.own, part_index, part, weight=weight)
        return self._answer(part_index, reduced)

    async def attest(self, evidence: Evidence) -> None:
        """Sign this peer's attestation for the senders, and store it among the evidence; all parts are averaged."""
        self._attestation.set_result(await asyncio.to_thread(self._attest, evidence))

    def _attest(self, evidence: Evidence) -> SignedAttestation:
        lines = []
        for index in range(len(self.peers)):
            inputs = evidence.inputs(index) if index == self.own else self._inputs.get(index, [])
            counted = (weights.get(index, 0.0) for weights in self._buffer.counted)
            lines.append(AttestedSender.of_parts(self._weights.get(index, 0.0), inputs, counted))
        attestation = evidence.attestation(lines)
        signed = SignedAttestation.sign(self.terms.attesting.key, attestation)
        evidence.take(self.own, signed, attestation)
        return signed

    async def ban_missing_senders(self) -> None:
        """Ban senders that sent nothing before the time limit, or before all parts were averaged."""
        events = self._all_opened, self._buffer.finished
        waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, timeout=self.terms.sender_timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        for sender in set(range(len(self.peers))) - self._opened:
            self._ban(sender)

    def end(self) -> None:
        """End the round, also for senders that are still waiting for averages."""
        self._has_ended = True
        self._buffer.finalize()
        for answer in self._answers:
            answer.cancel()
        if not self._attestation.done():
            self._attestation.set_exception(AllreduceException("the round has failed here"))
            self._attestation.exception()  # avoids asyncio's warning about an exception never retrieved

    async def answer(self, caller: str, messages: Messages) -> AsyncGenerator[averaging_pb2.AveragingData, None]:
        """Answer one sender, and disconnect it if it does not read within a reducer's time limit.

        An open stream would keep the round in memory.
        """
        loop, handler = asyncio.get_running_loop(), asyncio.current_task()
        assert handler is not None
        if self._has_ended or caller not in self.peers:
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        async with aclosing(self._answers_to(self.peers.index(caller), messages)) as answers:
            async for answer in answers:
                limit = loop.call_later(self.terms.reducer_timeout, handler.cancel)
                try:
                    yield answer
                finally:
                    limit.cancel()

    async def _answers_to(self, sender: int, messages: Messages) -> AsyncGenerator[averaging_pb2.AveragingData, None]:
        """Receive a sender's digests and parts; yield each part's average, then the attestation.

        Any failure bans the sender, also if it closes its stream before it has received everything.
        """
        self._opened.add(sender)
        if len(self._opened) == len(self.peers):
            self._all_opened.set()
        returned = 0
        try:
            received = self.terms.traffic.receiving(aiter_with_timeout(messages, self.terms.sender_timeout))
            await self._take_digests(sender, await anext(received))
            averages = self._reduce_parts if self._weights[sender] else self._await_averages
            async with aclosing(averages(sender, received)) as answers:
                async for wire, weight in answers:
                    returned += 1
                    yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=wire, weight=weight)
                    if returned == self._buffer.num_parts:
                        signed = await asyncio.shield(self._attestation)  # shielded, because other senders await it too
                        wire = runtime_pb2.Tensor(buffer=signed.content)
                        yield averaging_pb2.AveragingData(code=ATTESTED, tensor_part=wire)
            if returned < self._buffer.num_parts:
                self._ban(sender)
        except BaseException as error:
            if isinstance(error, RefusedPart):
                self.terms.guard.refuse(sender, str(error))
            if isinstance(error, RefusedPart) or returned < self._buffer.num_parts:  # otherwise, it may leave
                self._ban(sender)
            if not isinstance(error, Exception):  # cancelled, or closed
                raise
            logger.debug("the stream of %s failed: %r", self.peers[sender], error, exc_info=True)
            yield averaging_pb2.AveragingData(code=averaging_pb2.INTERNAL_ERROR)

    def _ban(self, sender: int) -> None:
        if self.peers[sender] not in self.banned:
            self.banned.add(self.peers[sender])
            self._buffer.on_sender_failed(sender)

    def _answer(self, part_index: int, reduced: ReducedPart) -> Answer:
        """Return a part's encoded average, which is the same for all senders."""
        answer = self._answers[part_index]
        if not answer.done():
            wire = self.terms.compression.compress(reduced.average, self.parts[part_index][1], allow_inplace=False)
            answer.set_result((wire, reduced.weight))
        return answer.result()

    async def _reduce_parts(self, sender: int, messages: Messages) -> AsyncGenerator[Answer, None]:
        """Reduce a sender's parts together with the other senders' parts; yield each average."""
        part_index = 0
        values = sum(part.numel() for part, _ in self.parts)
        async with aclosing(read_each(_received_part, messages, values)) as parts:
            async for part, weight, digest, size in parts:
                self._check_part(part_index, part)
                await self._check_weight(sender, weight)
                if self._inputs[sender][part_index] != digest:
                    raise RefusedPart(f"sent part {part_index} with another digest than it had named before")
                believed = self.terms.guard.believed(sender, weight)
                self.received_bytes += size
                try:
                    reduced = await self._buffer.accumulate_part(sender, part_index, part, weight=believed)
                except BannedException:
                    return
                yield self._answer(part_index, reduced)
                part_index += 1

    async def _await_averages(self, sender: int, messages: Messages) -> AsyncGenerator[Answer, None]:
        """Yield the averages of the other senders' parts to a sender without weight.

        An unawaited sender receives all averages even if it opens its stream late.
        """
        self._buffer.on_sender_weightless(sender)
        async for _ in messages:
            raise RefusedPart("named no weight, and sent a part all the same")
        for answer in self._answers:
            known = await asyncio.shield(answer)
            if self.peers[sender] in self.banned:
                return
            yield known

    async def _take_digests(self, sender: int, message: averaging_pb2.AveragingData) -> None:
        """Store the digests of a sender's parts. Raises `RefusedPart` if their number is wrong."""
        if message.code != averaging_pb2.PART_FOR_AVERAGING:
            raise AllreduceException(f"the first message has the code {message.code}")
        if sender in self._inputs:
            raise RefusedPart("named the digests of its parts twice")
        self._inputs[sender] = []  # a second stream could start during the await below
        if message.peer_id != self.terms.attesting.round.layout:  # a field that hivemind leaves unused
            raise AllreduceException("the group's leader has told this sender another order")
        await self._check_weight(sender, message.weight)
        try:
            digests = split_digests(message.tensor_part.buffer)
        except ValueError as error:
            raise RefusedPart(f"named no digests of its parts: {error}") from error
        if len(digests) != (self._buffer.num_parts if message.weight else 0):
            raise RefusedPart(f"named the digests of {len(digests)} parts, which were not asked for")
        self._inputs[sender], self._weights[sender] = digests, message.weight

    async def _check_weight(self, sender: int, weight: float) -> None:
        """Raise `RefusedPart` if the weight is implausible or the sender's role permits none."""
        before = self._weights.get(sender)
        if weight != 0 and not before and not await self.terms.may_contribute(self.peers[sender]):
            raise RefusedPart(f"may not contribute, and sent parts with weight {weight:g}")
        require_weight(weight, before)

    def _check_part(self, part_index: int, part: torch.Tensor) -> None:
        """Raise `RefusedPart` for an unexpected shape, which torch would broadcast silently."""
        shapes = self._buffer.part_shapes
        if part_index >= len(shapes) or part.shape != shapes[part_index] or part.dtype != torch.float32:
            raise RefusedPart(f"sent part {part_index} ({part.dtype}, {tuple(part.shape)}), which was not asked for")


async def decoded(messages: AsyncIterator[bytes]) -> Messages:
    """Decode the messages of a stream. Raises `DecodeError` for a malformed one."""
    async for message in messages:
        yield averaging_pb2.AveragingData.FromString(message)


async def read_each(
    read: Callable[[averaging_pb2.AveragingData], Read], messages: Messages, values: int
) -> AsyncGenerator[Read, None]:
    """Yield `read(message)` of each message; if they carry many `values` in all, read one ahead, in a thread."""
    if values < THREAD_VALUES:
        async for message in messages:
            is_as_small = len(message.tensor_part.buffer) < 4 * THREAD_VALUES
            yield read(message) if is_as_small else await asyncio.to_thread(read, message)
    else:
        async with aclosing(amap_in_executor(read, messages)) as results:
            async for result in results:
                yield result


def _received_part(message: averaging_pb2.AveragingData) -> tuple[torch.Tensor, float, bytes, int]:
    """Return a part, its weight, digest and size in bytes. Raises `RefusedPart` if invalid."""
    wire = message.tensor_part
    try:
        part = decode(wire)
    except ValueError as error:
        raise RefusedPart(f"sent what is no part: {error}") from error
    if not is_finite(part):
        raise RefusedPart("sent values that are not finite")
    return part, message.weight, digest_of(wire), len(wire.buffer)
