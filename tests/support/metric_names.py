"""The names of metrics: those that a scrape gives, and those that rules and panels use."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

DASHBOARDS = Path(__file__).resolve().parent.parent.parent / "dashboards"
ALERTS = DASHBOARDS / "prometheus" / "alerts.yml"
GRAFANA = DASHBOARDS / "grafana" / "manyhands.json"
NAME = re.compile(r"\b(?:manyhands|process|python)_\w+")


def names_given(scrape: str) -> set[str]:
    """Every name that a query may use once this was scraped, with or without a sample yet."""
    names = set()
    for family in text_string_to_metric_families(scrape):
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name.removesuffix("_total") + ending for ending in endings}
    return names


def expressions() -> list[str]:
    """Every query of the alerts and of the panels."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    board = json.loads(GRAFANA.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    return [*(rule["expr"] for rule in rules), *asked]


def names_used() -> set[str]:
    """All that these ask for."""
    return {name for expression in expressions() for name in NAME.findall(expression)}
