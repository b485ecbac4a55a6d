"""The public API for members and their sessions, with public names only.

Times are Unix times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from pydantic import AfterValidator, BaseModel

from auth.certificates import write_certificate
from auth.errors import RequestError
from coordinator.statistics.member import DayFacts, LossFacts, StepsFacts, certify, days_of, losses_of, steps_of
from coordinator.statistics.people import (
    MOST_STAYS,
    DeviceFacts,
    HardwareClass,
    LeaderboardPeriod,
    LeaderboardRow,
    Person,
    Streaks,
    leaderboard,
    midnight,
    people,
    stays,
    streaks,
)
from coordinator.store.engine import Database
from coordinator.store.ledger_models import DAY_S, day_of
from coordinator.web.http.answers import Cursor, Tenths, columns, cursor_of, key_of
from coordinator.web.state.web_state import Web, WebState

REFRESH_S = 2.0  # maximum age of cached responses in seconds
MAX_PEOPLE = 500
SPAN_S = 14 * DAY_S
router = APIRouter(prefix="/api/v1", tags=["people"])
Number = Annotated[int, Path(ge=1, le=2**31 - 1)]
Time = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Unix seconds.")]
SHOWN_DAYS = 366
SHOWN_DEVICES = 100
SHOWN_STAYS = 1000


class ActiveDevice(BaseModel):
    """A device that is currently connected."""

    number: int
    kind: HardwareClass
    state: str
    samples_per_second: Annotated[float, AfterValidator(partial(round, ndigits=3))]


class Participant(BaseModel):
    """A member's contribution in a period, on one kind of hardware or on all kinds."""

    number: int
    member: str
    rank: int | None  # rank on the leaderboard; null without a contribution
    samples: int  # samples confirmed by receipts
    pending_samples: int
    training_s: Tenths
    averaged_bytes: int
    active_days: int
    devices: int
    device_numbers: list[int]
    hardware: HardwareClass  # hardware class of the device that contributed most
    active: list[ActiveDevice]  # online devices
    last_seen_at: float | None


class Participants(BaseModel):
    """One page of the list of all members, ordered by contribution."""

    window: LeaderboardPeriod
    kind: HardwareClass | None
    taken_at: float
    total: int
    online: int  # number of members with a connected device
    participants: list[Participant]
    next: str | None


class Stays(BaseModel):
    """Sessions as columns, ordered by start time; `members` maps members' numbers to names."""

    since: float
    until: float
    complete: bool  # False if the oldest sessions are omitted because of the limit
    member: list[int]
    device: list[int]
    kind: list[HardwareClass]
    began_at: list[Tenths]
    ended_at: list[Tenths]  # end of the session; if it is open, time of the device's last message
    online: list[bool]
    members: dict[int, str]


class Authority(BaseModel):
    """The run's public Ed25519 key, for verifying the run's certificates."""

    run: str
    key: str  # public key, 64 hexadecimal digits


class DeviceOnPage(BaseModel):
    """One device of a member."""

    number: int
    kind: HardwareClass
    joined_at: float
    samples: int
    training_s: Tenths
    averaged_bytes: int
    online: bool
    state: str
    samples_per_second: Annotated[float, AfterValidator(partial(round, ndigits=3))]
    last_seen_at: float | None


class DayOnPage(BaseModel):
    """A member's samples on one UTC day."""

    began_at: float
    samples: int  # samples confirmed by receipts
    pending_samples: int  # samples without any receipt so far
    training_s: Tenths
    lost: dict[str, int]  # number of lost samples by cause


class StayOnPage(BaseModel):
    """One session of a device."""

    device: int
    began_at: Tenths
    ended_at: Tenths
    online: bool


class MemberPage(BaseModel):
    """The public information about one member."""

    number: int
    member: str
    rank: int | None
    members: int  # number of members on the leaderboard
    samples: int
    pending_samples: int
    lost_samples: int
    training_s: Tenths
    averaged_bytes: int
    streaks: Streaks
    devices_total: int
    devices: list[DeviceOnPage]  # online devices first, then the most recently seen
    losses: list[LossFacts]  # causes of lost samples, most samples first
    days: list[DayOnPage]  # the latest days, in chronological order
    steps: StepsFacts
    stays: list[StayOnPage]  # the latest sessions, in chronological order
    last_seen_at: float | None
    taken_at: float


def member_page(database: Database, number: int, now: float) -> MemberPage:
    """Return a member's public information. Raises `HTTPException` 404 for an unknown number."""
    everybody = people(database, now)
    person = next((each for each in everybody if each.number == number), None)
    if person is None:
        raise HTTPException(404, f"No member has the number {number}.")
    places = leaderboard(everybody)
    days = days_of(database, number)
    losses = losses_of(database, number, days)
    given = person.given()
    return MemberPage(
        number=number,
        member=person.name,
        rank=next((place.rank for place in places if place.person is person), None),
        members=len(places),
        samples=given.samples,
        pending_samples=given.pending_samples,
        lost_samples=sum(each.samples for each in losses),
        training_s=given.elapsed_s,
        averaged_bytes=given.averaged_bytes,
        streaks=streaks(given.days, day_of(now)),
        devices_total=len(person.devices),
        devices=[
            DeviceOnPage(**vars(each), **vars(each.given), training_s=each.given.elapsed_s) for each in _newest(person)
        ],
        losses=losses,
        days=[_day(day, days[day]) for day in list(days)[-SHOWN_DAYS:]],
        steps=steps_of(database, number),
        stays=[StayOnPage(**vars(row)) for row in stays(database, 0.0, now, now, number, SHOWN_STAYS)],
        last_seen_at=person.last_seen_at,
        taken_at=now,
    )


def _newest(person: Person) -> Sequence[DeviceFacts]:
    ordered = sorted(person.devices, key=lambda each: (not each.online, -(each.last_seen_at or 0.0), -each.number))
    return ordered[:SHOWN_DEVICES]


def _day(day: int, facts: DayFacts) -> DayOnPage:
    lost = {cause: samples for cause, samples in facts.lost.items() if samples}
    return DayOnPage(**vars(facts) | {"lost": lost}, began_at=midnight(day), training_s=facts.elapsed_s)


@router.get("/participants", response_model=Participants)
async def participants(
    request: Request,
    web: Web,
    window: LeaderboardPeriod = LeaderboardPeriod.ALL,
    kind: HardwareClass | None = None,
    cursor: Cursor = "",
    limit: Annotated[int, Query(ge=1, le=MAX_PEOPLE)] = MAX_PEOPLE,
) -> Response:
    """List all members' contributions in a period (UTC days), on one or all kinds of hardware."""
    after = key_of(cursor, (int, int, int))
    make = partial(participants_of, web, window, kind, after, limit)
    return await web.answer(request, ("participants", window, kind, cursor, limit), _version(web), make)


@router.get("/participants/{number}", response_model=MemberPage)
async def member(request: Request, web: Web, number: Number) -> Response:
    """Return a member's samples (counted, pending, lost), devices, sessions, days and steps."""
    make = partial(member_page, web.database, number, web.snapshot.taken_at)
    return await web.answer(request, ("member", number), _version(web), make)


@router.get("/participants/{number}/certificate")
def certificate(web: Web, number: Number) -> Response:
    """Issue a signed certificate of contribution, which `manyhands verify` checks."""
    try:
        signed = certify(web.database, web.directory.authority, web.config.run.name, number, web.services.clock())
    except RequestError as error:
        raise HTTPException(404, str(error)) from error
    name = f'attachment; filename="certificate-{number}.json"'
    headers = {"Content-Disposition": name, "Cache-Control": "no-store"}
    return Response(write_certificate(signed), media_type="application/json", headers=headers)


@router.get("/stays", response_model=Stays)
async def all_stays(
    request: Request,
    web: Web,
    since: Time = None,
    until: Time = None,
    number: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> Response:
    """List the sessions of one or all members in a period (default: the last 14 days)."""
    make = partial(_stays, web, since, until, number)
    return await web.answer(request, ("stays", since, until, number), _version(web), make)


@router.get("/authority", response_model=Authority)
async def authority(request: Request, web: Web) -> Response:
    """Return the key that verifies the run's certificates."""
    key = web.services.authority_public.hex()
    return await web.answer(request, "authority", key, partial(Authority, run=web.config.run.name, key=key))


def _version(web: WebState) -> int:
    """Return a cache version that changes every `REFRESH_S` seconds."""
    return int(web.snapshot.taken_at // REFRESH_S)


def participants_of(
    web: WebState,
    window: LeaderboardPeriod = LeaderboardPeriod.ALL,
    kind: HardwareClass | None = None,
    after: Sequence[Any] | None = None,
    limit: int = MAX_PEOPLE,
) -> Participants:
    """Build the response for `/api/v1/participants`; `after` is the previous page's last key."""
    now = web.snapshot.taken_at
    everybody = people(web.database, now, window)
    places = {place.person.number: place for place in leaderboard(everybody, kind)}
    keyed = sorted((_key(person, kind), person) for person in everybody)
    rest = [(key, person) for key, person in keyed if after is None or key > tuple(after)]
    shown = rest[:limit]
    return Participants(
        window=window,
        kind=kind,
        taken_at=now,
        total=len(everybody),
        online=sum(person.online for person in everybody),
        participants=[_participant(person, kind, places.get(person.number)) for _, person in shown],
        next=cursor_of(shown[-1][0]) if len(rest) > limit else None,
    )


def _key(person: Person, kind: HardwareClass | None) -> tuple[int, int, int]:
    given = person.given(kind)
    return -given.samples, -given.averaged_bytes, person.number


def _participant(person: Person, kind: HardwareClass | None, place: LeaderboardRow | None) -> Participant:
    given = person.given(kind)
    return Participant(
        **vars(given),
        number=person.number,
        member=person.name,
        rank=None if place is None else place.rank,
        training_s=given.elapsed_s,
        active_days=len(given.days),
        devices=len(person.devices),
        device_numbers=[each.number for each in person.devices],
        hardware=person.hardware,
        active=[ActiveDevice(**vars(each)) for each in person.devices if each.online],
        last_seen_at=person.last_seen_at,
    )


def _stays(web: WebState, since: float | None, until: float | None, number: int | None) -> Stays:
    now = web.snapshot.taken_at
    until = now if until is None else until
    since = until - SPAN_S if since is None else since
    rows = stays(web.database, since, until, now, number, MOST_STAYS + 1)
    kept = rows[-MOST_STAYS:]
    here, everybody = {row.member for row in kept}, people(web.database, now, LeaderboardPeriod.DAY)
    return Stays(
        since=since,
        until=until,
        complete=len(rows) <= MOST_STAYS,
        **columns(kept, "member", "device", "kind", "began_at", "ended_at", "online"),
        members={person.number: person.name for person in everybody if person.number in here},
    )
