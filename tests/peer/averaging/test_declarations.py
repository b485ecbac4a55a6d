"""Declarations: a device's own words towards one step, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
from hivemind.utils.serializer import MSGPackSerializer

from auth.keys import DeviceKey
from peer.averaging.declarations import (
    MAX_BANDWIDTH,
    MAX_BYTES,
    MOST_MISSED,
    Declaration,
    DeclaredGroup,
    open_declaration,
)

POSITION = (1, 4)
SAID: dict[str, Any] = {
    "run": "run",
    "era": 1,
    "step": 4,
    "compression": "float16",
    "powersgd_rank": 0,
    "patience_s": 30.0,
}


def read(gathered: bytes, key: DeviceKey) -> Declaration:
    """What others make of these bytes."""
    said = open_declaration(gathered, key.public_key.decode(), "run")
    said.require(POSITION, ("float16", 0))
    return said


def test_what_was_said_is_read(key: DeviceKey) -> None:
    """By everybody who knows the device's public key, which its token names."""
    said = Declaration(**SAID, rate=1e6, takes_connections=False, accused=["Qm1"], missed=["Qm2", "Qm3"])
    assert read(said.signed(key.sign), key) == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run": "another"}, "another run"),
        ({"era": 2}, "another step"),
        ({"step": 3}, "another step"),
        ({"compression": "8bit-blockwise"}, "another code of gradients"),
        ({"powersgd_rank": 4}, "another code of gradients"),
    ],
)
def test_words_are_for_one_step_of_one_run_and_one_code(key: DeviceKey, changes: dict[str, Any], said: str) -> None:
    """A leader cannot bring them again at another; peers that missed a change of the code average without the rest."""
    with pytest.raises(ValueError, match=said):
        read(Declaration(**SAID | changes).signed(key.sign), key)


@pytest.mark.parametrize("changes", [{"era": 2}, {"step": 3}, {"compression": "8bit-blockwise", "powersgd_rank": 4}])
def test_words_are_opened_at_any_step_and_in_any_code(key: DeviceKey, changes: dict[str, Any]) -> None:
    """A leader lets peers wait that come to a step before it; they say where they are."""
    said = Declaration(**SAID | changes)
    found = open_declaration(said.signed(key.sign), key.public_key.decode(), "run")
    assert (found, found.position) == (said, (said.era, said.step))
    assert found.code == (said.compression, said.powersgd_rank)
    with pytest.raises(ValueError, match="another run"):
        open_declaration(said.signed(key.sign), key.public_key.decode(), "another")


def test_a_leader_cannot_change_words(key: DeviceKey, keys: list[bytes]) -> None:
    """Neither what another device said, nor whose words they are."""
    said = Declaration(**SAID, rate=1e6)
    _, signature = MSGPackSerializer.loads(said.signed(key.sign))
    slower = said.model_copy(update={"rate": 0.0}).body.encode()
    with pytest.raises(ValueError, match="was changed"):
        read(MSGPackSerializer.dumps([slower, signature]), key)
    with pytest.raises(ValueError, match="was changed"):
        open_declaration(said.signed(key.sign), keys[0].decode(), "run")


@pytest.mark.parametrize(
    "changes",
    [
        {"rate": -1.0},
        {"rate": 2 * MAX_BANDWIDTH},
        {"patience_s": 0.0},
        {"patience_s": 1e9},
        {"missed": ["Qm"] * (MOST_MISSED + 1)},
        {"accused": ["Q" * 101]},
        {"accused": [7]},
        {"another": 1},
    ],
)
def test_words_without_sense_are_none(key: DeviceKey, changes: dict[str, Any]) -> None:
    """Although the device has signed them."""
    said = Declaration.model_construct(**Declaration(**SAID).model_dump() | changes)
    object.__setattr__(said, "model_dump", lambda mode: Declaration(**SAID).model_dump() | changes)
    with pytest.raises(ValueError, match="form"):
        read(said.signed(key.sign), key)


@pytest.mark.parametrize(
    "gathered",
    [
        b"",
        b"\xc1",
        MSGPackSerializer.dumps(None),
        MSGPackSerializer.dumps([None, 0, b""]),
        MSGPackSerializer.dumps([b"{}"]),
        MSGPackSerializer.dumps(["{}", b"signature"]),
        MSGPackSerializer.dumps([b"\xff", b"signature"]),
        MSGPackSerializer.dumps([b"{}", "signature"]),
        MSGPackSerializer.dumps([b"x" * MAX_BYTES, b"signature"]),
    ],
)
def test_bytes_that_are_no_words_are_refused(key: DeviceKey, gathered: bytes) -> None:
    """Whatever comes from the network."""
    with pytest.raises(ValueError, match="is not one"):
        read(gathered, key)


def test_the_largest_words_fit(key: DeviceKey) -> None:
    """As many peers as may be named."""
    said = Declaration(**SAID, accused=["Q" * 52] * 8, missed=["Q" * 52] * MOST_MISSED)
    assert read(said.signed(key.sign), key) == said


def test_a_group_of_which_a_leader_tells_two_stories_is_two() -> None:
    """Peers, their order and each one's words are in its ID; the same content has the same."""
    ada, bob = "ada", "bob"
    told = [
        DeclaredGroup(b"g" * 20, (ada, bob), (b"1", b"2")),
        DeclaredGroup(b"g" * 20, (bob, ada), (b"1", b"2")),
        DeclaredGroup(b"g" * 20, (ada, bob), (b"1", b"3")),
        DeclaredGroup(b"h" * 20, (ada, bob), (b"1", b"2")),
    ]
    found = [group.bound for group in told]
    assert len({group.group_id for group in found}) == len(told)
    assert told[0].bound == found[0]
    assert len(found[0].group_id) == 20
    assert (found[0].peers, found[0].declared) == ((ada, bob), (b"1", b"2"))
