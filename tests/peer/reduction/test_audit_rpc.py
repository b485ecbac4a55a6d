"""Peers that look after each other's reduction, talking without a network."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from peer.network.traffic import Traffic
from peer.protocol.audit_pb2 import Input, Statement
from peer.reduction.attestation import Attestation, AttestedRound, AttestedSender, SignedAttestation, digest_of
from peer.reduction.audit import Audit, Drawn, Evidence
from peer.reduction.audit_rpc import MOST_AUDITS, Auditing
from peer.reduction.compression import encode
from peer.reduction.findings import Finding
from tests.support.receipts import key_of
from tests.support.waiting import PATIENCE_S

PEERS = [PeerID(b"\x12\x20" + bytes([number]) * 32) for number in range(4)]
REDUCER = 2
GROUP = b"group"
ROUND = AttestedRound("run", 0, 7, GROUP, bytes(32))
LENGTH = 100


class Talker:
    """One peer after a round of three values' worth of nothing but ones, in which one other reduced one part."""

    def __init__(self, own: int, average: float = 1.0, patience_s: float = PATIENCE_S) -> None:
        self.peer, self.found = PEERS[own], list[Finding]()
        self.traffic = Traffic()
        self.auditing = Auditing(self.traffic, self.found.append, patience_s)
        self.evidence = Evidence(ROUND, parts=(0, 0, 1, 0), own=own, weight=4.0, rng=random.Random(0))
        self.evidence.commit(REDUCER, [encode(torch.ones(LENGTH), 0)], 4.0)
        returned = torch.full((LENGTH,), average)
        wire = encode(returned, 0)
        self.evidence.keep_returned(Drawn(REDUCER, 0), wire, returned, 16.0)
        line = AttestedSender.of_parts(4.0, self.evidence.inputs(REDUCER), [4.0])
        attestation = Attestation.of_round(ROUND, [digest_of(wire)], [line] * 4)
        self.evidence.take(REDUCER, SignedAttestation.sign(key_of("ada"), attestation), attestation)
        self.audit = Audit(PEERS, self.peer, self.evidence, key_of=lambda _peer: key_of("ada").public_key)

    async def rpc_compare_averages(self, request: Statement, timeout: float) -> Any:
        return await asyncio.wait_for(self.auditing.hear(request, self.caller), timeout)

    async def rpc_show_input(self, request: Input, timeout: float) -> Any:
        return await asyncio.wait_for(self.auditing.see(request, self.caller), timeout)

    def called_by(self, caller: PeerID) -> Talker:
        """The same as this caller's stub of it."""
        stub = object.__new__(Talker)
        stub.__dict__.update(self.__dict__)
        stub.caller = caller
        return stub


async def talk(talkers: list[Talker], second_reducers: list[PeerID]) -> None:
    """All of them have ended their round, one after another, and say what they have to say."""
    by_peer = {talker.peer: talker for talker in talkers}
    for talker in talkers:
        talker.auditing.expect(ROUND)
    for talker in talkers:
        peer = talker.peer
        talker.auditing.begin(
            GROUP, talker.audit, second_reducers, lambda other, peer=peer: by_peer[other].called_by(peer)
        )
        await asyncio.sleep(0)
    await asyncio.gather(*(task for talker in talkers for task in talker.auditing._running))


async def test_honest_peers_find_nothing() -> None:
    """Everything that was kept is given up, and each has sent one part to each second reducer."""
    talkers = [Talker(own) for own in range(4)]
    await talk(talkers, PEERS)
    assert [talker.found for talker in talkers] == [[]] * 4
    assert not any(talker.auditing._rounds for talker in talkers)
    part_bytes = 4 * LENGTH
    for talker in talkers[:2]:
        assert 2 * part_bytes < talker.traffic.passed()[0] < 4 * part_bytes


async def test_every_second_reducer_finds_a_false_average() -> None:
    """Whoever takes connections; who does not cannot."""
    talkers = [Talker(own, average=-1.0) for own in range(4)]
    await talk(talkers, [PEERS[0], PEERS[1], PEERS[REDUCER]])
    assert [[found.peer_id for found in talker.found] for talker in talkers] == [
        [PEERS[REDUCER].to_base58()],
        [PEERS[REDUCER].to_base58()],
        [],
        [],
    ]


async def test_who_was_given_another_attestation_than_the_others_finds_it_out() -> None:
    """As do the others: each shows what the reducer has signed for it."""
    talkers = [Talker(own, average=2.0 if own == 0 else 1.0) for own in range(4)]
    await talk(talkers, PEERS)
    for talker in talkers[:2]:
        details = [found.detail for found in talker.found]
        assert any("different accounts" in detail for detail in details)
        assert {found.peer_id for found in talker.found} == {PEERS[REDUCER].to_base58()}


async def test_who_shows_other_bytes_is_named() -> None:
    """By every second reducer, which finds nothing of the one that reduced."""
    talkers = [Talker(own) for own in range(4)]
    talkers[1].evidence._sent[REDUCER] = [encode(torch.zeros(LENGTH), 0)]
    await talk(talkers, PEERS)
    for talker in (talkers[0], talkers[3]):
        assert [(found.peer_id, found.kind) for found in talker.found] == [(PEERS[1].to_base58(), "shown")]


async def test_a_groups_id_is_used_once_at_a_step() -> None:
    """Else what a reducer has signed of one round could be shown as if it were of the other."""
    auditing = Auditing(Traffic(), lambda _finding: None)

    auditing.expect(ROUND)
    auditing._rounds.clear()
    with pytest.raises(AllreduceException, match="used its ID before"):
        auditing.expect(ROUND)
    assert not auditing._rounds
    auditing.expect(replace(ROUND, group_id=GROUP + b".images"))
    auditing.expect(replace(ROUND, step=8))


async def test_who_does_not_answer_fails_nothing() -> None:
    """The audit ends without a result when its time is over."""
    talkers = [Talker(own, average=-1.0, patience_s=0.2) for own in range(3)]
    await talk(talkers, PEERS[:3])
    assert not any(talker.found for talker in talkers)
    assert not any(talker.auditing._rounds for talker in talkers)


async def test_of_a_round_that_came_to_nothing_nothing_is_heard() -> None:
    """Nor of one that nobody knows."""
    talker, statement = Talker(0), Statement(group_id=GROUP)
    talker.auditing.expect(ROUND)
    waiting = asyncio.ensure_future(talker.auditing.hear(statement, PEERS[1]))
    await asyncio.sleep(0.01)
    talker.auditing.give_up(GROUP)
    assert not (await waiting).wanted
    assert not (await talker.auditing.hear(statement, PEERS[1])).wanted
    await talker.auditing.see(Input(group_id=GROUP, tensor=b"no tensor"), PEERS[1])


async def test_a_round_that_does_not_end_here_is_waited_for_no_longer_than_an_audit_lasts() -> None:
    """Neither another's statement nor its input waits on: what came first gives up first."""
    talker = Talker(0, patience_s=0.05)
    talker.auditing.expect(ROUND)
    shown = asyncio.create_task(talker.auditing.see(Input(group_id=GROUP, tensor=b"no tensor"), PEERS[1]))
    await asyncio.sleep(0)
    told = asyncio.create_task(talker.auditing.hear(Statement(group_id=GROUP), PEERS[1]))
    await asyncio.wait({shown, told}, return_when=asyncio.FIRST_COMPLETED)
    assert shown.done()
    assert not (await told).wanted


async def test_few_audits_hold_what_was_sent() -> None:
    """The oldest ends when further rounds do, lest a silent peer fill this one's memory."""
    talker = Talker(0)
    silent = averaging_pb2.AveragingData  # anything without the calls: each talk ends at once
    for number in range(MOST_AUDITS + 2):
        talker.auditing.expect(replace(ROUND, group_id=bytes([number])))
        talker.auditing.begin(bytes([number]), talker.audit, PEERS, lambda _: silent())
        await asyncio.sleep(0.01)
    assert len(talker.auditing._rounds) == MOST_AUDITS
    for task in talker.auditing._running:
        task.cancel()
