"""Prometheus metrics of the keeper's counts, suspicions, disk space and the certificate's expiry.

`gauge` and `counter` make a family of metrics in one line; a family without a known value has a name and no sample.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.statistics.swarm_health import Figures
from peer.reporting.metrics import BOUNDS_S, RoundTally
from peer.reporting.suspicions import KINDS

logger = logging.getLogger(__name__)


def figures_metrics(figures: Figures) -> Iterator[Metric]:
    """Metrics of the keeper's counts, of suspicions and quarantine; counters begin anew when the keeper does."""
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


class HostCollector(Collector):
    """Looks at the disk at each scrape."""

    def __init__(self, folder: Path, certificate_until: float | None) -> None:
        self._folder, self._certificate_until = folder, certificate_until

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment; a disk that does not answer has no numbers."""
        free, size = _room(self._folder)
        yield gauge("manyhands_checkpoint_disk_free_bytes", "Free where checkpoints lie.", free)
        yield gauge("manyhands_checkpoint_disk_size_bytes", "Size of the disk where checkpoints lie.", size)
        yield gauge(
            "manyhands_tls_certificate_expiry_timestamp_seconds",
            "When the control plane's certificate expires.",
            self._certificate_until,
        )


def certificate_expiry(path: Path) -> float | None:
    """When the certificate (PEM) ends that the service has loaded, in Unix seconds; None if there is none to read."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError) as error:
        logger.warning("cannot read when %s expires: %s", path, error)
        return None


def _room(folder: Path) -> tuple[int | None, int | None]:
    """Free bytes and all bytes of the folder's disk."""
    try:
        disk = shutil.disk_usage(folder)
    except OSError:
        return None, None
    return disk.free, disk.total


def gauge(name: str, text: str, value: float | None, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    """A gauge with one sample, or none; with labels the caller adds the samples."""
    family = GaugeMetricFamily(name, text, labels=labels)
    if value is not None:
        family.add_metric([], value)
    return family


def counter(name: str, text: str, value: float | None, labels: Sequence[str] = ()) -> CounterMetricFamily:
    """A counter with one sample, or none; its name gets `_total`."""
    family = CounterMetricFamily(name, text, labels=labels)
    if value is not None:
        family.add_metric([], value)
    return family
