"""Under which name the public sees a member: the member's own, or a pseudonym that is nobody else's."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from auth.errors import ConfigError
from coordinator.ledger import Contribution
from coordinator.membership import member_name
from coordinator.store.engine import Sessions
from coordinator.store.models import Member


def set_display_name(sessions: Sessions, name: str, display_name: str) -> None:
    """Show the member under another name from now on; an empty one shows the member's own again."""
    shown = member_name(display_name) if display_name.strip() else None

    def change(session: Session) -> None:
        member = find_member(session, name)
        if shown is not None:
            _require_free(session, member, shown)
        member.display_name = shown

    sessions.transact(change)


def find_member(session: Session, name: str) -> Member:
    """The member of this name, locked; raises `ConfigError` where there is none."""
    name = member_name(name)
    member = session.scalar(select(Member).where(Member.name == name).with_for_update())
    if member is None:
        raise ConfigError(f"No member is called {name!r}: `manyhands coordinator members` lists them.")
    return member


def display_names(sessions: Sessions) -> dict[str, str]:
    """Member's name -> pseudonym, of those who have one."""
    with sessions() as session:
        query = select(Member.name, Member.display_name).where(Member.display_name.is_not(None))
        return {name: shown for name, shown in session.execute(query) if shown is not None}


def publicly(contributions: Sequence[Contribution], shown: dict[str, str]) -> tuple[Contribution, ...]:
    """The same contributions as the public sees them."""
    return tuple(replace(row, member=shown.get(row.member, row.member)) for row in contributions)


def _require_free(session: Session, member: Member, shown: str) -> None:
    """Names that look alike count as the same."""
    others = session.execute(select(Member.name, Member.display_name).where(Member.id != member.id))
    if any(_folded(shown) == _folded(taken) for names in others for taken in names if taken):
        raise ConfigError(f"The name {shown!r} is another member's: choose another.")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
