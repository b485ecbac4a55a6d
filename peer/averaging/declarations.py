"""Declarations: a peer's words when it joins a group, signed with its device's key.

The group's leader gathers them and hands all to everybody; the shares of the reduction, who reduces nothing, and the
limits of time follow from them (`peer.averaging.shares`). A declaration names run, era, step and the code of gradients,
and the device's key signs it. So a leader can neither change the words of others, nor bring those of another step, run
or code, nor make up any for a device that is not there. Older words towards the same step a leader could bring; but
each peer makes sure that its own newest are among those gathered, and all who average together have seen the same ones:
the round's ID follows from them (`bound`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from hivemind.averaging.group_info import GroupInfo
from hivemind.utils.serializer import MSGPackSerializer
from pydantic import Field

from auth.errors import RequestError
from auth.keys import verify_signature
from auth.statements import Statement
from peer.config.training import Compression
from peer.reduction.findings import MAX_ID_CHARS, MOST_ACCUSED

MAX_BYTES = 4096  # with its signature
GROUP_ID_BYTES = 20  # as many as hivemind's own
MAX_BANDWIDTH = 12.5e9  # bytes per second (100 Gbit/s); whoever claims more is not believed
MAX_S = 86_400.0
MOST_MISSED = 16  # reducers, named by one peer at a time
_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_PeerId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]


class Declaration(Statement):
    """One peer's words towards one step."""

    noun: ClassVar[str] = "declaration"
    declaration: Literal["manyhands-declaration-v1"] = "manyhands-declaration-v1"
    run: Annotated[str, Field(min_length=1, max_length=1024)]
    era: _Count
    step: _Count  # the last that was taken
    compression: Compression  # in which it averages
    powersgd_rank: _Count
    rate: Annotated[float, Field(ge=0, le=MAX_BANDWIDTH)] | None = None  # bytes per second of the peer's line
    takes_connections: bool = True
    reduces: bool = True  # false: not all peers can reach it directly
    patience_s: Annotated[float, Field(gt=0, le=MAX_S)]  # for the round, by those before
    accused: list[_PeerId] = Field(default_factory=list, max_length=MOST_ACCUSED)  # reducers that it has caught
    missed: list[_PeerId] = Field(default_factory=list, max_length=MOST_MISSED)  # reducers that returned nothing to it

    def signed(self, sign: Callable[[bytes], bytes]) -> bytes:
        """Return the declaration as it is sent, under a signature."""
        body = self.body.encode()
        sent: bytes = MSGPackSerializer.dumps([body, sign(body)])
        return sent


def read_declaration(
    gathered: bytes, public_key: str, run: str, position: tuple[int, int], code: tuple[Compression, int]
) -> Declaration:
    """Read a declaration towards the step after `position` (era, step), in this code, by the device with this key.

    Raises `ValueError` if it is anything else. Every peer comes to the same result.
    """
    try:
        body, signature = _parts(gathered)
        said = Declaration.opened(body, lambda content: verify_signature(public_key.encode(), content, signature))
    except RequestError as error:
        raise ValueError(str(error)) from error
    if (said.run, said.era, said.step) != (run, *position):
        raise ValueError("The declaration is for another step.")
    if (said.compression, said.powersgd_rank) != code:
        raise ValueError("The declaration is for another code of gradients.")
    return said


def _parts(gathered: bytes) -> tuple[str, bytes]:
    try:
        if len(gathered) > MAX_BYTES:
            raise ValueError("it is too long")
        parts: Any = MSGPackSerializer.loads(gathered)
        body, signature = parts
        if not isinstance(signature, bytes):
            raise TypeError("it has no signature")
        return body.decode("ascii"), signature
    except Exception as error:  # of MessagePack, whose errors have no common root, and of what is no pair of bytes
        raise ValueError("The declaration is not one.") from error


def bound(group: GroupInfo) -> GroupInfo:
    """Return the group with an ID that follows from its peers and their words, too.

    So a leader that tells one peer this and another that has two groups, and not one whose members expect other parts
    of each other than they get. The ID has `GROUP_ID_BYTES`, whatever the leader's had.
    """
    content = [group.group_id, [peer.to_bytes() for peer in group.peer_ids], list(group.gathered)]
    digest = hashlib.sha256(MSGPackSerializer.dumps(content)).digest()
    return replace(group, group_id=digest[:GROUP_ID_BYTES])
