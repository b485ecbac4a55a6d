"""Notices of the clouds, from a real server that speaks as their metadata services do."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest

from auth.errors import ConfigError
from peer.limits import cloud as module
from peer.limits.cloud import ADDRESS, AZURE_ASSET_TAG, CLOUDS, Cloud, name_of_cloud
from tests.support.metadata_server import metadata_server
from tests.support.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def _no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a service of these tests answer as late as it may."""
    monkeypatch.setattr(module, "TIMEOUT_S", PATIENCE_S)


@pytest.mark.parametrize("name", CLOUDS)
def test_each_cloud_says_when_it_takes_the_machine_back(name: str) -> None:
    """And not before; on Azure a neighbour's notice is not ours."""
    with metadata_server() as server:
        cloud = Cloud.find(f"{name}@{server.address}")
        assert cloud.takes_back() == ""
        server.taken_back = True
        assert cloud.takes_back() == f"{CLOUDS[name][0]} takes this machine back"


@pytest.mark.parametrize("name", CLOUDS)
def test_a_service_that_does_not_answer_stops_nothing(name: str) -> None:
    """No server, no notice."""
    with metadata_server() as server:
        address = server.address
    assert Cloud.find(f"{name}@{address}").takes_back() == ""


class Nonsense(http.server.BaseHTTPRequestHandler):
    """Answers whatever is asked with what is no answer."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[[[" * 1_000)

    do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Quietly."""


@pytest.mark.parametrize("name", CLOUDS)
def test_nonsense_stops_nothing(name: str) -> None:
    """Whatever answers at that address is not believed to be a cloud's."""
    with http.server.HTTPServer(("127.0.0.1", 0), Nonsense) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        assert Cloud.find(f"{name}@127.0.0.1:{server.server_port}").takes_back() == ""
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("firmware", "name"),
    [
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "google"),
        ({"sys_vendor": "Google", "product_name": "Eve"}, ""),  # a laptop
        ({"sys_vendor": "Amazon EC2", "product_name": "g4dn.xlarge"}, "amazon"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": AZURE_ASSET_TAG}, "azure"),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Surface"}, ""),
        ({}, ""),
    ],
)
def test_the_firmware_tells_whose_machine_it_is(tmp_path: Path, firmware: dict[str, str], name: str) -> None:
    """A laptop of the same maker is none of the cloud's."""
    for key, value in firmware.items():
        (tmp_path / key).write_text(value + "\n")
    assert name_of_cloud(tmp_path) == name
    assert Cloud.find("", tmp_path).name == name
    assert Cloud.find("", tmp_path).metadata.address == ADDRESS


def test_the_setting_goes_before_the_firmware(tmp_path: Path) -> None:
    """It can turn the requests off, and say where to send them."""
    (tmp_path / "sys_vendor").write_text("Amazon EC2")
    assert Cloud.find("none", tmp_path) == Cloud()
    with metadata_server() as server:
        assert Cloud().takes_back() == ""
        assert server.asked == []


@pytest.mark.parametrize("setting", ["google", "mars@127.0.0.1:1", "@", "google@"])
def test_a_setting_that_is_none_is_refused_in_one_sentence(setting: str) -> None:
    """It names the variable, what it holds, and what it may hold."""
    with pytest.raises(ConfigError, match=r"`MANYHANDS_METADATA` \(.*google@169"):
        Cloud.find(setting)
