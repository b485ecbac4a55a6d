"""The dashboard behind the web servers that people put in front of it, configured as the guide says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.ports import free_ports
from tests.support.programs import require
from tests.support.served_page import FakeRun, PageServer
from tests.support.waiting import PATIENCE_S, wait_until

GUIDE = Path(__file__).parents[2] / "docs/operators/network.md"
STEPS = 10  # nginx's buffers would hold the first two events


def snippet(language: str) -> str:
    """The guide's configuration of this web server."""
    found = re.search(rf"^```{language}\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@contextmanager
def started(*command: str, port: int, log: Path) -> Iterator[str]:
    """A web server in front, for as long as the block lasts; its address."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    url = f"http://127.0.0.1:{port}/"

    def answers() -> bool:
        try:
            return httpx2.get(url, headers={"Host": "run.example.org"}, trust_env=False).status_code == 200
        except httpx2.TransportError:
            return False

    try:
        wait_until("the web server in front answers", answers, log, poll_s=0.1)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def behind_nginx(directory: Path, server: PageServer) -> Iterator[str]:
    """nginx with its own defaults but for the guide's lines."""
    [port] = free_ports("127.0.0.1", 1)
    location = snippet("nginx").replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
    paths = "".join(
        f"{kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {directory}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n"
        f"access_log off;\n{paths}server {{\nlisten 127.0.0.1:{port};\n{location}}}\n}}\n",
        encoding="utf-8",
    )
    command = ("nginx", "-p", str(directory), "-c", str(directory / "nginx.conf"))
    with started(*command, port=port, log=directory / "nginx.log") as url:
        yield url


@contextmanager
def behind_caddy(directory: Path, server: PageServer) -> Iterator[str]:
    """Caddy, without the certificate that it would fetch."""
    [port] = free_ports("127.0.0.1", 1)
    site = snippet("caddyfile").replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
    site = site.replace("run.example.org", f"http://:{port}")
    (directory / "Caddyfile").write_text(f"{{\nadmin off\nauto_https off\n}}\n{site}", encoding="utf-8")
    command = ("caddy", "run", "--adapter", "caddyfile", "--config", str(directory / "Caddyfile"))
    with started(*command, port=port, log=directory / "caddy.log") as url:
        yield url


@pytest.mark.thorough
@pytest.mark.parametrize("behind", [behind_nginx, behind_caddy], ids=["nginx", "Caddy"])
def test_the_live_page_goes_on_behind_a_proxy(
    tmp_path: Path, run: FakeRun, server: PageServer, behind: Callable[[Path, PageServer], AbstractContextManager[str]]
) -> None:
    """Each event arrives when it is sent, and not when a buffer is full."""
    require("proxies")
    run.add_member("ada")
    with (
        behind(tmp_path, server) as url,
        httpx2.stream(
            "GET",
            f"{url}api/v1/events",
            headers={"Host": "run.example.org"},
            timeout=PATIENCE_S,
            trust_env=False,
        ) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = (line for line in answer.iter_lines() if line.startswith("data: "))
        for step in range(1, STEPS + 1):
            run.keeper_says(step)
            assert any(f'"step":{step},' in line for line in events)
