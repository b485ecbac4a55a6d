"""The state shared by all routes of the dashboard; FastAPI injects it into routes as `Web`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated

from fastapi import Depends, HTTPException, Request, Response

from auth.join_link import JoinLink
from coordinator.context.services import RunServices
from coordinator.members.administrators import Administrators, LoginTries
from coordinator.run.directory import RunDirectory
from coordinator.run.software import CONSTRAINTS_NAME, NOTEBOOK_NAME, SKILL_NAME, notebook_for, skill_for
from coordinator.store.engine import Database
from coordinator.store.notify import Topic
from coordinator.throttling.rate_limits import CallerPace, CallerPlaces, http_caller
from coordinator.web.http.answers import AnswerCache, Encoded, Make, answer, encode
from coordinator.web.http.login import TRIES_PER_MINUTE, LoginDesk
from coordinator.web.http.site import Guide
from coordinator.web.state.frozen import Archive
from coordinator.web.state.live import LiveSnapshot
from coordinator.web.state.metrics import metrics_text
from coordinator.web.state.snapshot import Snapshot, take_snapshot
from dashboards import GUIDE
from peer.config.run import RunConfig

ASKS_PER_MINUTE = 30  # limit per address; comparing checkpoints sends one question to each


@dataclass(frozen=True)
class WebState:
    """The state of a run's dashboard in one event loop; each process has its own rate limits."""

    directory: RunDirectory
    services: RunServices
    archive: Archive | None = None  # set while an archive is written from a single snapshot
    guide: Guide = field(default_factory=partial(Guide, GUIDE))
    answers: AnswerCache = field(default_factory=AnswerCache)
    # Separate caches keep other responses from evicting costly ones.
    cards: AnswerCache = field(default_factory=partial(AnswerCache, 1))
    moments: AnswerCache = field(default_factory=partial(AnswerCache, 32))  # an entry takes 250 KB with forty devices
    asks: CallerPace = field(default_factory=partial(CallerPace, ASKS_PER_MINUTE, time.monotonic))
    downloads: CallerPlaces = field(default_factory=partial(CallerPlaces, 8, per_caller=2))  # checkpoint downloads
    exports: CallerPlaces = field(default_factory=partial(CallerPlaces, 2, per_caller=1))  # history downloads
    streams: CallerPlaces = field(default_factory=partial(CallerPlaces, 768, per_caller=32))  # event streams

    def prepare(self) -> None:
        """Build the join link, metrics and software files, which are cached until a restart."""
        _ = self.join_link, self.metrics, self.software

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self.services.config

    @property
    def database(self) -> Database:
        """The run's store."""
        return self.services.database

    @property
    def snapshot(self) -> Snapshot:
        """The latest snapshot of the run."""
        return self.live.current

    @cached_property
    def live(self) -> LiveSnapshot:
        """The latest snapshot, refreshed during the application's lifespan."""
        return LiveSnapshot(partial(take_snapshot, self.services), self.services.bell.ear(Topic.PROGRESS))

    @cached_property
    def join_link(self) -> str:
        """The link for joining the run."""
        return str(self.directory.join_link)

    @cached_property
    def software(self) -> Mapping[str, Encoded]:
        """The run's software files by name, encoded as responses."""
        software, web_address = self.services.software, self.services.web_address
        address = self.services.software_address
        notebook = notebook_for(address, self.join_link)
        skill = skill_for(address, JoinLink.parse(self.join_link), f"{web_address}/join")
        return {
            software.name: Encoded(software.wheel, "application/octet-stream", f'"{software.sha256}"', compressed=None),
            CONSTRAINTS_NAME: encode(software.constraints, "text/plain; charset=utf-8"),
            NOTEBOOK_NAME: encode(notebook, "application/x-ipynb+json"),
            SKILL_NAME: encode(skill, "text/markdown; charset=utf-8"),
        }

    @cached_property
    def login_desk(self) -> LoginDesk:
        """The rate-limited login of administrators."""
        tries = LoginTries(self.database, TRIES_PER_MINUTE, self.services.clock)
        return LoginDesk(Administrators(self.database, self.services.clock), tries)

    @cached_property
    def metrics(self) -> Callable[[], bytes]:
        """A function that renders the metrics in the Prometheus text format."""
        return metrics_text(self.directory, self.services.telemetry, lambda: self.snapshot)

    async def answer(self, request: Request, question: Hashable, version: Hashable, make: Make) -> Response:
        """Respond with the result of `make`, run in a thread once per `question` and `version`."""
        return answer(request, await self.answers.get(question, version, make))


async def web_state(request: Request) -> WebState:
    """Return the state of the application (a FastAPI dependency)."""
    state: WebState = request.app.state.web
    return state


Web = Annotated[WebState, Depends(web_state)]


def place_among(places: Callable[[WebState], CallerPlaces], reason: str) -> Callable[..., AsyncIterator[None]]:
    """Return a dependency that holds a slot while serving a request; 503 if none is free."""

    async def place(request: Request, web: Web) -> AsyncIterator[None]:
        caller, taken = http_caller(request.client), places(web)
        if not taken.enter(caller):
            raise HTTPException(503, f"{reason}: try again in a minute.", {"Retry-After": "60"})
        try:
            yield
        finally:
            taken.leave(caller)

    return place
