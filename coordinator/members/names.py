"""Public names of members: the member's original name, another name, or a number.

The member or the operator can set another name. A number stands for anonymous members and for
members whose name the operator hides. No member can use another member's name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from auth.errors import ConfigError, NotInvitedError, RequestError
from auth.keys import peer_id_of
from auth.look_alikes import check_new_name
from coordinator.ledger.reading import Contribution
from coordinator.members.membership import member_name, names_in_use
from coordinator.store.engine import Database
from coordinator.store.models import Device, Member, Naming
from coordinator.store.standing import require_active

_NUMBERED = re.compile(r"anonymous\s*\d+")


@dataclass(frozen=True)
class ChosenName:
    """The result of a member's choice of a public name."""

    shown: str  # public name
    hidden: bool  # True if the operator hides the name, whatever the member chose


def set_display_name(database: Database, name: str, display_name: str) -> None:
    """Set a member's public name; an empty string restores the original name."""
    shown = member_name(display_name) if display_name.strip() else None

    def change(session: Session) -> None:
        _rename(session, find_member(session, name), shown)

    database.transact(change)


def choose_name(database: Database, public_key: bytes, display_name: str, anonymous: bool) -> ChosenName:
    """Set the public name of a device's member. Raises `RequestError` for an unsuitable name."""

    def change(session: Session) -> ChosenName:
        device = session.scalar(select(Device).where(Device.peer_id == peer_id_of(public_key)))
        if device is None:
            raise NotInvitedError("This device is not known here: join the run first.")
        require_active(session, device.member, device)
        naming = _naming(session, device.member_id)
        try:
            _rename(session, device.member, member_name(display_name) if display_name.strip() else None)
        except ConfigError as error:  # a `ConfigError` would ask the member to correct the operator's settings
            raise RequestError(str(error)) from error
        naming.anonymous = anonymous
        return ChosenName(_shown(session, device.member, naming), naming.hidden_at is not None)

    return database.transact(change)


def hide_name(database: Database, name: str, hidden: bool, now: float) -> str:
    """Hide a member's public name behind a number, or show it again; return the public name."""

    def change(session: Session) -> str:
        member = find_member(session, name)
        naming = _naming(session, member.id)
        naming.hidden_at = now if hidden else None
        return _shown(session, member, naming)

    return database.transact(change)


def find_member(session: Session, name: str) -> Member:
    """Find and lock a member by name. Raises `ConfigError` for an unknown name."""
    name = member_name(name)
    member = session.scalar(select(Member).where(Member.name == name).with_for_update())
    if member is None:
        raise ConfigError(f"No member is called {name!r}: `manyhands coordinator members` lists them.")
    return member


def display_names(database: Database) -> dict[str, str]:
    """Return a map from names to public names, for all members whose two names differ."""
    with database() as session:
        other = or_(Member.display_name.is_not(None), Naming.anonymous, Naming.hidden_at.is_not(None))
        found = session.execute(
            select(Member, Naming).outerjoin(Naming, Naming.member_id == Member.id).where(other)
        ).all()
        numbered = {member.name for member, naming in found if _is_unnamed(naming)}
        taken = {_folded(name) for name in session.scalars(select(Member.name))} if numbered else set()
    shown = {member.name: public_name(member, naming) for member, naming in found}
    return {
        name: _apart_from(public, taken) if name in numbered else public
        for name, public in shown.items()
        if public != name
    }


def public_name(member: Member, naming: Naming | None) -> str:
    """Return a member's public name."""
    return f"Anonymous {member.id}" if _is_unnamed(naming) else member.display_name or member.name


def publicly(contributions: Sequence[Contribution], shown: dict[str, str]) -> tuple[Contribution, ...]:
    """Return contributions with the members' public names in place of their names."""
    return tuple(replace(row, member=shown.get(row.member, row.member)) for row in contributions)


def _is_unnamed(naming: Naming | None) -> bool:
    return naming is not None and (naming.anonymous or naming.hidden_at is not None)


def _naming(session: Session, member_id: int) -> Naming:
    """Return the row with the member's choice of name; create the row if it is missing."""
    naming = session.get(Naming, member_id, with_for_update=True)
    if naming is None:
        naming = Naming(member_id=member_id, anonymous=False)
        session.add(naming)
        session.flush()
    return naming


def _shown(session: Session, member: Member, naming: Naming) -> str:
    names = {_folded(name) for name in session.scalars(select(Member.name).where(Member.id != member.id))}
    public = public_name(member, naming)
    return _apart_from(public, names) if _is_unnamed(naming) else public


def _apart_from(name: str, taken: set[str]) -> str:
    """Append dashes to an anonymous name until it differs from all members' names."""
    while _folded(name) in taken:
        name += "-"
    return name


def _rename(session: Session, member: Member, shown: str | None) -> None:
    if shown is not None:
        _require_free(session, member, shown)
    member.display_name = shown


def _require_free(session: Session, member: Member, shown: str) -> None:
    """Raise `ConfigError` if the name looks like another name in use or an anonymous name."""
    if _NUMBERED.fullmatch(_folded(shown)):
        raise ConfigError(f"The name {shown!r} is how somebody without a name is shown: choose another.")
    check_new_name(shown, names_in_use(session, but=member.id))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
