"""Signed declarations with which peers join a group.

The group's leader sends all declarations to every member. They determine the shares of the
reduction, the peers that reduce nothing, and the time limits (`peer.averaging.shares`). Run, era,
step and gradient encoding are signed too, so a leader can neither alter nor invent declarations,
nor reuse declarations of another step, run or encoding. A leader could replay an older declaration
for the same step. Each peer therefore checks that its newest declaration is included, and the
round's ID is derived from all declarations (`bound`), so that all members have the same
declarations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from hivemind.utils.serializer import MSGPackSerializer
from pydantic import Field

from auth.errors import RequestError
from auth.keys import verify_signature
from auth.statements import Statement
from peer.config.training import Compression
from peer.node.quorum import GROUP_ID_BYTES, MOST_PEERS
from peer.node.scalars import read_scalars, write_scalars
from peer.reduction.findings import MAX_ID_CHARS, MOST_ACCUSED

MAX_BYTES = 4096  # maximum size of a declaration, including its signature
MAX_BANDWIDTH = 12.5e9  # bytes per second (100 Gbit/s); higher claims are invalid
MAX_S = 86_400.0
MOST_MISSED = 16  # maximum number of reducers that one peer lists as missed
_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_PeerId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]


class Declaration(Statement):
    """One peer's declaration for one step."""

    noun: ClassVar[str] = "declaration"
    declaration: Literal["manyhands-declaration-v1"] = "manyhands-declaration-v1"
    run: Annotated[str, Field(min_length=1, max_length=1024)]
    era: _Count
    step: _Count  # last completed global step
    compression: Compression  # gradient compression
    powersgd_rank: _Count
    rate: Annotated[float, Field(ge=0, le=MAX_BANDWIDTH)] | None = None  # the peer's bytes per second
    takes_connections: bool = True
    reduces: bool = True  # False unless all peers can connect to this peer directly
    patience_s: Annotated[float, Field(gt=0, le=MAX_S)]  # time limit for the round, based on earlier rounds
    accused: list[_PeerId] = Field(default_factory=list, max_length=MOST_ACCUSED)  # reducers caught cheating
    missed: list[_PeerId] = Field(default_factory=list, max_length=MOST_MISSED)  # reducers that failed to answer

    @property
    def position(self) -> tuple[int, int]:
        """The era and the last completed step."""
        return self.era, self.step

    @property
    def code(self) -> tuple[Compression, int]:
        """The gradient compression and PowerSGD rank."""
        return self.compression, self.powersgd_rank

    def require(self, position: tuple[int, int], code: tuple[Compression, int]) -> None:
        """Raise `ValueError` unless this declaration is for the step after `position`, and for this code."""
        if self.position != position:
            raise ValueError("The declaration is for another step.")
        if self.code != code:
            raise ValueError("The declaration is for another code of gradients.")

    def signed(self, sign: Callable[[bytes], bytes]) -> bytes:
        """Return the declaration in its wire format, with a signature."""
        body = self.body.encode()
        sent: bytes = MSGPackSerializer.dumps([body, sign(body)])
        return sent


def open_declaration(gathered: bytes, public_key: str, run: str) -> Declaration:
    """Read a declaration for any step. Raises `ValueError` unless run and signature by `public_key` match."""
    try:
        body, signature = _parts(gathered)
        said = Declaration.opened(body, lambda content: verify_signature(public_key.encode(), content, signature))
    except RequestError as error:
        raise ValueError(str(error)) from error
    if said.run != run:
        raise ValueError("The declaration is for another run.")
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
    except Exception as error:  # MessagePack's errors have no common base class; includes malformed pairs
        raise ValueError("The declaration is not one.") from error


@dataclass(frozen=True)
class DeclaredGroup:
    """The peers of a group, in order, and what each has declared."""

    group_id: bytes
    peers: tuple[str, ...]  # peer IDs
    declared: tuple[bytes, ...]  # signed declarations

    @property
    def bound(self) -> DeclaredGroup:
        """This group with an ID derived from its peers and their declarations.

        If a leader sends different data to different peers, these peers form separate groups instead
        of one group with inconsistent shares. The ID always has `GROUP_ID_BYTES`.
        """
        return replace(self, group_id=hashlib.sha256(self.message()).digest()[:GROUP_ID_BYTES])

    def message(self) -> bytes:
        """Return the message with which a leader tells its followers this group."""
        return write_scalars([self.group_id, *self.peers, *self.declared])


def read_group(message: bytes) -> DeclaredGroup:
    """Read a leader's group, in which each peer is once. Raises `ValueError` if the message is malformed."""
    match read_scalars(message, 1 + 2 * MOST_PEERS):
        case [bytes(group_id), *rest]:
            peers = [each for each in rest if isinstance(each, str) and len(each) <= MAX_ID_CHARS]
            declared = [each for each in rest if isinstance(each, bytes)]
            if len(set(peers)) == len(declared) == len(rest) / 2 and rest == [*peers, *declared]:
                return DeclaredGroup(group_id, tuple(peers), tuple(declared))
    raise ValueError("peers and declarations do not belong together")
