"""Exchange of audit evidence within a group, in the background after a round.

Each peer sends the digests of its attestations to the round's auditors, and then the evidence that
an auditor requests (evaluated by `peer.reduction.audit`). An audit never delays a step, and a
missing answer causes no failure. Audits run in the node.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing

from google.protobuf.message import DecodeError, Message
from hivemind.averaging.allreduce import AllreduceException
from hivemind.proto import runtime_pb2

from auth.swarm.authorizer import TRAINING_ROLES
from auth.swarm.directory import PeerDirectory
from peer.network.traffic import Traffic
from peer.protocol.audit_pb2 import Input, Question, Statement
from peer.reduction.attestation import AttestedRound, split_digests
from peer.reduction.audit import MOST_DIFFERING, Audit, Drawn
from peer.reduction.findings import Finding
from peer.transport.transport import Transport, TransportError

logger = logging.getLogger(__name__)
AUDIT_S = 30.0  # duration after which an audit ends and its evidence is dropped
PAUSE_S = 0.3, 1.0  # wait before each talk, drawn at random: the average is usually confirmed meanwhile
MOST_AUDITS = 4  # maximum number of concurrent audits, for example of two rounds of two halves


class AuditedRound:
    """A round in which this peer takes part; other peers may finish it earlier."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Audit] = asyncio.get_running_loop().create_future()
        self.complete = asyncio.Event()  # set when the audit has all evidence

    async def audit(self) -> Audit | None:
        """Wait for this peer's averages; return the audit, or None on failure or timeout."""
        await asyncio.wait([self.ended], timeout=AUDIT_S)
        return self.ended.result() if self.ended.done() and not self.ended.cancelled() else None


class Auditing:
    """The audits of this process, for running and recently completed rounds."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        directory: PeerDirectory,
        traffic: Traffic,
        note: Callable[[Finding], None],
        rng: random.Random,
    ) -> None:
        """Set up audits over streams of this name; `note` receives what they find."""
        self._transport, self._name, self._directory = transport, name, directory
        self._traffic, self._on_finding, self._rng = traffic, note, rng
        self._rounds: dict[bytes, AuditedRound] = {}
        self._position, self._used = (-1, -1), set[bytes]()  # (era, step), and the group IDs used at that step
        self._running: list[asyncio.Task[None]] = []

    async def serve(self) -> None:
        """Let the peers of a group compare their averages with this peer's."""
        await self._transport.serve(self._name, self._answer)

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

    def begin(self, group_id: bytes, audit: Audit, auditors: Sequence[str]) -> None:
        """Start a background audit with these auditors; keep at most `MOST_AUDITS` running."""
        self._rounds[group_id].ended.set_result(audit)
        self._running = [task for task in self._running if not task.done()]
        for task in self._running[: -MOST_AUDITS + 1]:
            task.cancel()
        self._running.append(asyncio.create_task(self._run(group_id, audit, auditors)))

    async def _answer(self, caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Answer a member's statement with a question, and process the evidence that it then sends."""
        if not await self._directory.admits(caller, TRAINING_ROLES):
            return
        request = await asyncio.wait_for(anext(requests, b""), AUDIT_S)
        await self._received(request)
        yield (await self._hear(Statement.FromString(request), caller)).SerializeToString()
        shown = await asyncio.wait_for(anext(requests, b""), AUDIT_S)
        if shown:
            await self._received(shown)
            await self._see(Input.FromString(shown), caller)

    async def _hear(self, statement: Statement, remote: str) -> Question:
        """Process another peer's statement; return the evidence to request from it."""
        heard = self._rounds.get(statement.group_id)
        audit = None if heard is None else await heard.audit()
        if heard is None or audit is None:
            return Question()
        wanted = audit.hear(remote, statement.digests)
        self._note(heard, audit)
        if wanted is None:
            return Question()
        if wanted.drawn is None:
            return Question(attestations=wanted.attestations)
        reducer, part = wanted.drawn.reducer, wanted.drawn.part
        return Question(wanted=True, reducer=reducer, part=part, attestations=wanted.attestations)

    async def _see(self, shown: Input, remote: str) -> None:
        """Process the evidence sent by another peer."""
        seen = self._rounds.get(shown.group_id)
        audit = None if seen is None else await seen.audit()
        if seen is None or audit is None:
            return
        try:
            wire, digests = runtime_pb2.Tensor.FromString(shown.tensor), split_digests(shown.digests)
            audit.show(remote, wire, digests, shown.attestations)
        except (ValueError, DecodeError) as error:
            logger.debug("%s showed nothing that can be read: %s", remote, error)
        self._note(seen, audit)

    def _note(self, audited: AuditedRound, audit: Audit) -> None:
        if audit.is_complete:
            audited.complete.set()

    async def _run(self, group_id: bytes, audit: Audit, auditors: Sequence[str]) -> None:
        talks = [self._talk(group_id, audit, peer) for peer in auditors if peer != audit.own]
        listening = [self._rounds[group_id].complete.wait()] if audit.own in auditors else []
        tasks = [asyncio.create_task(each) for each in (*talks, *listening)]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=AUDIT_S)
        finally:
            for task in tasks:
                task.cancel()
            del self._rounds[group_id]
            for finding in audit.findings():
                self._on_finding(finding)

    async def _talk(self, group_id: bytes, audit: Audit, peer: str) -> None:
        """After a pause, send this peer's statement to another peer, then the evidence requested by that peer."""
        await asyncio.sleep(self._rng.uniform(*PAUSE_S))
        asked: asyncio.Future[Question] = asyncio.get_running_loop().create_future()

        async def messages() -> AsyncIterator[bytes]:
            yield await self._sent(Statement(group_id=group_id, digests=audit.evidence.digests))
            shown = _evidence_for(await asked, group_id, audit)
            if shown is not None:
                yield await self._sent(shown)

        try:
            async with aclosing(self._transport.stream(peer, self._name, messages())) as responses:
                async for response in responses:
                    question = Question.FromString(response)
                    if not asked.done():
                        asked.set_result(question)
        except (TransportError, DecodeError, ValueError) as error:
            logger.debug("%s did not take part in an audit: %s", peer, error)

    async def _sent(self, message: Message) -> bytes:
        content: bytes = message.SerializeToString()
        await asyncio.sleep(self._traffic.up.reserve(len(content)))
        return content

    async def _received(self, content: bytes) -> None:
        await asyncio.sleep(self._traffic.down.reserve(len(content)))


def _evidence_for(question: Question, group_id: bytes, audit: Audit) -> Input | None:
    evidence = audit.evidence
    kept = evidence.sent(Drawn(question.reducer, question.part)) if question.wanted else None
    held = [evidence.attestations[number][0] for number in question.attestations if number in evidence.attestations]
    if kept is None and not held:
        return None
    shown = Input(group_id=group_id, attestations=[signed.content for signed in held[:MOST_DIFFERING]])
    if kept is not None:
        shown.tensor, shown.digests = kept[0].SerializeToString(), b"".join(kept[1])
    return shown
