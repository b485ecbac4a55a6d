"""Issues certificates of contribution: gathers what a member has given, and signs it with the authority's key."""

from __future__ import annotations

from datetime import datetime, timezone

from sqlalchemy import select

from auth.certificates import MAX_DEVICES, Certificate, SignedCertificate, sign_certificate
from auth.errors import RequestError
from auth.keys import AuthorityKey
from coordinator.statistics.member import steps_of
from coordinator.statistics.people import Person, midnight, people
from coordinator.store.engine import Database
from coordinator.store.models import KEEPER_ROLE, Device


def certify(database: Database, authority: AuthorityKey, run: str, number: int, now: float) -> SignedCertificate:
    """The certificate of the member of this number; raises `RequestError` for who is nobody, or has given nothing."""
    found = people(database, now, number=number)
    if not found or not found[0].given().days:
        raise RequestError(f"Member {number} has nothing yet that could be certified.")
    return sign_certificate(authority, _certificate(database, found[0], run, now))


def _certificate(database: Database, person: Person, run: str, now: float) -> Certificate:
    given = person.given()
    return Certificate(
        run=run,
        member=person.name,
        number=person.number,
        samples=given.samples,
        steps=steps_of(database, person.number).steps,
        active_days=len(given.days),
        first_day=_date(min(given.days)),
        last_day=_date(max(given.days)),
        training_s=round(given.elapsed_s),
        averaged_bytes=given.averaged_bytes,
        devices=_identities(database, person.number),
        issued_at=int(now),
    )


def _identities(database: Database, number: int) -> tuple[str, ...]:
    mine = select(Device.peer_id).where(Device.member_id == number, Device.role != KEEPER_ROLE)
    with database() as session:
        return tuple(session.scalars(mine.order_by(Device.number.desc()).limit(MAX_DEVICES)))


def _date(day: int) -> str:
    return datetime.fromtimestamp(midnight(day), timezone.utc).date().isoformat()
