"""Butterfly all-reduce, with identical results on all members and an error for any missing part.

Each reducer averages its share of the values (`peer.averaging.reducer`) and returns the average
itself, so all members including the reducer use the same bits. A round with a missing part fails.
Attestations bind senders to their parts and reducers to their averages
(`peer.reduction.attestation`). Used by `peer.averaging.exchange`.

hivemind's `TensorPartContainer` divides the tensors into parts, and its `AveragingData` carries them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import torch
from hivemind.averaging.partition import AllreduceException, TensorPartContainer
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import aiter_with_timeout

from peer.averaging.reducer import ATTESTED, Messages, Reducer, RoundTerms, decoded, read_each
from peer.reduction.attestation import AttestedWeight, SignedAttestation, attested_weights
from peer.reduction.audit import Drawn, Evidence
from peer.reduction.compression import decode, is_finite
from peer.reduction.findings import Finding
from peer.reduction.guard import norm_of, too_large
from peer.reduction.undercounting import Accounts
from peer.reporting.event_log import MOST_PEERS, PartsOfPeer, PartsPassed
from peer.transport.transport import Transport

logger = logging.getLogger(__name__)


class FalseAverage(AllreduceException):
    """Raised for an average that no honest reducer returns."""


@dataclass(kw_only=True, eq=False, repr=False)
class ExactAllReduce:
    """One round of butterfly all-reduce, in which all members receive identical averages."""

    terms: RoundTerms
    transport: Transport
    service: str  # name of the streams on which `peer.averaging.reduction_service` is served
    tensors: Sequence[torch.Tensor]
    shares: Sequence[float]  # fraction of the values that each peer reduces; 0: none
    part_size_bytes: int
    note: Callable[[Finding], None]
    limits: Sequence[float]  # norm limit of each tensor
    accused: Collection[str]  # reducers that are accused already

    def __post_init__(self) -> None:
        """Divide the tensors into parts, and prepare this peer's own reduction."""
        self.peers = self.terms.peers
        own = self._own = self.peers.index(self.transport.peer_id)
        self._container = TensorPartContainer(
            self.tensors, self.shares, compression=self.terms.compression, part_size_bytes=self.part_size_bytes
        )
        parts = [list(of_peer) for of_peer in self._container._input_parts_by_peer]
        self._due = [[(part.shape, info.key) for part, info in of_peer] for of_peer in parts]  # of each reducer
        self.terms.guard.set_up(self.peers, self.tensors, parts[own], self.terms.weight)
        self.reducer = Reducer(self.terms, own, parts[own])
        due, rng = list(map(len, self._due)), random.SystemRandom()
        self.evidence = Evidence(self.terms.attesting.round, parts=due, own=own, weight=self.terms.weight, rng=rng)
        self.missed: set[str] = set()  # reducers that did not return all averages
        self.least_weight = float("inf")  # smallest total weight of any average
        self._returned = [0] * len(self.peers)  # averages returned by each reducer
        self._sizes: dict[str, float] = {}  # reducer -> its largest average in multiples of the limit

    @property
    def missing_values(self) -> int:
        """The number of values whose averages did not arrive."""
        return int(self._container.failed_size)

    @property
    def other_reducers(self) -> set[str]:
        """The other peers that reduce a part."""
        return {peer for peer, due in zip(self.peers, self._due, strict=True) if due} - {self.peers[self._own]}

    @property
    def accounts(self) -> Accounts:
        """The attestations of all reducers that have finished, including this peer."""
        held = list(self.evidence.attestations.items())  # a copy, because a thread may add this peer's attestation
        opened = {self.peers[reducer]: attestation for reducer, (_, attestation) in held}
        return Accounts(opened, self.peers, self.terms.attesting.members, self.terms.attesting.trusted)

    @property
    def attested_by_peer(self) -> dict[str, AttestedWeight]:
        """Each sender's attested weight; reducers that cut most members' weights are ignored."""
        accounts = self.accounts
        left_out = accounts.cutting_most()
        heard = [attestation for reducer, attestation in accounts.attestations.items() if reducer not in left_out]
        return attested_weights(heard, accounts.senders)

    def passed(self, is_whole: bool) -> PartsPassed:
        """Return an event that reports the parts exchanged with each peer."""
        named, counted = self.reducer.weights_by_peer, self.reducer.counted_by_peer
        parts = tuple(
            PartsOfPeer(
                peer=peer,
                returned=self._returned[index],
                due=len(self._due[index]),
                weight=named.get(peer),
                counted=counted.get(peer),
                is_banned=peer in self.reducer.banned,
            )
            for index, peer in enumerate(self.peers[:MOST_PEERS])
        )
        return PartsPassed(group=self.terms.attesting.round.group_id.hex(), is_whole=is_whole, parts=parts)

    async def run(self) -> list[torch.Tensor]:
        """Exchange parts and averages with all reducers; return the averages, with zeros for missing values."""
        tasks = [asyncio.create_task(self._average_at(reducer)) for reducer, due in enumerate(self._due) if due]
        if self._due[self._own]:
            tasks.append(asyncio.create_task(self.reducer.ban_missing_senders()))
        try:
            return [average async for average in self._container.iterate_output_tensors()]
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        finally:
            self._container.finalize()
            self.reducer.end()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    logger.debug("a reducer returned no averages: %r", ended)

    async def _average_at(self, reducer: int) -> None:
        """Have a reducer, or this peer itself, average its share; without its averages, the values are missing."""
        try:
            await (self._reduce_own_parts() if reducer == self._own else self._exchange(reducer))
        except BaseException as error:  # also on cancellation: callers must not keep waiting for this reducer
            if reducer == self._own:
                self.reducer.end()
            elif not isinstance(error, FalseAverage):
                self.missed.add(self.peers[reducer])
            if not self._container.finished.is_set():
                self._container.register_failed_reducer(reducer)
            raise

    async def _reduce_own_parts(self) -> None:
        parts = self._container.get_raw_input_parts(self._own)
        for part_index, part in enumerate(parts):
            self.evidence.keep_own(part)
            wire, weight = await self.reducer.reduce_own(part_index, part)
            average = decode(wire)  # the same rounding as in the other members' copies
            self._keep(Drawn(self._own, part_index), wire, average, weight)
            if part_index == len(parts) - 1:
                await self.reducer.attest(self.evidence)
            self._container.register_processed_part(self._own, part_index, average)
            await asyncio.sleep(0)  # lets the streams run; with a single sender, nothing else here awaits

    def _keep(self, drawn: Drawn, wire: runtime_pb2.Tensor, average: torch.Tensor, weight: float) -> None:
        """Record a returned average: its weight, its digest, and its size for a comparison at the end of the round."""
        reducer, (_, tensor) = self.peers[drawn.reducer], self._due[drawn.reducer][drawn.part]
        self._sizes[reducer] = max(self._sizes.get(reducer, 0.0), norm_of(average) / self.limits[tensor])
        self.evidence.keep_returned(drawn, wire, average, weight)
        self._returned[drawn.reducer] += 1
        self.least_weight = min(self.least_weight, weight)

    async def _exchange(self, reducer: int) -> None:
        """Send this peer's parts to another reducer, and receive the averages."""
        requests = _encoded(self.terms.traffic.sending(self._committed_parts(reducer)))
        async with aclosing(self.transport.stream(self.peers[reducer], self.service, requests)) as responses:
            answers = self.terms.traffic.receiving(decoded(aiter_with_timeout(responses, self.terms.reducer_timeout)))
            read = partial(self._averaged_part, self.peers[reducer])
            values = sum(shape.numel() for shape, _ in self._due[reducer])
            async with aclosing(read_each(read, answers, values)) as averages:
                await self._take(reducer, averages)

    async def _committed_parts(self, reducer: int) -> Messages:
        """Yield digests of a reducer's parts, then the parts; both are empty without samples."""
        parts, digests = list[runtime_pb2.Tensor](), list[bytes]()
        if self.terms.weight:
            parts = [part async for part in self._container.iterate_input_parts_for(reducer)]
            digests = await asyncio.to_thread(self.evidence.commit, reducer, parts, self.terms.weight)
        yield averaging_pb2.AveragingData(
            code=averaging_pb2.PART_FOR_AVERAGING,
            group_id=self.terms.attesting.round.group_id,
            peer_id=self.terms.attesting.round.layout,  # in a field that hivemind leaves unused
            tensor_part=runtime_pb2.Tensor(buffer=b"".join(digests)),
            weight=self.terms.weight,
        )
        for part in parts:
            yield averaging_pb2.AveragingData(tensor_part=part, weight=self.terms.weight)

    async def _take(
        self, reducer: int, averages: AsyncIterator[tuple[torch.Tensor | None, averaging_pb2.AveragingData]]
    ) -> None:
        """Store a reducer's averages once its attestation has confirmed them."""
        peer, due, taken = self.peers[reducer], self._due[reducer], list[torch.Tensor]()
        async for average, message in averages:
            if average is None and len(taken) == len(due):
                self._take_attestation(reducer, message.tensor_part.buffer)
                for part_index, attested in enumerate(taken):
                    self._container.register_processed_part(reducer, part_index, attested)
                return  # although the reducer may not end the stream
            if average is None or len(taken) >= len(due) or average.shape != due[len(taken)][0]:
                raise AllreduceException(f"{peer} returned parts that were not asked for")
            self._keep(Drawn(reducer, len(taken)), message.tensor_part, average, message.weight)
            taken.append(average)
        raise AllreduceException(f"{peer} returned {len(taken)} of {len(due)} parts, and no attestation")

    def _take_attestation(self, reducer: int, content: bytes) -> None:
        """Store an attestation; if it is false, report its reducer and raise `FalseAverage`.

        Raises `AllreduceException` instead if the leader gave the reducer another step or order.
        """
        peer = self.peers[reducer]
        key = self.terms.attesting.key_of(peer)
        if key is None:
            raise AllreduceException(f"{peer} holds no valid token any more")
        signed, attested = SignedAttestation(content), self.terms.attesting.round
        try:
            opened = signed.opened(key)
            if opened.round.group_id != attested.group_id:
                raise ValueError("it is of another group")
            if opened.round != attested:
                raise AllreduceException(f"{peer} was led to another step, or in another order")
            if len(opened.senders) != len(self.peers):
                raise ValueError(f"it names {len(opened.senders)} senders")
            self.evidence.take(reducer, signed, opened)
        except ValueError as error:
            self.note(Finding(peer, "average", f"attested its averages falsely: {error}"))
            raise FalseAverage(f"{peer} attested its averages falsely: {error}") from error

    def _averaged_part(
        self, peer: str, message: averaging_pb2.AveragingData
    ) -> tuple[torch.Tensor | None, averaging_pb2.AveragingData]:
        """Return the average in a reducer's message (None for an attestation), and the message itself.

        Raises `FalseAverage` if the average is not finite, `AllreduceException` for other messages.
        """
        if message.code == ATTESTED:
            return None, message
        if message.code != averaging_pb2.AVERAGED_PART:
            raise AllreduceException(f"{peer} answered {averaging_pb2.MessageCode.Name(message.code)}")
        average = decode(message.tensor_part)
        if not (is_finite(average) and math.isfinite(message.weight)):
            self.note(Finding(peer, "average", "returned an average that is not finite"))
            raise FalseAverage(f"{peer} returned an average that is not finite")
        return average, message

    def require_plausible(self, own: Sequence[torch.Tensor]) -> None:
        """Report a reducer, once, and raise `FalseAverage` if its averages are far too large.

        `own`: this peer's own gradient, a reference because all peers' gradients grow together.
        """
        if max(self._sizes.values(), default=0.0) <= 1:
            return
        own_size = 0.0
        if self.terms.weight > 0:
            own_size = max(norm_of(tensor) / limit for tensor, limit in zip(own, self.limits, strict=True))
        for reducer, times in too_large(self._sizes, own_size, trusted=self.peers[self._own]).items():
            if reducer not in self.accused:
                detail = f"returned an average {times:.2g} times as large as could be beside others of its round"
                self.note(Finding(reducer, "average", detail))
                raise FalseAverage(f"{reducer} {detail}")


async def _encoded(messages: Messages) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message.SerializeToString()


async def take_averages(round_: ExactAllReduce, tensors: Sequence[torch.Tensor]) -> None:
    """Run the round and store its averages. Raises `AllreduceException` if one is invalid.

    An average without samples is invalid. An error leaves the tensors unchanged, for a retry.
    """
    averages = await round_.run()
    if round_.missing_values:
        raise AllreduceException(f"{round_.missing_values} values came back unaveraged")
    if not (math.isfinite(round_.least_weight) and all(map(is_finite, averages))):
        raise AllreduceException("the average is not finite")
    if round_.least_weight <= 0:
        raise AllreduceException("nobody's samples are in an average")
    round_.require_plausible(tensors)
    for tensor, average in zip(tensors, averages, strict=True):
        tensor.copy_(average)
