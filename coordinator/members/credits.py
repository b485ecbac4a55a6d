"""Credits in the model card: all contributors except erased members and members who opted out."""

from __future__ import annotations

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from coordinator.members.erasure import REASON
from coordinator.members.names import find_member
from coordinator.store.engine import Database
from coordinator.store.models import Member, UnnamedMember


def set_named(database: Database, name: str, named: bool) -> None:
    """Set whether the model card names a member. Raises `ConfigError` for an unknown name."""

    def change(session: Session) -> None:
        member = find_member(session, name)
        session.execute(delete(UnnamedMember).where(UnnamedMember.member_id == member.id))
        if not named:
            session.add(UnnamedMember(member_id=member.id))

    database.transact(change)


def unnamed_members(database: Database) -> frozenset[str]:
    """Return the names (not display names) of the members to omit from model cards."""
    query = (
        select(Member.name)
        .outerjoin(UnnamedMember, UnnamedMember.member_id == Member.id)
        .where(or_(UnnamedMember.member_id.is_not(None), Member.revoked_reason == REASON))
    )
    with database() as session:
        return frozenset(session.scalars(query))
