"""What a peer signs of a round."""

from __future__ import annotations

from auth.receipts import open_receipt, read_receipt
from peer.swarm.swarm import Witness
from tests.support.receipts import key_of


def test_who_reduced_signs_what_came() -> None:
    """Everybody's weight as whole samples, its own too, without the keeper, who has none."""
    ada, bob = key_of("ada"), key_of("bob")
    text = Witness(ada, "run").receipt(1, 7, {ada.peer_id: 12.0, bob.peer_id: 20.0, key_of("keeper").peer_id: 0.0})
    receipt = open_receipt(read_receipt(text), ada.public_key)
    assert (receipt.run, receipt.era, receipt.step) == ("run", 1, 7)
    assert receipt.samples == {ada.peer_id: 12, bob.peer_id: 20}


def test_who_reduced_nothing_signs_nothing() -> None:
    """A peer in client mode, one alone, or a round without any samples."""
    assert Witness(key_of("ada"), "run").receipt(0, 7, {}) == ""
    assert Witness(key_of("ada"), "run").receipt(0, 7, {key_of("bob").peer_id: 0.0}) == ""
