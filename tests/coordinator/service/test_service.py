"""The service process: ports, an end in order on SIGTERM, enough open files, and rare full garbage collections."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import resource
import socket
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from auth.errors import PortTakenError, StorageError
from auth.keys import TLS_NAME, DeviceKey
from coordinator.control.door import DESCRIPTORS, DoorLimits
from coordinator.control.server import SERVICE_NAME
from coordinator.members.membership import Membership
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.service.service import (
    descriptors_needed,
    raise_descriptor_limit,
    rare_full_collections,
    run_service,
    serve,
)
from coordinator.store.engine import Database, open_engine
from peer.config.run import RunConfig
from peer.control.client import ControlClient
from tests.support.ports import free_ports
from tests.support.stores import put_tables
from tests.support.waiting import PATIENCE_S, eventually, wait_until


class Knot:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


@pytest.fixture
def frozen_again() -> Iterator[None]:
    """Leave the collector of the tests' process as it was: see `pytest_collection_finish`."""
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("frozen_again")
async def test_much_that_lives_brings_about_no_full_collection() -> None:
    """Outside the block the same does."""
    async with rare_full_collections():
        before = full_collections()
        kept = [[number] for number in range(500_000)]
        assert full_collections() == before
    kept += [[number] for number in range(1_000_000)]
    assert full_collections() > before


@pytest.mark.usefixtures("frozen_again")
async def test_old_garbage_goes_when_the_collection_is_due() -> None:
    """Also what the young generations have passed on."""
    async with rare_full_collections(every_s=0.05):
        knot = Knot()
        gc.collect(1)
        gone = weakref.ref(knot)
        del knot
        await eventually("the object is collected", lambda: gone() is None)


@pytest.mark.usefixtures("frozen_again")
async def test_afterwards_all_is_as_before() -> None:
    """Thresholds, and what the collector walks over."""
    thresholds = gc.get_threshold()
    async with rare_full_collections():
        assert gc.get_freeze_count() > 0
    await asyncio.sleep(0)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)


pytestmark = pytest.mark.usefixtures("forked")

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    control_port, web_port = free_ports("127.0.0.1", 2)
    settings = Settings(bind_host="127.0.0.1", control_port=control_port, web_port=web_port)
    config = RunConfig.from_mapping({"run": {"name": "test"}})
    return RunDirectory.create(tmp_path / "run", config, settings, prepare=put_tables)


@asynccontextmanager
async def running(directory: RunDirectory) -> AsyncIterator[None]:
    ready, stop = asyncio.Event(), asyncio.Event()
    service = asyncio.create_task(run_service(directory, ready.set, stop))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({service, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        if not service.done():
            yield
    finally:
        stop.set()
        await asyncio.wait_for(service, PATIENCE_S)


async def http_status(port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    await writer.wait_closed()
    return status


async def health_of(directory: RunDirectory, service: str) -> int:
    options = [("grpc.ssl_target_name_override", TLS_NAME)]
    credentials = grpc.ssl_channel_credentials(directory.tls_cert_path.read_bytes())
    address = f"127.0.0.1:{directory.settings.control_port}"
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
        return int(reply.status)


def membership_of(directory: RunDirectory) -> Membership:
    """What the operator's command opens, beside the running service."""
    database = Database(open_engine(directory.database_url))
    return Membership(database, directory.authority, "test", 3600, time.time)


async def test_when_it_is_ready_both_planes_answer(directory: RunDirectory) -> None:
    """The health service says SERVING for the server and for the control plane, and the dashboard is there."""
    async with running(directory):
        assert await health_of(directory, "") == SERVING
        assert await health_of(directory, SERVICE_NAME) == SERVING
        assert await http_status(directory.settings.web_port, "/healthz") == 200


async def test_a_peer_joins_by_the_run_directorys_own_link(directory: RunDirectory, tmp_path: Path) -> None:
    """The link that `init` printed and the code that `invite` printed are all a volunteer needs."""
    code = membership_of(directory).invite("Ada")[0]
    async with running(directory):
        client = await ControlClient.connect(directory.join_link, time.time)
        reply = await client.join(DeviceKey.load_or_create(tmp_path / "device.key"), code)
        await client.close()
        assert reply.member == "Ada"


@pytest.mark.parametrize("port_of", ["control_port", "web_port"])
async def test_a_taken_port_is_named_and_nothing_stays_open(directory: RunDirectory, port_of: str) -> None:
    """Whichever of its ports is taken, the service ends at once, says which, and releases the other."""
    port = getattr(directory.settings, port_of)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortTakenError, match=str(port)):
        await asyncio.wait_for(run_service(directory, lambda: None, asyncio.Event()), PATIENCE_S)
    async with running(directory):
        assert await health_of(directory, "") == SERVING


async def test_a_missing_certificate_is_named(directory: RunDirectory) -> None:
    """The service does not start without its key pair, and says which file it misses."""
    directory.tls_cert_path.unlink()
    with pytest.raises(StorageError, match=r"tls\.crt"):
        await run_service(directory, lambda: None, asyncio.Event())


def _serve(path: Path, ready: Event) -> None:
    serve(RunDirectory.open(path), ready.set)


def test_sigterm_ends_the_process_in_order(directory: RunDirectory) -> None:
    """A service that is told to stop exits 0 and leaves its ports to the next."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    process = spawn.Process(target=_serve, args=(directory.path, ready))
    process.start()
    try:
        wait_until("the service is ready or has ended", lambda: ready.is_set() or not process.is_alive())
        assert process.is_alive()
        assert process.pid is not None
        process.terminate()
        process.join(PATIENCE_S)
        assert process.exitcode == 0
        asyncio.run(_start_and_stop(directory))
    finally:
        if process.is_alive():
            process.kill()
            process.join()


async def _start_and_stop(directory: RunDirectory) -> None:
    async with running(directory):
        pass


@pytest.fixture(autouse=True)
def few_files() -> Iterator[int]:
    """This process may open fewer files than it could, for the time of a test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    yield 512
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_as_far_as_it_is_needed(few_files: int) -> None:
    """And no further, and never lowered."""
    raise_descriptor_limit(few_files + 88)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files + 88
    raise_descriptor_limit(few_files)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files + 88


def test_more_than_allowed_is_no_error() -> None:
    """Then it is all that the system allows."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    raise_descriptor_limit(2**40)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert soft in (most, 2**40)


def test_every_session_needs_some() -> None:
    """What an operator sets for sessions moves what the door lets in, and so what must be open."""
    few, many = (Settings(max_sessions=count) for count in (10, 1010))
    assert descriptors_needed(many) - descriptors_needed(few) == 1000 * DESCRIPTORS
    assert DoorLimits.of(many).sessions == 1010
    assert DoorLimits.of(Settings()) == DoorLimits()
