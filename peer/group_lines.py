"""What the peers of a group declared when they joined it, as its leader gathered it, and who reduces by that.

All peers of a group must come to the same shares, so these follow from nothing but what all of them see: what was
gathered, and the tokens. A leader hands out what others said; each peer makes sure that its own words are among it, for
a leader who could call all others slow would reduce everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import PeerID
from hivemind.utils.serializer import MSGPackSerializer

from auth.tokens import AccessToken
from peer.accusations import outvoted, read_accused
from peer.load_balancing import believed

TRUSTED_ROLES = frozenset({"keeper"})  # run by the operator, as the coordinator is


@dataclass(frozen=True)
class Declared:
    """What one peer said."""

    rate: float | None  # bytes per second of its line
    takes_connections: bool
    accused: frozenset[str]  # peer IDs of reducers that it has caught


@dataclass(frozen=True)
class GroupLines:
    """What follows from it, for each peer of the group in its order."""

    rates: tuple[float | None, ...]
    reduces: tuple[bool, ...]  # which may
    trusted: tuple[bool, ...]
    second_reducers: tuple[PeerID, ...]  # who looks after others: all with connections of their own, not over a relay


NOBODY = GroupLines((), (), (), ())


def declaration(declared: bytes, accused: Sequence[str]) -> bytes:
    """What a peer says when it joins a group: hivemind's words, with the accusations."""
    rate, mode, _ = MSGPackSerializer.loads(declared)
    said: bytes = MSGPackSerializer.dumps([rate, mode, MSGPackSerializer.dumps(list(accused))])
    return said


def group_lines(
    group_info: GroupInfo, own: PeerID, declared: bytes, tokens: Sequence[AccessToken | None]
) -> GroupLines:
    """Raises `ValueError` where a peer says nothing, or `own` is said to say something else than it `declared`."""
    if group_info.gathered[group_info.peer_ids.index(own)] != declared:
        raise ValueError("the group's leader changed what this peer had said of itself")
    peers = [_read(MSGPackSerializer.loads(gathered)) for gathered in group_info.gathered]
    trusted = [token is not None and token.role in TRUSTED_ROLES for token in tokens]
    out = outvoted(
        [peer.to_base58() for peer in group_info.peer_ids],
        ["" if token is None else token.member for token in tokens],
        [peer.accused for peer in peers],
        trusted,
    )
    able = [peer.takes_connections for peer in peers]
    reduces = [can and not is_out for can, is_out in zip(able, out, strict=True)]
    return GroupLines(
        rates=tuple(peer.rate for peer in peers),
        reduces=tuple(reduces if any(reduces) else able),  # somebody must
        trusted=tuple(trusted),
        second_reducers=tuple(
            peer_id
            for peer_id, peer in zip(group_info.peer_ids, peers, strict=True)
            if peer.takes_connections and peer.rate != 0
        ),
    )


def _read(gathered: Any) -> Declared:
    if not isinstance(gathered, list | tuple) or len(gathered) != 3:
        raise ValueError("a peer of the group does not say how it takes part")
    rate, mode, accused = gathered
    named = MSGPackSerializer.loads(accused) if isinstance(accused, bytes) else None
    return Declared(believed(rate), mode == AveragingMode.NODE.value, read_accused(named))
