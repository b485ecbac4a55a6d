"""A peer checks the coordinator's offer of a checkpoint and downloads it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from auth.errors import RequestError, StorageError, UnreachableError
from peer.control.checkpoints import (
    FIRST_PAUSE_S,
    SPARE_BYTES,
    CheckpointOffer,
    OfferedFile,
    download_checkpoint,
    part_of,
    read_offer,
)
from peer.network.traffic import Throttle
from peer.protocol import STATE_FILES, control_pb2
from peer.reporting.messages import CheckpointWanted
from tests.support.ports import free_ports
from tests.support.small_disks import small_disk
from tests.support.web_files import WebFiles, serve_files

WANTED = CheckpointWanted(most_bytes=1000, most_steps=3)


def reply(**changes: Any) -> control_pb2.CheckpointReply:
    """A good offer, but for the changes."""
    files = [control_pb2.RunFile(name=name, size_bytes=400, sha256=b"d" * 32) for name in STATE_FILES]
    fields = {"address": "https://run.example/api/v1/checkpoints/7", "step": 7, "swarm_step": 7, "files": files}
    return control_pb2.CheckpointReply(**{**fields, **changes})


def test_the_state_of_now_is_worth_fetching() -> None:
    """Whole, with its digests; a run without checkpoints, or one that has gone on, offers nothing to start from."""
    offer = read_offer(reply(), WANTED)
    assert offer is not None
    assert (offer.step, offer.host, offer.size_bytes) == (7, "run.example", 800)
    assert read_offer(reply(swarm_step=7 + WANTED.most_steps), WANTED) is not None
    assert read_offer(reply(swarm_step=6), WANTED) is None
    assert read_offer(reply(swarm_step=8 + WANTED.most_steps), WANTED) is None
    assert read_offer(control_pb2.CheckpointReply(), WANTED) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"address": "file:///etc/passwd"}, "no web address"),
        ({"address": "https:///nowhere"}, "no web address"),
        ({"address": "https://a/" + "x" * 3000}, "no web address"),
        ({"files": []}, "without the files"),
        ({"files": [control_pb2.RunFile(name=name, size_bytes=4, sha256=b"d") for name in STATE_FILES]}, "without"),
        (
            {"files": [control_pb2.RunFile(name=name, size_bytes=501, sha256=b"d" * 32) for name in STATE_FILES]},
            "at most 1000",
        ),
        (
            {"files": [control_pb2.RunFile(name=name, size_bytes=4, sha256=b"d" * 32) for name in ("../x", "y.pkl")]},
            "without the files",
        ),
    ],
)
def test_strange_offers_are_refused(changes: dict[str, Any], words: str) -> None:
    """In one sentence that says what is strange about it."""
    with pytest.raises(RequestError, match=words):
        read_offer(reply(**changes), WANTED)


CONTENT = {"model.safetensors": bytes(range(256)) * 4000, "optimizer.safetensors": b"moments" * 9000}

LOCAL = "127.0.0.1"


@pytest.fixture
def web() -> Iterator[WebFiles]:
    """A server of these files."""
    with serve_files() as served:
        served.files = {f"7/{name}": content for name, content in CONTENT.items()}
        yield served


def offer_of(web: WebFiles, content: dict[str, bytes] = CONTENT) -> CheckpointOffer:
    """The offer of files with this content."""
    files = [OfferedFile(name, len(data), hashlib.sha256(data).digest()) for name, data in content.items()]
    return CheckpointOffer(web.url("7"), 7, tuple(files))


async def fetch(offer: CheckpointOffer, into: Path, link_host: str = LOCAL) -> list[float]:
    """Download without a pause between attempts; return the pauses that there would have been."""
    pauses: list[float] = []

    async def at_once(seconds: float) -> None:
        pauses.append(seconds)

    await download_checkpoint(
        offer, into, link_hosts={link_host}, throttle=Throttle(), rng=random.Random(0), rest=at_once
    )
    return pauses


async def test_a_download_goes_on_where_the_line_was_lost(web: WebFiles, tmp_path: Path) -> None:
    """Two cuts and an error cost longer and longer pauses but no byte twice; another checkpoint's parts are removed."""
    into = tmp_path / "checkpoint"
    into.mkdir()
    (into / "model.safetensors").write_bytes(b"an older one")
    (into / ".0123.part").write_bytes(b"a part of another")
    name = "7/model.safetensors"
    web.cut[name], web.failures[name] = 2, 1
    pauses = await fetch(offer_of(web), into)
    assert all(0.5 <= pause / FIRST_PAUSE_S / 2**number <= 1.5 for number, pause in enumerate(pauses))
    assert len(pauses) == 3
    assert {path.name: path.read_bytes() for path in into.iterdir()} == CONTENT
    assert web.bytes_sent[name] == len(CONTENT["model.safetensors"])
    await fetch(offer_of(web), into)  # what is there is not fetched again
    assert web.bytes_sent[name] == len(CONTENT["model.safetensors"])


async def test_what_has_arrived_is_kept_for_the_next_time(web: WebFiles, tmp_path: Path) -> None:
    """A server that fails again and again is given up, and later asked for the rest only."""
    name = "7/model.safetensors"
    web.cut[name], web.failures[name] = 100, 0
    with pytest.raises(UnreachableError, match="cannot be downloaded"):
        await fetch(offer_of(web), tmp_path)
    web.cut[name] = 0
    await fetch(offer_of(web), tmp_path)
    assert web.bytes_sent[name] == len(CONTENT["model.safetensors"])


async def test_a_server_that_trickles_is_given_up(
    web: WebFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slower than the least rate, after some attempts it is given up for the swarm's donors."""
    monkeypatch.setattr("peer.network.least_rate.PATIENCE_S", -1.0)  # for nobody
    with pytest.raises(UnreachableError, match=r"cannot be downloaded \(slower than 8192 bytes a second\)"):
        await fetch(offer_of(web), tmp_path)


@pytest.mark.parametrize("ranges", [True, False])
async def test_what_is_not_as_announced_is_not_taken(web: WebFiles, tmp_path: Path, ranges: bool) -> None:
    """Neither other bytes, whose part is thrown away, nor more of them."""
    offer = offer_of(web)
    if not ranges:
        web.without_ranges |= set(web.files)
    other = b"x" * len(CONTENT["model.safetensors"])
    web.files["7/model.safetensors"] = other
    web.cut["7/model.safetensors"] = 1
    with pytest.raises(StorageError, match="arrived damaged"):
        await fetch(offer, tmp_path)
    assert not part_of(tmp_path / "model.safetensors", offer.files[0]).exists()
    web.files["7/model.safetensors"] = other + b"more"
    with pytest.raises(UnreachableError, match="longer than announced"):
        await fetch(offer, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


async def test_a_port_that_nobody_listens_on_is_given_up_at_once(tmp_path: Path) -> None:
    """Where a web port is closed, joining is not held up by it."""
    (port,) = free_ports(LOCAL, 1)
    web = WebFiles()
    web.address = f"http://{LOCAL}:{port}"

    async def never(seconds: float) -> None:
        raise AssertionError(seconds)

    with pytest.raises(UnreachableError, match="cannot be reached"):
        await download_checkpoint(
            offer_of(web), tmp_path, link_hosts={LOCAL}, throttle=Throttle(), rng=random.Random(0), rest=never
        )


async def test_the_volunteers_own_network_is_not_asked(web: WebFiles, tmp_path: Path) -> None:
    """An offer leads to the link's host or to the public web, and nowhere else."""
    with pytest.raises(UnreachableError, match="is not a public address"):
        await fetch(offer_of(web), tmp_path, link_host="coordinator.example")
    assert not web.bytes_sent


@pytest.mark.parametrize("spare_bytes", [SPARE_BYTES, -(2**30)])
async def test_a_full_disk_is_one_sentence(
    web: WebFiles, tmp_path: Path, spare_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found out before the first byte is fetched; or while it is written, where others fill the disk meanwhile."""
    monkeypatch.setattr("peer.control.checkpoints.SPARE_BYTES", spare_bytes)
    into = tmp_path / "small"
    into.mkdir()
    with small_disk(into, 512 * 1024), pytest.raises(StorageError, match=r"does not fit into|No space left") as raised:
        await fetch(offer_of(web), into)
    assert str(raised.value).count(".") >= 1
    assert "\n" not in str(raised.value)
