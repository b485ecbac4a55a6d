"""What follows from what the peers of a group say when they join it."""

from __future__ import annotations

from typing import Any

import pytest
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import PeerID
from hivemind.utils.serializer import MSGPackSerializer

from auth.tokens import AccessToken, Role
from peer.group_lines import GroupLines, declaration, group_lines

PEERS = tuple(PeerID(b"\x12\x20" + bytes([number]) * 32) for number in range(4))
NODE, CLIENT = 0, 1


def token(member: str, role: Role = "trainer") -> AccessToken:
    return AccessToken(member, "1", "peer", "key", role, "run", 0.0, 1.0)


def gathered(rate: Any, mode: int = NODE, accused: list[str] | None = None) -> bytes:
    return declaration(MSGPackSerializer.dumps([rate, mode, MSGPackSerializer.dumps(None)]), accused or [])


TOKENS = [token("op", "keeper"), token("alice"), token("bob"), token("mallory")]


def lines_of(*said: bytes) -> GroupLines:
    return group_lines(GroupInfo(b"group", PEERS, said), PEERS[1], said[1], TOKENS)


def test_who_reduces_and_who_looks_after_it() -> None:
    """Clients do neither, and who is reached over a relay does not look after others."""
    lines = lines_of(gathered(None), gathered(1e6), gathered(5e6, CLIENT), gathered(0.0))
    assert lines.rates == (None, 1e6, 5e6, 0.0)
    assert lines.reduces == (True, True, False, True)
    assert lines.trusted == (True, False, False, False)
    assert lines.second_reducers == PEERS[:2]


def test_who_was_caught_by_most_reduces_nothing() -> None:
    """Whatever line it claims."""
    caught = [PEERS[3].to_base58()]
    assert lines_of(gathered(None), gathered(1e6, NODE, caught), gathered(1e6), gathered(1e9)).reduces[3]
    lines = lines_of(gathered(None, NODE, caught), gathered(1e6, NODE, caught), gathered(1e6), gathered(1e9))
    assert lines.reduces == (True, True, True, False)


def test_somebody_must_reduce() -> None:
    """Where most accuse everybody who could, all who can do."""
    everybody = [peer.to_base58() for peer in PEERS]
    lines = lines_of(*[gathered(None, CLIENT, everybody), *[gathered(1e6, NODE, everybody)] * 3])
    assert lines.reduces == (False, True, True, True)


def test_a_leader_that_changes_a_peers_words_has_no_group() -> None:
    """It could call every line but its own a slow one."""
    said = (gathered(None), gathered(0.0, CLIENT), gathered(1e6), gathered(1e9))
    with pytest.raises(ValueError, match="leader changed"):
        group_lines(GroupInfo(b"group", PEERS, said), PEERS[1], gathered(1e6), TOKENS)


@pytest.mark.parametrize("said", [None, [1e6, NODE], "fast"])
def test_a_peer_that_says_nothing_of_use_spoils_its_group(said: Any) -> None:
    """Nobody could tell how much it is to reduce."""
    with pytest.raises(ValueError, match="does not say"):
        lines_of(gathered(None), gathered(1e6), gathered(1e6), MSGPackSerializer.dumps(said))
