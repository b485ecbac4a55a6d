"""A rehearsed event: one seed's rehearsal in a run of its own, which is served or archived, and then deleted.

The run lies in a temporary folder and shows one moment, the event's end, for as long as it is served. Its name and a
banner on each page say that it is simulated. Nobody can join it, and nothing that it has can serve as evidence.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.context.services import open_run_services
from coordinator.rehearsed.people import drawn_people, named_people
from coordinator.rehearsed.replay import EventReplay
from coordinator.run.database_owner import open_database
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.web.app import WebState, create_app
from coordinator.web.http.server import WebServer
from peer.config.run import RunConfig
from peer.rehearsal.scenario import Scenario
from peer.rehearsal.swarm import RehearsedRun, rehearse
from peer.rehearsal.world import TakenStep, UndoneSteps
from peer.runtime.temporary import own_temporary_files

SUFFIX, NAME_CHARS = "-rehearsal", 40
DESCRIPTION = "Rehearsal: simulated, no training took place."


@dataclass(frozen=True)
class RehearsedEvent:
    """A run that was simulated, in its directory."""

    directory: RunDirectory
    run: RehearsedRun
    seed: int
    ended_at: float  # Unix seconds


def rehearsed_config(config: RunConfig) -> RunConfig:
    """Return a run file for the rehearsal of another: under another name, and of its first phase alone."""
    name = config.run.name[: NAME_CHARS - len(SUFFIX)] + SUFFIX
    run = config.run.model_copy(update={"name": name, "description": DESCRIPTION})
    dashboard = config.dashboard.model_copy(update={"try_it": False})
    return config.model_copy(update={"run": run, "dashboard": dashboard, "phases": ()})


@contextmanager
def rehearsed_event(
    config: RunConfig,
    scenario: Scenario,
    seed: int,
    settings: Settings,
    ends_at: float,
    *,
    are_drawn: bool,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[RehearsedEvent]:
    """Rehearse a scenario and write what happens into a new run, which exists for the time of the block.

    `are_drawn`: its devices have no names but those of their classes. Raises `ConfigError` for names that nobody can
    have in a run, and `StorageError`.
    """
    taken: list[TakenStep] = []

    def watch(event: TakenStep | UndoneSteps) -> None:
        if isinstance(event, TakenStep):
            taken.append(event)

    run = rehearse(config, scenario, seed, watch=watch)
    progress("Writing the event into a run of its own")
    with own_temporary_files():
        directory = RunDirectory.create(Path(tempfile.gettempdir()) / "run", rehearsed_config(config), settings)
        people = drawn_people(scenario) if are_drawn else named_people(scenario)
        with open_database(directory) as database:
            replay = EventReplay(directory, database, scenario, people, ends_at - run.duration_s)
            replay.replay(run, taken)
        yield RehearsedEvent(directory, run, seed, ends_at)


def serve_event(event: RehearsedEvent, ready: Callable[[], None]) -> None:
    """Serve the event's dashboard until SIGINT or SIGTERM; `ready` is called once its port is open."""
    asyncio.run(_serve(event, ready))


async def _serve(event: RehearsedEvent, ready: Callable[[], None]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    settings = event.directory.settings
    with open_run_services(event.directory, lambda: event.ended_at) as services:
        app = create_app(WebState(event.directory, services, is_rehearsed=True))
        web = await WebServer.start(app, settings.bind_host, settings.web_port)
        try:
            ready()
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({stopping, web.serving}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        finally:
            await web.stop()
