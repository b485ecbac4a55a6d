"""Peers that look after each other's reduction, talking without a network."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import torch
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from peer.network.traffic import Traffic
from peer.protocol.audit_pb2 import Input, Statement
from peer.reduction.audit import Audit, Drawn, Evidence
from peer.reduction.audit_rpc import MOST_AUDITS, Auditing
from peer.reduction.compression import encode
from peer.reduction.findings import Finding
from tests.support.waiting import PATIENCE_S

PEERS = [PeerID(b"\x12\x20" + bytes([number]) * 32) for number in range(4)]
REDUCER = 2
GROUP = b"group"
LENGTH = 100


class Talker:
    """One peer after a round of three values' worth of nothing but ones, in which one other reduced one part."""

    def __init__(self, own: int, average: float = 1.0, patience_s: float = PATIENCE_S) -> None:
        self.peer, self.found = PEERS[own], list[Finding]()
        self.traffic = Traffic()
        self.auditing = Auditing(self.traffic, self.found.append, patience_s)
        evidence = Evidence(parts=(0, 0, 1, 0), own=own, weight=4.0, rng=random.Random(0))
        evidence._sent[REDUCER].append(encode(torch.ones(LENGTH), 0))
        returned = torch.full((LENGTH,), average)
        evidence.keep_returned(Drawn(REDUCER, 0), encode(returned, 0), returned, 16.0)
        self.audit = Audit(PEERS, self.peer, evidence)

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
        talker.auditing.expect(GROUP)
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


async def test_who_got_another_average_than_the_others_finds_it_out() -> None:
    """By their digests, and by its own look at the part."""
    talkers = [Talker(own, average=2.0 if own == 0 else 1.0) for own in range(4)]
    await talk(talkers, PEERS)
    assert any("other averages than most" in found.detail for found in talkers[0].found)
    assert all(found.peer_id == PEERS[REDUCER].to_base58() for found in talkers[0].found)
    assert not any(talker.found for talker in talkers[1:])


async def test_who_does_not_answer_fails_nothing() -> None:
    """The audit ends without a result when its time is over."""
    talkers = [Talker(own, average=-1.0, patience_s=0.2) for own in range(3)]
    await talk(talkers, PEERS[:3])
    assert not any(talker.found for talker in talkers)
    assert not any(talker.auditing._rounds for talker in talkers)


async def test_of_a_round_that_came_to_nothing_nothing_is_heard() -> None:
    """Nor of one that nobody knows."""
    talker, statement = Talker(0), Statement(group_id=GROUP, weight=4.0)
    talker.auditing.expect(GROUP)
    waiting = asyncio.ensure_future(talker.auditing.hear(statement, PEERS[1]))
    await asyncio.sleep(0.01)
    talker.auditing.give_up(GROUP)
    assert not (await waiting).wanted
    assert not (await talker.auditing.hear(statement, PEERS[1])).wanted
    await talker.auditing.see(Input(group_id=GROUP, tensor=b"no tensor"), PEERS[1])


async def test_a_round_that_does_not_end_here_is_waited_for_no_longer_than_an_audit_lasts() -> None:
    """Neither another's statement nor its input waits on: what came first gives up first."""
    talker = Talker(0, patience_s=0.05)
    talker.auditing.expect(GROUP)
    shown = asyncio.create_task(talker.auditing.see(Input(group_id=GROUP, tensor=b"no tensor"), PEERS[1]))
    await asyncio.sleep(0)
    told = asyncio.create_task(talker.auditing.hear(Statement(group_id=GROUP, weight=4.0), PEERS[1]))
    await asyncio.wait({shown, told}, return_when=asyncio.FIRST_COMPLETED)
    assert shown.done()
    assert not (await told).wanted


async def test_few_audits_hold_what_was_sent() -> None:
    """The oldest ends when further rounds do, lest a silent peer fill this one's memory."""
    talker = Talker(0)
    silent = averaging_pb2.AveragingData  # anything without the calls: each talk ends at once
    for number in range(MOST_AUDITS + 2):
        talker.auditing.expect(bytes([number]))
        talker.auditing.begin(bytes([number]), talker.audit, PEERS, lambda _: silent())
        await asyncio.sleep(0.01)
    assert len(talker.auditing._rounds) == MOST_AUDITS
    for task in talker.auditing._running:
        task.cancel()
