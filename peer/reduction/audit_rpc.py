"""Exchange of audit evidence within a group, in the background after a round.

Each peer sends the digests of its attestations to every other peer that accepts connections, and
then the evidence that the other peer requests (evaluated by `peer.reduction.audit`). An audit never
delays a step, and a missing answer causes no failure. Audits run in the averager's process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from hivemind.averaging.allreduce import AllreduceException
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import runtime_pb2

from auth.swarm.authorizer import TRAINING_ROLES
from peer.network.traffic import Traffic
from peer.protocol.audit_pb2 import Input, Question, Received, Statement
from peer.reduction.attestation import AttestedRound, split_digests
from peer.reduction.audit import MOST_DIFFERING, Audit, Drawn
from peer.reduction.findings import Finding

logger = logging.getLogger(__name__)
AUDIT_S = 30.0  # duration after which an audit ends and its evidence is dropped
MOST_AUDITS = 2  # maximum number of concurrent audits, for example of a round's two halves
Stub = Any  # hivemind's stub of another peer's averager


class AuditedRound:
    """A round in which this peer takes part; other peers may finish it earlier."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Audit] = asyncio.get_running_loop().create_future()
        self.complete = asyncio.Event()  # set when the audit has all evidence

    async def audit(self, patience_s: float) -> Audit | None:
        """Wait for this peer's averages; return the audit, or None on failure or timeout."""
        await asyncio.wait([self.ended], timeout=patience_s)
        return self.ended.result() if self.ended.done() and not self.ended.cancelled() else None


class Auditing:
    """The audits of this process, for running and recently completed rounds."""

    def __init__(self, traffic: Traffic, note: Callable[[Finding], None], patience_s: float = AUDIT_S) -> None:
        self._traffic, self._on_finding = traffic, note
        self._patience_s = patience_s
        self._rounds: dict[bytes, AuditedRound] = {}
        self._position, self._used = (-1, -1), set[bytes]()  # (era, step), and the group IDs used at that step
        self._running: list[asyncio.Task[None]] = []

    def expect(self, attested: AttestedRound) -> None:
        """Register a new round.

        Raises `AllreduceException` if the round's ID was already used at this step; otherwise, two
        attestations signed by this peer could be presented as belonging to one round.
        """
        position = attested.era, attested.step
        if position != self._position:
            self._position, self._used = position, set()
        if attested.group_id in self._used:
            raise AllreduceException("the group's leader has used its ID before")
        self._used.add(attested.group_id)
        self._rounds[attested.group_id] = AuditedRound()

    def give_up(self, group_id: bytes) -> None:
        """Drop a round that failed."""
        self._rounds.pop(group_id).ended.cancel()

    def begin(
        self, group_id: bytes, audit: Audit, second_reducers: Sequence[PeerID], stub: Callable[[PeerID], Stub]
    ) -> None:
        """Start a background audit with `second_reducers`; keep at most `MOST_AUDITS` running."""
        self._rounds[group_id].ended.set_result(audit)
        self._running = [task for task in self._running if not task.done()]
        for task in self._running[: -MOST_AUDITS + 1]:
            task.cancel()
        self._running.append(asyncio.create_task(self._run(group_id, audit, second_reducers, stub)))

    async def hear(self, request: Statement, remote: PeerID) -> Question:
        """Process another peer's statement; return the evidence to request from it."""
        await self._received(request.ByteSize())
        heard = self._rounds.get(request.group_id)
        audit = None if heard is None else await heard.audit(self._patience_s)
        if heard is None or audit is None:
            return Question()
        wanted = audit.hear(remote, request.digests)
        self._note(heard, audit)
        if wanted is None:
            return Question()
        if wanted.drawn is None:
            return Question(attestations=wanted.attestations)
        reducer, part = wanted.drawn.reducer, wanted.drawn.part
        return Question(wanted=True, reducer=reducer, part=part, attestations=wanted.attestations)

    async def see(self, request: Input, remote: PeerID) -> None:
        """Process the evidence sent by another peer."""
        await self._received(request.ByteSize())
        seen = self._rounds.get(request.group_id)
        audit = None if seen is None else await seen.audit(self._patience_s)
        if seen is None or audit is None:
            return
        try:
            wire, digests = runtime_pb2.Tensor.FromString(request.tensor), split_digests(request.digests)
            audit.show(remote, wire, digests, request.attestations)
        except (ValueError, DecodeError) as error:
            logger.debug("%s showed nothing that can be read: %s", remote, error)
        self._note(seen, audit)

    def _note(self, audited: AuditedRound, audit: Audit) -> None:
        if audit.is_complete:
            audited.complete.set()

    async def _run(
        self, group_id: bytes, audit: Audit, others: Sequence[PeerID], stub: Callable[[PeerID], Stub]
    ) -> None:
        talks = [self._talk(group_id, audit, stub(peer)) for peer in others if peer != audit.own]
        listening = [self._rounds[group_id].complete.wait()] if audit.own in others else []
        try:
            await asyncio.wait_for(asyncio.gather(*talks, *listening, return_exceptions=True), self._patience_s)
        except asyncio.TimeoutError:
            logger.debug("not all peers of the group answered after the round")
        finally:
            del self._rounds[group_id]
            for finding in audit.findings():
                self._on_finding(finding)

    async def _talk(self, group_id: bytes, audit: Audit, stub: Stub) -> None:
        """Send this peer's statement to another peer, then the evidence requested by that peer."""
        evidence = audit.evidence
        statement = Statement(group_id=group_id, digests=evidence.digests)
        await self._sent(statement.ByteSize())
        question = await stub.rpc_compare_averages(statement, timeout=self._patience_s)
        kept = evidence.sent(Drawn(question.reducer, question.part)) if question.wanted else None
        held = [evidence.attestations[number][0] for number in question.attestations if number in evidence.attestations]
        if kept is not None or held:
            shown = Input(group_id=group_id, attestations=[signed.content for signed in held[:MOST_DIFFERING]])
            if kept is not None:
                shown.tensor, shown.digests = kept[0].SerializeToString(), b"".join(kept[1])
            await self._sent(shown.ByteSize())
            await stub.rpc_show_input(shown, timeout=self._patience_s)

    async def _sent(self, size_bytes: int) -> None:
        await asyncio.sleep(self._traffic.up.reserve(size_bytes))

    async def _received(self, size_bytes: int) -> None:
        await asyncio.sleep(self._traffic.down.reserve(size_bytes))


class AuditedRounds:
    """Mixin with an audit's RPCs; list it after `AuthorizedAverager`, before hivemind's class."""

    auditing: Auditing

    async def rpc_compare_averages(self: Any, request: Statement, context: P2PContext) -> Question:
        """Receive the digests of a peer's attestations."""
        if not await self.directory.admits(context.remote_id, TRAINING_ROLES):
            return Question()
        question: Question = await self.auditing.hear(request, context.remote_id)
        return question

    async def rpc_show_input(self: Any, request: Input, context: P2PContext) -> Received:
        """Receive the evidence requested from a peer."""
        if await self.directory.admits(context.remote_id, TRAINING_ROLES):
            await self.auditing.see(request, context.remote_id)
        return Received()
