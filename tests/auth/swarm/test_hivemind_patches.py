"""The patches of hivemind: their places in its code, nested messages, and daemons that die."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hivemind import hivemind_cli
from hivemind.p2p import P2P
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import get_dht_time

from auth.errors import ConfigError
from auth.keys import AuthorityKey
from auth.swarm.hivemind_patches import DAEMON_VARIABLE, MAX_NESTING, patch_hivemind
from tests.support.inputs import tuples_in_tuples
from tests.support.tokens import admitted

# hivemind finds its daemon by a function of importlib that is going away
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("auth", "peer", "coordinator", "benchmarks", "tests")
PLAIN = {"benchmarks/swarm/hivemind_peer.py", "tests/system/test_addresses.py"}
MAKES = re.compile(r"\b(DHT|DHTNode\.create|P2P\.create)\(")  # a node of hivemind's own


@pytest.mark.usefixtures("forked")  # from a process that has imported keeper and worker, too
def test_importing_patches_nothing_and_a_node_brings_the_patches() -> None:
    """Nothing changes where no node is made.

    The sockets to the daemon lie where temporary files go, and the daemon is the one that the operator names.
    """
    script = """
import asyncio, psutil, sys
from hivemind.p2p import P2P
from hivemind.utils.serializer import MSGPackSerializer

def state(*_):
    mine = P2P._call_unary_protobuf_handler, P2P.call_binary_stream_handler, MSGPackSerializer._decode_ext_types
    return [*(each.__module__.split(".")[0] for each in mine), *P2P.FORCE_REACHABILITY_MAPPING]

import auth.swarm.directory, auth.swarm.hivemind_patches, coordinator.keeper.opening, peer.doctor.swarm_helper
import peer.training.worker
from auth.credentials import Credentials
from auth.swarm.directory import SwarmAccess
from peer.network.placement import Placement
from peer.swarm.board import join_dht

async def main():
    access = SwarmAccess(Credentials(sys.argv[1]), "run", frozenset())
    board = await join_dht(access, (), Placement(host_maddrs=("/ip4/127.0.0.1/tcp/0",)))
    print(state())
    print(board.p2p.daemon_listen_maddr)
    print(*[child.cmdline()[0] for child in psutil.Process().children() if child.name() == "p2pd"])
    await board.leave()

print(state())
asyncio.run(main())
"""
    with TemporaryDirectory() as folder:
        own = Path(folder) / "p2pd"
        own.symlink_to(Path(hivemind_cli.__path__[0]) / "p2pd")
        environ = os.environ | {"TMPDIR": folder, DAEMON_VARIABLE: str(own)}
        directory = admitted(Path(folder) / "ada", AuthorityKey.generate(), "run").directory
        command = [sys.executable, "-c", script, str(directory)]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, env=environ)
    patched = str(["auth"] * 3 + ["public", "private", "relayed"])
    *states, address, daemon = ran.stdout.splitlines()
    assert states == [str(["hivemind"] * 3 + ["public", "private"]), patched]
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
    """Peers, assistants and keeper join by `peer.swarm.board.join_dht`; other makers, as the doctor, patch first."""
    paths = [path for name in SOURCES for path in (ROOT / name).rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    assert {path for path, text in texts.items() if MAKES.search(text) and "patch_hivemind()" not in text} == PLAIN


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
