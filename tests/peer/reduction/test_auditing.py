"""Peers that look after each other's reduction, talking over a network in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException

from peer.network.traffic import Traffic
from peer.protocol.audit_pb2 import Input, Question, Statement
from peer.reduction.attestation import Attestation, AttestedRound, AttestedSender, SignedAttestation, digest_of
from peer.reduction.audit import MOST_AUDITORS, Audit, Drawn, Evidence, auditors_of
from peer.reduction.auditing import AUDIT_S, MOST_AUDITS, PAUSE_S, Auditing
from peer.reduction.compression import encode
from peer.reduction.findings import Finding
from peer.transport.lines import Line
from peer.transport.memory import MemoryNetwork
from peer.transport.transport import TransportError
from tests.support.receipts import key_of
from tests.support.virtual_tests import played_by

PEERS = ["ada", "bob", "carol", "dave"]
REDUCER = 2
GROUP = b"group"
ROUND = AttestedRound("run", 0, 7, GROUP, bytes(32))
LENGTH = 100
LINE = Line(up=1e7, down=1e7, latency_s=0.02)


class Talker:
    """One peer after a round of three values' worth of nothing but ones, in which one other reduced one part."""

    def __init__(self, network: MemoryNetwork, own: int, average: float = 1.0) -> None:
        self.peer, self.found = PEERS[own], list[Finding]()
        self.traffic = Traffic()
        transport = network.join(self.peer, LINE)
        directory: Any = SimpleNamespace(admits=self.admits)
        self.auditing = Auditing(transport, "audit", directory, self.traffic, self.found.append, random.Random(own))
        self.strangers = set[str]()
        self.evidence = Evidence(ROUND, parts=(0, 0, 1, 0), own=own, weight=4.0, rng=random.Random(0))
        self.evidence.commit(REDUCER, [encode(torch.ones(LENGTH), 0)], 4.0)
        returned = torch.full((LENGTH,), average)
        wire = encode(returned, 0)
        self.evidence.keep_returned(Drawn(REDUCER, 0), wire, returned, 16.0)
        line = AttestedSender.of_parts(4.0, self.evidence.inputs(REDUCER), [4.0])
        attestation = Attestation.of_round(ROUND, [digest_of(wire)], [line] * 4)
        self.evidence.take(REDUCER, SignedAttestation.sign(key_of("ada"), attestation), attestation)
        self.audit = Audit(PEERS, self.peer, self.evidence, key_of=lambda _peer: key_of("ada").public_key)

    async def admits(self, peer: str, _roles: object) -> bool:
        """Whether this peer takes the other for a member."""
        return peer not in self.strangers

    async def ask(self, peer: str, *messages: bytes) -> list[Question]:
        """What another peer answers to these messages."""

        async def said() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        stream = self.auditing._transport.stream(peer, "audit", said())
        return [Question.FromString(answer) async for answer in stream]


async def talkers_on(network: MemoryNetwork, *averages: float) -> list[Talker]:
    """A peer for each average that the reducer returned to it."""
    talkers = [Talker(network, own, average) for own, average in enumerate(averages)]
    for talker in talkers:
        await talker.auditing.serve()
    return talkers


async def talk(talkers: list[Talker], second_reducers: list[str]) -> None:
    """All of them have ended their round, one after another, and say what they have to say."""
    for talker in talkers:
        talker.auditing.expect(ROUND)
    for talker in talkers:
        talker.auditing.begin(GROUP, talker.audit, second_reducers)
        await asyncio.sleep(0)
    await asyncio.gather(*(task for talker in talkers for task in talker.auditing._running))


@played_by
async def in_memory(test: Callable[[MemoryNetwork], Awaitable[None]]) -> None:
    """Run a test over a network in memory, in virtual time."""
    await test(MemoryNetwork(random.Random(0)))


@in_memory
async def test_honest_peers_find_nothing(network: MemoryNetwork) -> None:
    """Everything that was kept is given up, and each has sent one part to each second reducer."""
    talkers = await talkers_on(network, 1.0, 1.0, 1.0, 1.0)
    await talk(talkers, PEERS)
    assert [talker.found for talker in talkers] == [[]] * 4
    assert not any(talker.auditing._rounds for talker in talkers)
    part_bytes = 4 * LENGTH
    for talker in talkers[:2]:
        assert 2 * part_bytes < talker.traffic.passed()[0] < 4 * part_bytes


@in_memory
async def test_an_audit_leaves_the_lines_to_the_step_at_first(network: MemoryNetwork) -> None:
    """Nobody says anything for a moment, in which the average is usually confirmed."""
    talkers = await talkers_on(network, 1.0, 1.0, 1.0, 1.0)
    talking = asyncio.create_task(talk(talkers, PEERS))
    await asyncio.sleep(0.99 * PAUSE_S[0])
    assert [talker.traffic.passed() for talker in talkers] == [(0, 0)] * 4
    await talking


@in_memory
async def test_every_second_reducer_finds_a_false_average(network: MemoryNetwork) -> None:
    """Whoever takes connections; who does not cannot."""
    talkers = await talkers_on(network, -1.0, -1.0, -1.0, -1.0)
    await talk(talkers, [PEERS[0], PEERS[1], PEERS[REDUCER]])
    assert [[found.peer_id for found in talker.found] for talker in talkers] == [
        [PEERS[REDUCER]],
        [PEERS[REDUCER]],
        [],
        [],
    ]


@in_memory
async def test_who_was_given_another_attestation_than_the_others_finds_it_out(network: MemoryNetwork) -> None:
    """As do the others: each shows what the reducer has signed for it."""
    talkers = await talkers_on(network, 2.0, 1.0, 1.0, 1.0)
    await talk(talkers, PEERS)
    for talker in talkers[:2]:
        details = [found.detail for found in talker.found]
        assert any("different accounts" in detail for detail in details)
        assert {found.peer_id for found in talker.found} == {PEERS[REDUCER]}


@in_memory
async def test_who_shows_other_bytes_is_named(network: MemoryNetwork) -> None:
    """By every second reducer, which finds nothing of the one that reduced."""
    talkers = await talkers_on(network, 1.0, 1.0, 1.0, 1.0)
    talkers[1].evidence._sent[REDUCER] = [encode(torch.zeros(LENGTH), 0)]
    await talk(talkers, PEERS)
    for talker in (talkers[0], talkers[3]):
        assert [(found.peer_id, found.kind) for found in talker.found] == [(PEERS[1], "shown")]


@in_memory
async def test_a_groups_id_is_used_once_at_a_step(network: MemoryNetwork) -> None:
    """Else what a reducer has signed of one round could be shown as if it were of the other."""
    auditing = Talker(network, 0).auditing
    auditing.expect(ROUND)
    auditing._rounds.clear()
    with pytest.raises(AllreduceException, match="used its ID before"):
        auditing.expect(ROUND)
    assert not auditing._rounds
    auditing.expect(replace(ROUND, group_id=GROUP + b".images"))
    auditing.expect(replace(ROUND, step=8))


@in_memory
async def test_who_does_not_answer_fails_nothing(network: MemoryNetwork) -> None:
    """The audit ends without a result when its time is over."""
    talkers = await talkers_on(network, -1.0, -1.0, -1.0)
    network.silence(PEERS[0])
    await talk(talkers, PEERS[:3])
    assert not any(talker.found for talker in talkers)
    assert not any(talker.auditing._rounds for talker in talkers)


@in_memory
async def test_of_a_round_that_came_to_nothing_nothing_is_heard(network: MemoryNetwork) -> None:
    """Nor of one that nobody knows, nor from a stranger."""
    asked, asking = await talkers_on(network, 1.0, 1.0)
    statement, shown = Statement(group_id=GROUP).SerializeToString(), Input(group_id=GROUP, tensor=b"no tensor")
    asked.auditing.expect(ROUND)
    waiting = asyncio.create_task(asking.ask(asked.peer, statement, shown.SerializeToString()))
    await asyncio.sleep(AUDIT_S / 2)
    asked.auditing.give_up(GROUP)
    assert await waiting == [Question()]
    assert await asking.ask(asked.peer, statement) == [Question()]
    asked.strangers.add(asking.peer)
    assert await asking.ask(asked.peer, statement) == []


@in_memory
async def test_what_cannot_be_read_harms_nobody(network: MemoryNetwork) -> None:
    """The one who sent it learns that it failed."""
    asked, asking = await talkers_on(network, 1.0, 1.0)
    asked.auditing.expect(ROUND)
    asked.auditing._rounds[GROUP].ended.set_result(asked.audit)
    with pytest.raises(TransportError):
        await asking.ask(asked.peer, b"\xff no statement")
    statement, shown = Statement(group_id=GROUP), Input(group_id=GROUP, tensor=b"\xff no tensor")
    answers = await asking.ask(asked.peer, statement.SerializeToString(), shown.SerializeToString())
    assert len(answers) == 1
    assert not asked.found


@in_memory
async def test_a_round_that_does_not_end_here_is_waited_for_no_longer_than_an_audit_lasts(
    network: MemoryNetwork,
) -> None:
    """Then there is nothing to ask for."""
    asked, asking = await talkers_on(network, 1.0, 1.0)
    asked.auditing.expect(ROUND)
    began = asyncio.get_running_loop().time()
    assert await asking.ask(asked.peer, Statement(group_id=GROUP).SerializeToString()) == [Question()]
    assert asyncio.get_running_loop().time() - began == pytest.approx(AUDIT_S, rel=0.1)


@in_memory
async def test_few_audits_hold_what_was_sent(network: MemoryNetwork) -> None:
    """The oldest ends when further rounds do, lest a silent peer fill this one's memory."""
    talker, silent = await talkers_on(network, 1.0, 1.0)
    network.silence(silent.peer)
    for number in range(MOST_AUDITS + 2):
        talker.auditing.expect(replace(ROUND, group_id=bytes([number])))
        talker.auditing.begin(bytes([number]), talker.audit, [silent.peer])
        await asyncio.sleep(1)
    assert len(talker.auditing._rounds) == MOST_AUDITS
    for task in talker.auditing._running:
        task.cancel()


def test_few_peers_audit_a_round_and_all_of_the_group_know_which() -> None:
    """Others audit the next round, one device of each member; the keeper audits every round."""
    members = {f"peer-{number}": str(number // 2) for number in range(40)}
    rounds = [auditors_of([*members, "k"], bytes([number]), members, {"k"}) for number in range(40)]
    assert {(each[0], len(each), len(set(map(members.get, each)))) for each in rounds} == {("k", 9, 1 + MOST_AUDITORS)}
    assert set().union(*rounds) == {*members, "k"}
    assert auditors_of(["k", *list(members)[::-1]], bytes([7]), members, {"k"}) == rounds[7]
