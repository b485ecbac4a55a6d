"""A live run under observation: its metrics have what the alerts ask for, and a real Prometheus takes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.metric_names import ALERTS, names_given, names_used
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S, wait_until
from tests.system.demo_command import tiny_run

POLL_S = 1.0
AWAITED = (
    "manyhands_validation_step ",
    "manyhands_loss_finite ",
    'manyhands_swarm_peers{reachable="true",role="trainer"} 2.0',
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a demo in which a step is settled and a checkpoint is evaluated."""
    folder = tmp_path_factory.mktemp("demo")
    (port,) = free_ports("127.0.0.1", 1)
    own = {"data": {"validation": {"share": 0.1, "samples": 16}}, "checkpoints": {"every_steps": 5}}
    options = {"config": tiny_run(folder / "run.yaml", own), "dir": folder / "run", "port": port}
    command = [sys.executable, "-m", "manyhands", "demo", *(f"--{name}={value}" for name, value in options.items())]
    with running(command, folder / "said") as demo:
        wait_until(
            "a step is settled and a checkpoint is evaluated, or the demo has ended",
            lambda: demo.poll() is not None or is_settled(f"127.0.0.1:{port}"),
            folder / "said",
            poll_s=POLL_S,
        )
        assert demo.poll() is None, (folder / "said").read_text()[-2000:]
        yield f"127.0.0.1:{port}"
        demo.terminate()
        assert demo.wait(PATIENCE_S) == 0


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command while the block lasts, in a group of its own."""
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)


def get(address: str) -> str:
    """What a web server of ours answers."""
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:  # noqa: S310  # our own address
        return str(answer.read().decode())


def is_settled(served: str) -> bool:
    """Whether the run is that far; it may not even answer yet."""
    with suppress(OSError):
        scrape = get(f"http://{served}/metrics")
        return all(f"\n{line}" in scrape for line in AWAITED)
    return False


def test_a_live_run_gives_what_alerts_and_panels_ask_for(served: str) -> None:
    """Every name is there; rounds, peers, reports and calls have been counted, and nobody's address."""
    scrape = get(f"http://{served}/metrics")
    assert names_used() - names_given(scrape) == set()
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in scrape.splitlines() if line[0] != "#"}
    assert values['manyhands_averaging_rounds_total{outcome="succeeded"}'] >= 1
    assert values["manyhands_averaging_round_duration_seconds_sum"] > 0
    assert values['manyhands_swarm_peers{reachable="true",role="keeper"}'] == 1
    assert values['manyhands_reports_total{verdict="accepted"}'] >= 2
    assert values['manyhands_control_calls_total{code="ok",method="Join"}'] == 2
    assert values["manyhands_sessions_open"] == 2
    assert values["manyhands_keeper_token_expiry_timestamp_seconds"] > time.time()
    assert values["manyhands_tls_certificate_expiry_timestamp_seconds"] > time.time()
    assert values["manyhands_loss_finite"] == 1
    assert "127.0.0.1" not in scrape


def test_prometheus_scrapes_it_and_evaluates_the_alerts(served: str, tmp_path: Path) -> None:
    """With the example's configuration, but the run's address and no patience: every rule is in order."""
    (port,) = free_ports("127.0.0.1", 1)
    example = (ALERTS.parent / "prometheus.yml").read_text()
    (tmp_path / "alerts.yml").write_text(ALERTS.read_text())
    (tmp_path / "prometheus.yml").write_text(example.replace("127.0.0.1:8080", served).replace("15s", "1s"))
    command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]

    def asked(path: str, **query: str) -> Any:
        with suppress(OSError):
            return json.loads(get(f"http://127.0.0.1:{port}/api/v1/{path}?{urlencode(query)}"))["data"]
        return {}  # it is not up yet

    def rules() -> list[dict[str, Any]]:
        return [rule for group in asked("rules").get("groups", []) for rule in group["rules"]]

    with running([*command, f"--web.listen-address=127.0.0.1:{port}"], tmp_path / "said"):
        log = tmp_path / "said"
        wait_until(
            "Prometheus has the run's step",
            lambda: asked("query", query="manyhands_global_step > 0").get("result"),
            log,
            poll_s=POLL_S,
        )
        wait_until(
            "every rule is evaluated",
            lambda: rules() and all(rule["health"] != "unknown" for rule in rules()),
            log,
            poll_s=POLL_S,
        )
        assert {rule["name"]: rule["lastError"] for rule in rules() if rule["health"] != "ok"} == {}
        wait_until(  # a scrape that takes more than a second is a failed one
            "the run is not said to be down",
            lambda: "ManyhandsDown" in {rule["name"] for rule in rules() if rule["state"] == "inactive"},
            log,
            poll_s=POLL_S,
        )
