"""Metrics of what the keeper counts, and of who is suspected and shut out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from coordinator.figures import Figures
from coordinator.web.metric_families import counter, gauge
from peer.round_counts import BOUNDS_S, RoundTally
from peer.suspicion import KINDS


def figures_metrics(figures: Figures) -> Iterator[Metric]:
    """All of it; counters begin anew when the keeper does."""
    yield from _rounds(figures.rounds)
    peers = gauge(
        "manyhands_swarm_peers",
        "Peers that take part, by role and whether others can connect to them.",
        None,
        ("role", "reachable"),
    )
    for role, reachable, count in figures.census:
        peers.add_metric([role, "true" if reachable else "false"], count)
    yield peers
    suspicions = gauge(
        "manyhands_suspicions", "Words against devices within `quarantine_window_s`, by kind.", None, ("kind",)
    )
    for kind in sorted(KINDS):
        suspicions.add_metric([kind], figures.suspicions.get(kind, 0))
    yield suspicions
    yield gauge("manyhands_devices_quarantined", "Devices in quarantine.", figures.quarantined)
    yield gauge(
        "manyhands_keeper_token_expiry_timestamp_seconds",
        "When the keeper's token expires, which it renews by itself.",
        figures.keeper_token_until,
    )


def _rounds(rounds: RoundTally | None) -> Iterator[Metric]:
    """Rounds of averaging as the keeper, which is in all of them, has seen them end."""
    count = counter("manyhands_averaging_rounds", "Rounds of averaging since the keeper started.", None, ("outcome",))
    seconds = HistogramMetricFamily(
        "manyhands_averaging_round_duration_seconds", "How long those took that succeeded, gathering included."
    )
    if rounds is not None:
        count.add_metric(["succeeded"], rounds.succeeded)
        count.add_metric(["failed"], rounds.failed)
        bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        at_most = list(accumulate(rounds.by_duration))
        seconds.add_metric([], list(zip(bounds, at_most, strict=True)), rounds.seconds)
    yield count
    yield seconds
