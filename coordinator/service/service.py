"""The service process: control plane (gRPC) and dashboard (HTTP) with one database and event loop.

The service never forks, imports neither torch nor hivemind, and shares only the database with the
keeper. For thousands of sessions, it raises the limit on open files and makes full garbage
collections rare. With 5000 sessions, a collection takes 0.4 s and frees almost nothing, and
dashboard reads would trigger one about every two seconds.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from auth.errors import ManyhandsError
from coordinator.context.changes import listening
from coordinator.context.services import RunServices, open_run_services
from coordinator.control.door import DoorLimits
from coordinator.control.server import ControlServer, TlsFiles
from coordinator.run.directory import RunDirectory
from coordinator.service.descriptors import descriptors_needed
from coordinator.web.app import create_app
from coordinator.web.http.server import WebServer
from coordinator.web.state.web_state import WebState
from peer.config.trust import unpinned
from peer.runtime.processes import raise_descriptor_limit

logger = logging.getLogger(__name__)

FULL_EVERY_S = 60.0
_NEVER = 2**31 - 1  # a threshold of the garbage collector that is never reached
AppFactory = Callable[[RunDirectory, RunServices], FastAPI]


def dashboard(directory: RunDirectory, services: RunServices) -> FastAPI:
    """Create the web application of the service."""
    return create_app(WebState(directory, services))


def serve(directory: RunDirectory, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; call `ready` once both ports are open."""
    raise_descriptor_limit(descriptors_needed(directory.settings))
    asyncio.run(_serve_until_signal(directory, ready))


async def run_service(
    directory: RunDirectory, ready: Callable[[], None], stop: asyncio.Event, make_app: AppFactory = dashboard
) -> None:
    """Serve until `stop` is set; then close the sessions, so that peers reconnect."""
    settings = directory.settings
    tls = TlsFiles(directory.tls_key_path, directory.tls_cert_path)
    for warning in unpinned(directory.config):
        logger.warning("%s", warning)
    async with _opened(directory) as services:
        limits = DoorLimits.of(settings)
        control = await ControlServer.start(services, settings.bind_host, settings.control_port, tls, limits)
        try:
            app = make_app(directory, services)
            web = await WebServer.start(app, settings.bind_host, settings.web_port, settings.trusted_proxies)
            try:
                ready()
                await _until_either(stop, web.serving)
            finally:
                await web.stop()
        finally:
            await control.stop()
    if not stop.is_set():
        raise ManyhandsError("The dashboard ended by itself; the log says why.")


@asynccontextmanager
async def _opened(directory: RunDirectory) -> AsyncIterator[RunServices]:
    """Open the run's services, and listen for database changes by other processes."""
    with open_run_services(directory, time.time) as services:
        async with listening(services.database.engine, services.bell):
            yield services


async def _serve_until_signal(directory: RunDirectory, ready: Callable[[], None]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with rare_full_collections():
        await run_service(directory, ready, stop)


async def _until_either(stop: asyncio.Event, serving: asyncio.Task[None]) -> None:
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()


@asynccontextmanager
async def rare_full_collections(every_s: float = FULL_EVERY_S) -> AsyncIterator[None]:
    """Within the block, run a full garbage collection only every `every_s` seconds.

    Objects that exist beforehand are not examined; younger generations are collected as usual.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds[:2], _NEVER)
    collecting = asyncio.create_task(_collect(every_s))
    try:
        yield
    finally:
        collecting.cancel()
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def _collect(every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        gc.collect()
