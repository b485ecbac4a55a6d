"""A live run under observation: its metrics have what the alerts ask for."""

from __future__ import annotations

import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.support.commands import Command
from tests.support.metric_names import names_given, names_used
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S, wait_until
from tests.system.demo_command import tiny_run

POLL_S = 1.0
AWAITED = (
    "manyhands_validation_step ",
    "manyhands_loss_finite ",
    'manyhands_swarm_peers{reachable="true",role="trainer"} 2.0',
)


def scraped(port: int) -> str:
    """The run's metrics; none as long as it does not answer."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())
    return ""


def test_a_live_run_gives_what_alerts_and_panels_ask_for(tmp_path: Path) -> None:
    """Every name is there; rounds, peers, reports and calls have been counted, and nobody's address."""
    (port,) = free_ports("127.0.0.1", 1)
    own = {"data": {"validation": {"share": 0.1, "samples": 16}}, "checkpoints": {"every_steps": 5}}
    options = {"config": tiny_run(tmp_path / "run.yaml", own), "dir": tmp_path / "run", "port": port}
    demo = Command(tmp_path / "said", "demo", *(f"--{name}={value}" for name, value in options.items()))
    try:
        wait_until(
            "a step is settled and a checkpoint is evaluated, or the demo has ended",
            lambda: demo.process.poll() is not None or all(f"\n{line}" in scraped(port) for line in AWAITED),
            demo.log_path,
            poll_s=POLL_S,
        )
        scrape = scraped(port)
        assert demo.terminate() == (0, [])
    finally:
        demo.kill()
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
