"""A reducer's attestation binds it, and each sender that takes its averages."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hivemind.proto import runtime_pb2

from peer.reduction.attestation import (
    MAX_ATTESTATION_BYTES,
    Attestation,
    AttestedRound,
    AttestedSender,
    AttestedWeight,
    SignedAttestation,
    attested_weights,
    digest,
    digest_of,
    layout_of,
    split_digests,
)
from tests.support.receipts import key_of

ROUND = AttestedRound("run", 1, 7, b"group.images", digest(b"order"))
INPUTS, AVERAGES = [digest(b"first"), digest(b"second")], [digest(b"third"), digest(b"fourth")]
LINE = AttestedSender.of_parts(8.0, INPUTS, [8.0, 8.0])
OTHER = AttestedSender.of_parts(4.0, INPUTS[:1], [3.0, 0.0])
KEEPER = AttestedSender.of_parts(0.0, [], [0.0, 0.0])
ATTESTATION = Attestation.of_round(ROUND, AVERAGES, [OTHER, LINE, KEEPER])


@cache
def signed() -> SignedAttestation:
    return SignedAttestation.sign(key_of("ada"), ATTESTATION)


def test_what_was_signed_is_read_again() -> None:
    """Two signatures of the same are told to be of the same; the round is whole."""
    assert signed().opened(key_of("ada").public_key) == ATTESTATION
    assert ATTESTATION.round == ROUND
    again = SignedAttestation.sign(key_of("ada"), ATTESTATION)
    assert again != signed()
    assert again.digest == signed().digest


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no line's end",
        signed().content[:-1],
        signed().content.replace(b'"step":7', b'"step":8'),
        b" " + signed().content,
        b"\xff" + signed().content,
        b"x" * (MAX_ATTESTATION_BYTES + 1),
    ],
)
def test_what_its_reducer_did_not_sign_is_refused(content: bytes) -> None:
    """Changed by a byte, cut off, or too long."""
    with pytest.raises(ValueError, match=r"attestation|bytes"):
        SignedAttestation(content).opened(key_of("ada").public_key)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attestation", "manyhands-receipt-v1"),
        ("step", -1),
        ("group", "abc"),
        ("averages", "00"),
        ("more", 1),
        ("senders", [{"weight": 1.0, "counted": [[1, 1.0]], "inputs": "00"}]),
        ("senders", [{"weight": -1.0, "counted": [[1, 1.0]], "inputs": ""}]),
        ("senders", [{"weight": 1.0, "counted": [[0, 1.0]], "inputs": ""}]),
    ],
)
def test_another_form_is_refused_under_any_signature(field: str, value: Any) -> None:
    """A device key signs other statements, too."""
    changed = {**ATTESTATION.model_dump(mode="json"), field: value}
    body = json.dumps(changed, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(ValueError, match="not of the form"):
        SignedAttestation(body + b"\n" + key_of("ada").sign(body)).opened(key_of("ada").public_key)


def require(attestation: Attestation = ATTESTATION, own: int = 1, **changed: Any) -> None:
    weight, inputs = changed.pop("weight", 8.0), changed.pop("inputs", INPUTS)
    averages, weights = changed.pop("averages", AVERAGES), changed.pop("weights", [11.0, 8.0])
    attestation.require_true(own, weight, inputs, averages, weights)


def test_the_truth_is_taken() -> None:
    """Of a sender that counts with less than it named, too, and of one without a weight."""
    require()
    require(own=0, weight=4.0, inputs=INPUTS[:1])
    require(own=2, weight=0.0, inputs=[])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"own": 3}, "names 3 senders"),
        ({"own": 0}, "other inputs"),
        ({"weight": 9.0}, "other inputs"),
        ({"inputs": INPUTS[::-1]}, "other inputs"),
        ({"averages": AVERAGES[::-1]}, "other averages"),
        ({"averages": AVERAGES[:1], "weights": [11.0]}, "not of 1 parts"),
        ({"weights": [11.0, 11.0]}, "counts 8 samples in an average said to have 11"),
        ({"weights": [8.0, 8.0]}, "counts 11 samples in an average said to have 8"),
    ],
)
def test_a_sender_takes_nothing_else(changed: dict[str, Any], reason: str) -> None:
    """Other inputs of it, other averages or another weight than it was told."""
    with pytest.raises(ValueError, match=reason):
        require(**changed)


def test_nobody_counts_with_more_than_it_named() -> None:
    """Whoever it is."""
    inflated = Attestation.of_round(ROUND, AVERAGES, [AttestedSender.of_parts(4.0, INPUTS, [4.0, 5.0]), LINE, KEEPER])
    with pytest.raises(ValueError, match="more than that named"):
        require(inflated, weights=[12.0, 13.0])


def test_a_line_says_what_counted_of_each_part() -> None:
    """In as few spans as there are changes."""
    line = AttestedSender.of_parts(8.0, INPUTS, [8.0, 8.0, 0.0, 8.0])
    assert line.counted == ((2, 8.0), (1, 0.0), (1, 8.0))
    assert line.parts == 4
    assert [line.counted_in(part) for part in range(5)] == [8.0, 8.0, 0.0, 8.0, 0.0]


def test_all_peers_find_the_same_weights_in_the_attestations_of_a_round() -> None:
    """The least that any reducer heard and counted decides; a reducer that heard nothing counts as such."""
    lost = AttestedSender.of_parts(0.0, [], [0.0, 0.0])
    second = Attestation.of_round(ROUND, AVERAGES, [AttestedSender.of_parts(4.0, INPUTS, [4.0, 4.0]), lost, KEEPER])
    weights = {"other": AttestedWeight(4.0, 4.0, 0.0, 4.0), "own": AttestedWeight(8.0, 0.0, 8.0, 8.0)}
    for attestations in ([ATTESTATION, second], [second, ATTESTATION]):
        assert attested_weights(attestations, ["other", "own", "keeper"]) == weights


def test_a_parts_digest_is_of_all_that_gives_it_a_meaning() -> None:
    """Its bytes alone could be read in another way after the round."""
    wire = runtime_pb2.Tensor(buffer=b"12345678", size=[2], dtype="float32", compression=0)
    others = []
    for field, value in (("buffer", b"12345679"), ("dtype", "int32"), ("compression", 1)):
        other = runtime_pb2.Tensor.FromString(wire.SerializeToString())
        setattr(other, field, value)
        others.append(digest_of(other))
    others.append(digest_of(runtime_pb2.Tensor(buffer=b"12345678", size=[1, 2], dtype="float32", compression=0)))
    assert len({digest_of(wire), *others}) == 5
    assert digest_of(runtime_pb2.Tensor.FromString(wire.SerializeToString())) == digest_of(wire)


def test_joined_digests_are_split() -> None:
    """Whole ones only."""
    assert split_digests(b"".join(INPUTS)) == INPUTS
    assert split_digests(b"") == []
    with pytest.raises(ValueError, match="33 bytes are no digests"):
        split_digests(INPUTS[0] + b"x")


def test_an_attestation_names_its_round() -> None:
    """Era, step, group and run: one that is old is of another round."""
    for field, value in (
        ("run", "another"),
        ("era", 2),
        ("step", 8),
        ("group_id", b"group"),
        ("layout", digest(b"another")),
    ):
        other = replace(ROUND, **{field: value})
        assert Attestation.of_round(other, AVERAGES, [LINE]).round == other != ROUND


def test_a_groups_layout_is_its_order_and_shares() -> None:
    """Whatever of them a leader tells one peer otherwise, it shows."""
    peers = ["ada", "bob"]
    layouts = {layout_of(peers, (1, 3)), layout_of(peers[::-1], (1, 3)), layout_of(peers, (2, 2))}
    assert len(layouts) == 3
    assert layout_of(tuple(peers), (1.0, 3.0)) in layouts
