"""A peer's receipts of rounds, and the order in which its parts start."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from auth.errors import SwarmError
from auth.receipts import open_receipt, read_receipt
from peer.averaging.rounds import AveragedGroup
from peer.config.run import RunConfig
from peer.swarm.messages import Joined
from peer.swarm.node_process import Listeners
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


def test_a_node_is_watched_and_heard_before_anything_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper whose node was killed while it read the records stood still for good, and told nobody."""
    order: list[str] = []

    class Node:
        cap = None

        def __init__(self, *_: object) -> None:
            order.append("node")

        def start(self) -> Joined:
            order.append("start")
            return Joined(process_id=7, daemon_id=8)

        def listen(self, listeners: Listeners) -> None:
            listeners.daemon_heard()
            order.append("listen")

    class Watch:
        def __init__(self, process_ids: object, *_: object) -> None:
            assert process_ids == {"process": 7, "p2p daemon": 8}
            order.append("watch")

        def heard(self) -> None:
            order.append("heard")

    def exchange(*_: object) -> None:
        raise SwarmError("the records are read")

    monkeypatch.setattr("peer.swarm.swarm.NodeWatch", Watch)
    monkeypatch.setattr("peer.swarm.swarm.RecordExchange", exchange)
    monkeypatch.setattr("peer.swarm.swarm.NodeProcess", Node)
    token = SimpleNamespace(member="ada", device_id="1", role="keeper")
    credentials = SimpleNamespace(authority=b"key", access_token=lambda _: token, device_key=key_of("ada"))
    with pytest.raises(SwarmError, match="records are read"):
        Swarm.join(
            config=RunConfig(), model=torch.nn.Linear(1, 1), credentials=cast(Any, credentials), initial_peers=()
        )
    assert order == ["node", "start", "watch", "heard", "listen"]


def test_who_reduced_nothing_signs_nothing() -> None:
    """A peer in client mode, one alone, or a round without any samples."""
    witness, bob = Witness(key_of("ada").receipt_key("run"), "run"), key_of("bob").peer_id
    assert witness.receipt(0, 7, group_of({}, {})) == ""
    assert witness.receipt(0, 7, group_of({bob: 0.0}, {bob: pseudonym_of("bob", "run")})) == ""
