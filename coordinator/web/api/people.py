"""The public API about people: everybody, one member, who was here when; names are those that the public may see."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel

from auth.certificates import write_certificate
from auth.errors import RequestError
from coordinator.statistics.member import certify
from coordinator.statistics.people import (
    MOST_STAYS,
    HardwareClass,
    LeaderboardPeriod,
    LeaderboardRow,
    Person,
    StayRow,
    leaderboard,
    people,
    stays,
)
from coordinator.store.ledger_models import DAY_S
from coordinator.web.api.member import MemberPage, member_page
from coordinator.web.api.run import cached, live_of
from coordinator.web.http.answers import Cursor, cursor_of, key_of

REFRESH_S = 2.0  # what is read from the store for these answers is so old at most
MAX_PEOPLE = 500
SPAN_S = 14 * DAY_S
router = APIRouter(prefix="/api/v1", tags=["people"])
Number = Annotated[int, Path(ge=1, le=2**31 - 1)]
Time = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Unix seconds.")]


class ActiveDevice(BaseModel):
    """A machine that is connected now."""

    number: int
    kind: HardwareClass
    state: str
    samples_per_second: float


class Participant(BaseModel):
    """A member in the days and on the hardware that were asked for; `active` is of now, and of all hardware."""

    number: int
    member: str
    rank: int | None  # null: nothing was given
    samples: int  # as receipts confirm
    pending_samples: int
    training_s: float
    averaged_bytes: int
    active_days: int
    devices: int
    active: list[ActiveDevice]
    last_seen_at: float | None


class Participants(BaseModel):
    """In the order of the leaderboard, then those who gave nothing."""

    window: LeaderboardPeriod
    kind: HardwareClass | None
    taken_at: float
    total: int
    participants: list[Participant]
    next: str | None


class Stays(BaseModel):
    """Sessions as columns, in the order of their beginnings; a member's number names it in `members`."""

    since: float
    until: float
    complete: bool  # false: of these there were too many, and the oldest are left out
    member: list[int]
    device: list[int]
    kind: list[HardwareClass]
    began_at: list[float]
    ended_at: list[float]  # or when it was last heard of
    online: list[bool]
    members: dict[int, str]


class Authority(BaseModel):
    """The run's Ed25519 key, by which its certificates are checked."""

    run: str
    key: str  # 64 hex digits


@router.get("/participants", response_model=Participants)
async def participants(
    request: Request,
    window: LeaderboardPeriod = LeaderboardPeriod.ALL,
    kind: HardwareClass | None = None,
    cursor: Cursor = "",
    limit: Annotated[int, Query(ge=1, le=MAX_PEOPLE)] = MAX_PEOPLE,
) -> Response:
    """Everybody who takes part: what they gave in these UTC days, on this kind of hardware, and who is here now."""
    after = key_of(cursor, (int, int, int))
    make = partial(participants_of, request.app.state, window, kind, after, limit)
    return await cached(request, ("participants", window, kind, cursor, limit), _version(request), make)


@router.get("/participants/{number}", response_model=MemberPage)
async def member(request: Request, number: Number) -> Response:
    """What came of every sample of one member, devices, stays, days, and the steps that they are in."""
    services = request.app.state.services
    make = partial(member_page, services.database, number, live_of(request).current.taken_at)
    return await cached(request, ("member", number), _version(request), make)


@router.get("/participants/{number}/certificate")
def certificate(request: Request, number: Number) -> Response:
    """A certificate of contribution, signed now: see `manyhands verify`."""
    services = request.app.state.services
    run = services.config.run.name
    try:
        signed = certify(services.database, request.app.state.authority(), run, number, services.clock())
    except RequestError as error:
        raise HTTPException(404, str(error)) from error
    name = f'attachment; filename="certificate-{number}.json"'
    headers = {"Content-Disposition": name, "Cache-Control": "no-store"}
    return Response(write_certificate(signed), media_type="application/json", headers=headers)


@router.get("/stays", response_model=Stays)
async def all_stays(
    request: Request,
    since: Time = None,
    until: Time = None,
    number: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> Response:
    """Who was connected when, in this span (by default the last fourteen days), of everybody or one member."""
    make = partial(_stays, request, since, until, number)
    return await cached(request, ("stays", since, until, number), _version(request), make)


@router.get("/authority", response_model=Authority)
async def authority(request: Request) -> Response:
    """By which key the run's certificates are signed."""
    services = request.app.state.services
    key = services.authority_public.hex()
    return await cached(request, "authority", key, lambda: Authority(run=services.config.run.name, key=key))


def _version(request: Request) -> int:
    """The same for a little while."""
    return int(live_of(request).current.taken_at // REFRESH_S)


def participants_of(
    state: Any,
    window: LeaderboardPeriod = LeaderboardPeriod.ALL,
    kind: HardwareClass | None = None,
    after: Sequence[Any] | None = None,
    limit: int = MAX_PEOPLE,
) -> Participants:
    """See `participants`; `state` is the application's, `after` the key of the last row before."""
    now = state.live.current.taken_at
    everybody = people(state.database, now, window)
    places = {place.person.number: place for place in leaderboard(everybody, kind)}
    keyed = sorted((_key(person, kind), person) for person in everybody)
    rest = [(key, person) for key, person in keyed if after is None or key > tuple(after)]
    shown = rest[:limit]
    return Participants(
        window=window,
        kind=kind,
        taken_at=now,
        total=len(everybody),
        participants=[_participant(person, kind, places.get(person.number)) for _, person in shown],
        next=cursor_of(shown[-1][0]) if len(rest) > limit else None,
    )


def _key(person: Person, kind: HardwareClass | None) -> tuple[int, int, int]:
    given = person.given(kind)
    return -given.samples, -given.averaged_bytes, person.number


def _participant(person: Person, kind: HardwareClass | None, place: LeaderboardRow | None) -> Participant:
    given = person.given(kind)
    return Participant(
        number=person.number,
        member=person.name,
        rank=None if place is None else place.rank,
        samples=given.samples,
        pending_samples=given.pending_samples,
        training_s=round(given.elapsed_s, 1),
        averaged_bytes=given.averaged_bytes,
        active_days=len(given.days),
        devices=len(person.devices),
        active=[
            ActiveDevice(
                number=each.number,
                kind=each.kind,
                state=each.state,
                samples_per_second=round(each.samples_per_second, 3),
            )
            for each in person.devices
            if each.online
        ],
        last_seen_at=person.last_seen_at,
    )


def _stays(request: Request, since: float | None, until: float | None, number: int | None) -> Stays:
    now = live_of(request).current.taken_at
    until = now if until is None else until
    since = until - SPAN_S if since is None else since
    database = request.app.state.database
    rows: Sequence[StayRow] = stays(database, since, until, now, number, MOST_STAYS + 1)
    kept = rows[-MOST_STAYS:]
    here = {row.member_number for row in kept}
    return Stays(
        since=since,
        until=until,
        complete=len(rows) <= MOST_STAYS,
        member=[row.member_number for row in kept],
        device=[row.device_number for row in kept],
        kind=[row.kind for row in kept],
        began_at=[round(row.began_at, 1) for row in kept],
        ended_at=[round(row.ended_at, 1) for row in kept],
        online=[row.is_online for row in kept],
        members={
            person.number: person.name
            for person in people(database, now, LeaderboardPeriod.DAY)
            if person.number in here
        },
    )
