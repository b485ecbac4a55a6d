"""The alerts and the Grafana dashboard: valid, tried on made-up series, and of metrics that there are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from tests.support.metric_names import ALERTS, DASHBOARDS, GRAFANA, expressions, names_given, names_used
from tests.support.programs import require
from tests.support.served_page import fake_run
from tests.support.waiting import PATIENCE_S

UNIT_TESTS = Path(__file__).parent / "prometheus_alerts.yml"


def promtool(*arguments: object) -> str:
    """What promtool says; fails the test with it where it complains."""
    require("promtool")
    result = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_rules_and_scrape_configuration_are_valid() -> None:
    """Prometheus' own tool takes both files."""
    assert "rules found" in promtool("check", "rules", ALERTS)
    promtool("check", "config", DASHBOARDS / "prometheus" / "prometheus.yml")


def test_alerts_come_when_they_should() -> None:
    """Each alert's unit tests hold, and no alert is without one that sees it fire."""
    promtool("test", "rules", UNIT_TESTS)
    tried = [case for test in yaml.safe_load(UNIT_TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == {case["alertname"] for case in tried if case["exp_alerts"]}


def test_panels_are_valid_queries(tmp_path: Path) -> None:
    """promtool reads each panel's query, its variables filled in."""
    queries = [each.replace("$instance", ".*") for each in expressions() if not each.startswith("label_values(")]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "panels.yml")


def test_panels_have_their_places() -> None:
    """Every panel has an id and a rectangle of its own on the grid."""
    panels = json.loads(GRAFANA.read_text())["panels"]
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_provisioning_is_valid_yaml() -> None:
    """Grafana's files name a provider and a source."""
    folder = DASHBOARDS / "grafana" / "provisioning"
    assert yaml.safe_load((folder / "dashboards" / "manyhands.yml").read_text())["providers"]
    assert yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())["datasources"]


def test_rules_and_panels_ask_for_metrics_that_there_are(tmp_path: Path) -> None:
    """Even a run in which nothing has happened yet names every metric that alerts and panels use."""
    with fake_run(tmp_path) as run, TestClient(create_app(WebState(run.directory, run.services))) as client:
        scrape = client.get("/metrics").text
    assert names_used() - names_given(scrape) == set()


def test_scrape_follows_prometheus_conventions(tmp_path: Path) -> None:
    """promtool's linter finds nothing in names, units and help texts."""
    require("promtool")
    with fake_run(tmp_path) as run, TestClient(create_app(WebState(run.directory, run.services))) as client:
        run.add_member("ada")
        run.add_step(1, 9.0)
        scrape = client.get("/metrics").text
    result = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.parametrize("file", sorted(DASHBOARDS.rglob("*.yml")), ids=lambda file: file.name)
def test_examples_hold_no_secrets(file: Path) -> None:
    """Whoever copies them gets no password that many know."""
    assert "password" not in file.read_text().lower()
