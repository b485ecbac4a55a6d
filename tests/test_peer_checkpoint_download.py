"""Downloading the checkpoint that a coordinator offers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from auth.errors import StorageError, UnreachableError
from coordinator.ports import free_ports
from peer.checkpoint_download import SPARE_BYTES, download_checkpoint, part_of
from peer.checkpoint_offer import CheckpointOffer, OfferedFile
from peer.guest.traffic import Throttle
from tests.support.small_disks import small_disk
from tests.support.web_files import WebFiles, serve_files

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


async def fetch(offer: CheckpointOffer, into: Path, link_host: str = LOCAL) -> None:
    """Download without a pause between attempts."""

    async def at_once(failed: int) -> None:
        assert failed

    await download_checkpoint(offer, into, link_hosts={link_host}, throttle=Throttle(), wait=at_once)


async def test_a_download_goes_on_where_the_line_was_lost(web: WebFiles, tmp_path: Path) -> None:
    """Two cuts and an error cost no byte twice; what was there of another checkpoint is removed."""
    into = tmp_path / "checkpoint"
    into.mkdir()
    (into / "model.safetensors").write_bytes(b"an older one")
    (into / ".0123.part").write_bytes(b"a part of another")
    name = "7/model.safetensors"
    web.cut[name], web.failures[name] = 2, 1
    await fetch(offer_of(web), into)
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
    monkeypatch.setattr("peer.least_rate.PATIENCE_S", -1.0)  # for nobody
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

    async def never(failed: int) -> None:
        raise AssertionError(failed)

    with pytest.raises(UnreachableError, match="cannot be reached"):
        await download_checkpoint(offer_of(web), tmp_path, link_hosts={LOCAL}, throttle=Throttle(), wait=never)


async def test_the_volunteers_own_network_is_not_asked(web: WebFiles, tmp_path: Path) -> None:
    """An offer leads to the link's host or to the public web, and nowhere else."""
    with pytest.raises(UnreachableError, match="none of the public web"):
        await fetch(offer_of(web), tmp_path, link_host="coordinator.example")
    assert not web.bytes_sent


@pytest.mark.parametrize("spare_bytes", [SPARE_BYTES, -(2**30)])
async def test_a_full_disk_is_one_sentence(
    web: WebFiles, tmp_path: Path, spare_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found out before the first byte is fetched; or while it is written, where others fill the disk meanwhile."""
    monkeypatch.setattr("peer.checkpoint_download.SPARE_BYTES", spare_bytes)
    into = tmp_path / "small"
    into.mkdir()
    with small_disk(into, 512 * 1024), pytest.raises(StorageError, match=r"does not fit into|No space left") as raised:
        await fetch(offer_of(web), into)
    assert str(raised.value).count(".") >= 1
    assert "\n" not in str(raised.value)
