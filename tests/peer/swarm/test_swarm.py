"""What a peer signs of a round, and what it gives to its averager's process and takes from there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from auth.errors import SwarmError
from auth.receipts import open_receipt, read_receipt
from peer.averaging.rounds import AveragedGroup
from peer.config.run import RunConfig
from peer.network.placement import Placement
from peer.network.traffic import Traffic
from peer.reporting.event_log import NOWHERE
from peer.reporting.suspicions import Suspicions
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

        def start(self, averager: SimpleNamespace) -> None:
            order.append(f"start {averager.name}")
            raise SwarmError("the DHT process has died")

    def make(name: str) -> Any:
        order.append(name)
        return SimpleNamespace(name=name, cap=None)

    monkeypatch.setattr("peer.swarm.swarm.NodeWatch", Watch)
    monkeypatch.setattr("peer.swarm.swarm.RecordExchange", lambda *_: make("record exchange"))
    monkeypatch.setattr("peer.swarm.swarm.Averager", lambda *_: make("averager"))
    key = key_of("ada")
    token = SimpleNamespace(member="ada", device_id="1", role="keeper")
    credentials = SimpleNamespace(authority=b"key", access_token=lambda _: token)
    access: Any = SimpleNamespace(credentials=credentials, run="run", clock=time.time)
    dht: Any = SimpleNamespace(peer_id=SimpleNamespace(to_base58=lambda: key.peer_id))
    with pytest.raises(SwarmError, match="has died"):
        Swarm(
            RunConfig(),
            access,
            dht,
            torch.nn.Linear(1, 1),
            [],
            Placement(),
            is_client=False,
            traffic=Traffic(),
            suspicions=Suspicions(lambda _: None, time.time),
            on_lost=lambda _: None,
            events=NOWHERE,
        )
    assert order == ["watch", "record exchange", "averager", "start averager"]


def test_who_reduced_nothing_signs_nothing() -> None:
    """A peer in client mode, one alone, or a round without any samples."""
    witness, bob = Witness(key_of("ada").receipt_key("run"), "run"), key_of("bob").peer_id
    assert witness.receipt(0, 7, group_of({}, {})) == ""
    assert witness.receipt(0, 7, group_of({bob: 0.0}, {bob: pseudonym_of("bob", "run")})) == ""
