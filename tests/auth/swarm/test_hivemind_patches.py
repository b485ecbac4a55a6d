"""The patches of hivemind: their places in its code, streams between two real nodes over QUIC, nested messages.

`tests/peer/transport/test_transports.py` has the other behaviours of streams.
Over QUIC the daemon drops the data in flight when a stream is closed.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hivemind import hivemind_cli
from hivemind.p2p import P2P, P2PContext, P2PHandlerError
from hivemind.proto.averaging_pb2 import DownloadData, DownloadRequest
from hivemind.proto.p2pd_pb2 import RPCError
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import get_dht_time

from auth.errors import ConfigError
from auth.swarm.hivemind_patches import DAEMON_VARIABLE, MAX_NESTING, patch_hivemind
from tests.support.inputs import tuples_in_tuples
from tests.support.waiting import PATIENCE_S, eventually

# hivemind finds its daemon by a function of importlib that is going away
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
QUIC = ["/ip4/127.0.0.1/udp/0/quic-v1"]
MESSAGES = 300
A_PART = DownloadData(metadata=bytes(1300))
ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("auth", "peer", "coordinator", "benchmarks", "tests")
PLAIN = {"benchmarks/swarm/hivemind_peer.py", "tests/system/test_addresses.py"}
MAKES = re.compile(r"\b(DHT|DHTNode\.create|P2P\.create)\(")  # a node of hivemind's own


@pytest.mark.usefixtures("forked")  # from a process that has imported keeper and worker, too
def test_importing_patches_nothing_and_a_node_brings_the_patches() -> None:
    """Nothing changes where no node is made; a node's own process has what the one that made it has.

    The sockets to the daemon lie where temporary files go, and the daemon is the one that the operator names.
    """
    script = """
import psutil
from hivemind.p2p import P2P
from hivemind.utils.serializer import MSGPackSerializer

def state(*_):
    mine = P2P._add_protobuf_stream_handler, P2P._iterate_protobuf_stream_handler, MSGPackSerializer._decode_ext_types
    return [*(each.__module__.split(".")[0] for each in mine), *P2P.FORCE_REACHABILITY_MAPPING]

async def state_there(_dht, _node):
    return state()

import auth.swarm.access, auth.swarm.hivemind_patches, coordinator.keeper.opening, peer.doctor.swarm_helper
import peer.training.worker
from peer.swarm.dht import Node
print(state())
node = Node(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], use_ipfs=False)
print(state())
print(node.run_coroutine(state_there))
print(node.run_coroutine(Node._get_p2p_daemon_listen_maddr))
print(*[child.cmdline()[0] for child in psutil.Process().children(recursive=True) if child.name() == "p2pd"])
node.shutdown()
"""
    with TemporaryDirectory() as folder:
        own = Path(folder) / "p2pd"
        own.symlink_to(Path(hivemind_cli.__path__[0]) / "p2pd")
        environ = os.environ | {"TMPDIR": folder, DAEMON_VARIABLE: str(own)}
        command = [sys.executable, "-c", script]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, env=environ)
    patched = str(["auth"] * 3 + ["public", "private", "relayed"])
    *states, address, daemon = ran.stdout.splitlines()
    assert states == [str(["hivemind"] * 3 + ["public", "private"]), patched, patched]
    assert address.startswith(f"/unix{folder}/hivemind-")
    assert daemon == str(own)


@pytest.mark.parametrize("name", ["absent/p2pd", "p2pd", "other"])
def test_a_daemon_that_cannot_be_run_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is missing, is no program, or has another name than that by which its process is watched."""
    (tmp_path / "p2pd").touch(mode=0o600)
    (tmp_path / "other").touch(mode=0o700)
    monkeypatch.setenv(DAEMON_VARIABLE, str(tmp_path / name))
    with pytest.raises(ConfigError, match=rf"MANYHANDS_P2PD names .*{name}, which is no program `p2pd`"):
        patch_hivemind.__wrapped__()


def test_every_way_to_a_node_begins_with_the_patches() -> None:
    """Peers, assistants and keeper make `peer.swarm.dht.Node`; other makers, as the doctor, patch first."""
    paths = [path for name in SOURCES for path in (ROOT / name).rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    assert {path for path, text in texts.items() if MAKES.search(text) and "patch_hivemind()" not in text} == PLAIN


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[P2P, P2P]]:
    """A server and a client that know each other."""
    patch_hivemind()
    server = await P2P.create(host_maddrs=QUIC, startup_timeout=PATIENCE_S)
    client = await P2P.create(
        host_maddrs=QUIC, initial_peers=await server.get_visible_maddrs(), startup_timeout=PATIENCE_S
    )
    try:
        yield server, client
    finally:
        await client.shutdown()
        await server.shutdown()


async def call(
    client: P2P, server: P2P, requests: AsyncIterator[DownloadRequest] | None = None
) -> AsyncIterator[DownloadData]:
    """What `parts` of the server says."""
    asked = DownloadRequest() if requests is None else requests
    async for message in await client.iterate_protobuf_handler(server.peer_id, "parts", asked, DownloadData):
        yield message


def tasks_of_streams() -> list[str]:
    """Whatever of either end still runs."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name in {"_answer", "_receive", "_Asking._send_all", "ControlClient._handler"}]


async def collect(messages: AsyncIterator[DownloadData], into: list[DownloadData]) -> None:
    """Also what comes before an error."""
    async for message in messages:
        into.append(message)


async def test_every_message_arrives() -> None:
    """The last ones too, of each of many streams."""

    async def parts(_request: DownloadRequest, _context: P2PContext) -> AsyncIterator[DownloadData]:
        for _ in range(MESSAGES):
            yield A_PART

    async with two_nodes() as (server, client):
        await server.add_protobuf_handler("parts", parts, DownloadRequest, stream_output=True)
        for _ in range(20):
            assert len([message async for message in call(client, server)]) == MESSAGES


@pytest.mark.parametrize("pause_s", [0.001, 0.003, 0.01])
async def test_every_message_arrives_though_the_requests_end_late(pause_s: float) -> None:
    """The end of the requests is no hang-up: a server that has answered before it does not take it for one."""

    async def parts(requests: AsyncIterator[DownloadRequest], _context: P2PContext) -> AsyncIterator[DownloadData]:
        await anext(aiter(requests))
        for _ in range(MESSAGES):
            yield A_PART

    async def one_and_a_pause() -> AsyncIterator[DownloadRequest]:
        yield DownloadRequest()
        await asyncio.sleep(pause_s)

    async with two_nodes() as (server, client):
        await server.add_protobuf_handler("parts", parts, DownloadRequest, stream_input=True, stream_output=True)
        for _ in range(20):
            assert len([message async for message in call(client, server, one_and_a_pause())]) == MESSAGES


async def test_what_is_no_message_breaks_a_stream_off() -> None:
    """A server that says anything else is told from one that has ended, and from a fault of ours."""

    async def babble(_info: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            writer.write(b"\x07hello")
            await reader.read()

    async with two_nodes() as (server, client):
        await server.add_binary_stream_handler("parts", babble)
        with pytest.raises(P2PHandlerError, match="broke off"):
            await anext(call(client, server))


async def test_what_a_server_says_went_wrong_is_cut_short() -> None:
    """And can begin no line of its own in anybody's log."""

    async def hostile(_info: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await P2P.send_protobuf(RPCError(message="no\n" + "x" * 1_000_000), writer)
            await reader.read()

    async with two_nodes() as (server, client):
        await server.add_binary_stream_handler("parts", hostile)
        with pytest.raises(P2PHandlerError) as raised:
            await anext(call(client, server))
        assert len(str(raised.value)) < 500
        assert "\n" not in str(raised.value)


async def test_answers_before_all_is_asked_cost_no_later_stream() -> None:
    """A server that has answered lets the rest of the requests run dry: 25 streams with 3 MB more to ask each.

    None of them leaves a task behind on either side.
    """

    async def curt(requests: AsyncIterator[DownloadRequest], _context: P2PContext) -> AsyncIterator[DownloadData]:
        await anext(aiter(requests))
        yield A_PART

    async def verbose() -> AsyncIterator[DownloadData]:
        for _ in range(60):
            yield DownloadData(metadata=bytes(50_000))

    async with two_nodes() as (server, client):
        await server.add_protobuf_handler("parts", curt, DownloadData, stream_input=True, stream_output=True)
        for _ in range(25):
            messages: list[DownloadData] = []
            stream = await client.iterate_protobuf_handler(server.peer_id, "parts", verbose(), DownloadData)
            await asyncio.wait_for(collect(stream, messages), PATIENCE_S)
            assert messages == [A_PART]
        await eventually("no task of a stream is left", lambda: tasks_of_streams() == [])


def test_what_hivemind_writes_is_read() -> None:
    """Tuples in dictionaries in tuples come back as they were."""
    patch_hivemind()
    value = {"a": (1, (2.5, b"x", ({"b": (None, "y")},))), "time": get_dht_time()}
    assert MSGPackSerializer.loads(MSGPackSerializer.dumps(value)) == value


def test_the_bound_is_exact_and_leaves_nothing_behind() -> None:
    """One level more is refused, and what comes after is read as ever; patching again changes nothing."""
    for _ in range(3):
        patch_hivemind()
        MSGPackSerializer.loads(tuples_in_tuples(MAX_NESTING))
        with pytest.raises(ValueError, match="nested"):
            MSGPackSerializer.loads(tuples_in_tuples(MAX_NESTING + 1))


@pytest.mark.parametrize(("last_act", "told"), [("kill -9 $$", "exit code -9, SIGKILL"), ("exit 3", "exit code 3")])
async def test_a_daemon_that_dies_is_told_of_with_its_last_lines(
    caplog: pytest.LogCaptureFixture, last_act: str, told: str
) -> None:
    """In one sentence, which the log keeps; one that cannot start says why to the caller."""
    patch_hivemind()
    for first, is_ready in ("Peer ID: Qm", True), ("bind: in use", False):
        p2p, ready = object.__new__(P2P), asyncio.get_running_loop().create_future()
        p2p._client = p2p._listen_task = p2p._reader_task = p2p._client_listen_maddr = None
        command = f"echo '{first}'; {last_act}"
        p2p._child = await asyncio.create_subprocess_exec("/bin/sh", "-c", command, stdout=asyncio.subprocess.PIPE)
        await p2p._read_outputs(ready)
        if is_ready:
            assert caplog.messages == [f"The p2p daemon has died ({told}); its last lines: {first}"]
        else:
            assert str(ready.exception()) == f"Daemon failed to start ({told}): {first}"
