"""What a peer signs of a round, and what it gives to its averager's process and takes from there."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from auth.errors import SwarmError
from auth.receipts import open_receipt, read_receipt
from peer.averaging.averager import AveragedGroup
from peer.averaging.bandwidth import LineEstimate
from peer.config.run import RunConfig
from peer.reporting.event_log import NOWHERE
from peer.reporting.suspicions import Suspicions
from peer.runtime.mailbox import Mailbox
from peer.swarm.swarm import Swarm, Witness
from tests.support.receipts import key_of, pseudonym_of


def group_of(counted: Mapping[str, float], pseudonyms: Mapping[str, str]) -> AveragedGroup:
    """A group in whose reduction these samples counted."""
    return AveragedGroup(size=3, samples=32, averaged_bytes=8, counted=counted, pseudonyms=pseudonyms)


def test_who_reduced_signs_what_came() -> None:
    """Everybody's weight as whole samples under its pseudonym, its own too, without the keeper, who has none."""
    brought, pseudonyms = {"ada": 12.0, "bob": 20.0, "keeper": 0.0}, {}
    for name in brought:
        pseudonyms[key_of(name).peer_id] = pseudonym_of(name, "run")
    weights = {key_of(name).peer_id: weight for name, weight in brought.items()}
    text = Witness(key_of("ada").receipt_key("run"), "run").receipt(1, 7, group_of(weights, pseudonyms))
    receipt = open_receipt(read_receipt(text), pseudonym_of("ada", "run"))
    assert (receipt.run, receipt.era, receipt.step) == ("run", 1, 7)
    assert receipt.samples == {pseudonym_of("ada", "run"): 12, pseudonym_of("bob", "run"): 20}
    assert not any(key_of(name).peer_id in text for name in brought)


def test_the_node_is_watched_before_anything_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper whose DHT process was killed while the averager started stood still for good, and told nobody."""
    order: list[str] = []

    class Watch:
        def __init__(self, *_: object) -> None:
            order.append("watch")

        def start(self, averager: SimpleNamespace, _name: str) -> None:
            order.append(f"start {averager.name}")
            if averager.name == "averager":
                raise SwarmError("the DHT process has died")

    def make(name: str) -> Any:
        order.append(name)
        return SimpleNamespace(name=name)

    monkeypatch.setattr("peer.swarm.swarm.NodeWatch", Watch)
    assembly: Any = SimpleNamespace(
        access=SimpleNamespace(credentials=None, clock=time.time),
        config=RunConfig(),
        dht=None,
        events=NOWHERE,
        role="keeper",
        tracker=lambda *_: make("tracker"),
        record_exchange=lambda *_: make("record exchange"),
        gradient_averager=lambda *_: make("averager"),
    )
    line = LineEstimate(None, time.monotonic, random.Random())
    with pytest.raises(SwarmError, match="has died"):
        Swarm(assembly, torch.nn.Linear(1, 1), [], line, Suspicions(lambda _: None, time.time), lambda _: None)
    assert order == ["watch", "tracker", "record exchange", "averager", "start averager"]


def test_who_reduced_nothing_signs_nothing() -> None:
    """A peer in client mode, one alone, or a round without any samples."""
    witness, bob = Witness(key_of("ada").receipt_key("run"), "run"), key_of("bob").peer_id
    assert witness.receipt(0, 7, group_of({}, {})) == ""
    assert witness.receipt(0, 7, group_of({bob: 0.0}, {bob: pseudonym_of("bob", "run")})) == ""


def swarm_with(**parts: Any) -> Any:
    """A swarm of these parts that has joined nobody."""
    swarm: Any = Swarm.__new__(Swarm)
    vars(swarm).update(parts)
    return swarm


def test_others_are_heard_until_the_peer_leaves() -> None:
    """In a thread of its own, for this peer may be computing; what cannot be processed ends nothing."""
    heard, told = Mailbox[str](3), list[str]()
    for said in ("a count", "nonsense", "a report"):
        assert heard.put(said)

    def hear(said: str) -> None:
        if said == "nonsense":
            raise ValueError(said)
        told.append(said)

    swarm = swarm_with(_gradients=SimpleNamespace(is_alive=lambda: True))
    heard.close()
    swarm._serve(heard, hear)
    assert told == ["a count", "a report"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_state_is_copied_for_who_downloads_it(fails: bool) -> None:
    """Or the averager's process learns that it could not be."""
    copies = Mailbox[Any](1)

    def copy() -> str:
        if fails:
            raise MemoryError
        return "a copy"

    swarm = swarm_with(_gradients=SimpleNamespace(copies=copies), training=SimpleNamespace(copy=copy))
    with pytest.raises(MemoryError) if fails else nullcontext():
        swarm._give_copy(None)
    assert copies.get() == (None if fails else "a copy")
