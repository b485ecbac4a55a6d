"""Prometheus metrics of the run (from the snapshot), the host, the service and the process.

Names and units follow Prometheus' conventions: base units, `_total` for counters, times as Unix
timestamps, which alerts subtract from `time()`. No label has unbounded values. Metrics without a
known value are exported without a sample.
"""

from __future__ import annotations

import logging
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, starmap
from pathlib import Path

from cryptography import x509
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.context.telemetry import Telemetry
from coordinator.ledger.sessions import APART
from coordinator.run.directory import RunDirectory
from coordinator.statistics.swarm_health import Figures
from coordinator.web.state.snapshot import Snapshot
from peer.reporting.metrics import BOUNDS_S
from peer.reporting.suspicions import KINDS
from peer.runtime.version import software_version

logger = logging.getLogger(__name__)
Gauge = tuple[str, str, float | None]  # name, help text and value (None: no sample)


def metrics_text(directory: RunDirectory, telemetry: Telemetry, current: Callable[[], Snapshot]) -> Callable[[], bytes]:
    """Return a function that renders the metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(RunCollector(directory, current))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return lambda: generate_latest(registry) + generate_latest(telemetry.registry)


class RunCollector(Collector):
    """A collector that, at each scrape, exports the latest snapshot and the disk's free space."""

    def __init__(self, directory: RunDirectory, current: Callable[[], Snapshot]) -> None:
        self._current, self._folder = current, directory.checkpoints_dir
        self._validates = directory.config.data.validation.share > 0
        self._certificate_until = certificate_expiry(directory.tls_cert_path)
        self._build = (software_version(), platform.python_version(), directory.config.run.name)

    def describe(self) -> list[Metric]:
        """Return no metrics in advance, because there is no snapshot yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        now = self._current()
        for part in (_progress, _newest_step, _checkpoints, _newest_validation):
            yield from starmap(gauge, part(now))
        yield from starmap(gauge, _pending_validations(now if self._validates else None))
        yield from starmap(gauge, self._host())
        yield from _totals(now)
        yield from _figures_metrics(now.figures)
        text = "The step with which an alarm that holds began, by kind; no sample where none holds."
        yield by_labels("manyhands_alarm_step", text, ("kind",), [([each.kind], each.step) for each in now.alarms])
        text = "The version of manyhands, of Python, and the run's name."
        yield by_labels("manyhands_build_info", text, ("version", "python", "run"), [(self._build, 1)])

    def _host(self) -> Iterator[Gauge]:
        """Yield the disk's space (no samples if it cannot be read) and the certificate's expiration."""
        free, size = _room(self._folder)
        expiry = self._certificate_until
        yield "manyhands_checkpoint_disk_free_bytes", "Free where checkpoints lie.", free
        yield "manyhands_checkpoint_disk_size_bytes", "Size of the disk where checkpoints lie.", size
        text = "When the control plane's certificate expires."
        yield "manyhands_tls_certificate_expiry_timestamp_seconds", text, expiry


def _progress(now: Snapshot) -> Iterator[Gauge]:
    """Yield the swarm's progress as reported by the keeper."""
    swarm, apart = now.swarm, sum(each.state == APART for each in now.online)
    yield "manyhands_global_step", "Global steps completed.", swarm.step if swarm else 0
    yield "manyhands_peers", "Peers that train now.", swarm.peers if swarm else 0
    yield "manyhands_devices_online", "Devices with an open session.", len(now.online)
    yield "manyhands_devices_apart", "Of these, such as train without seeing the keeper.", apart
    yield "manyhands_stale", "1 while the keeper is silent.", int(now.stale)
    yield "manyhands_era", "How often the run has returned to a checkpoint.", now.era
    samples = swarm.samples_accumulated if swarm else 0
    yield "manyhands_batch_samples", "Samples accumulated towards the next global step.", samples
    target, pace, seen_at = (
        (swarm.target_batch_size, swarm.samples_per_second, swarm.updated_at) if swarm else (None, None, None)
    )
    yield "manyhands_target_batch_samples", "Samples that make a global step.", target
    yield "manyhands_samples_per_second", "Samples of counted steps over the time that passed.", pace
    yield "manyhands_time_left_seconds", "Until the run's last step, at that speed.", now.time_left_s
    yield "manyhands_keeper_timestamp_seconds", "When the keeper's own swarm node last answered it.", seen_at
    yield "manyhands_snapshot_timestamp_seconds", "When the store was last read.", now.taken_at


def _newest_step(now: Snapshot) -> Iterator[Gauge]:
    """Yield the newest step's time and loss, and figures of the newest step whose reports are complete."""
    completed_at = now.steps[-1].completed_at if now.steps else None
    loss = next((row.loss for row in reversed(now.steps[-100:]) if row.loss is not None), None)
    settled = now.settled_step
    finite = None if settled is None else int(settled.loss is not None)
    ratio = None if settled is None else settled.samples / max(1, settled.target_batch_size)
    devices = None if settled is None else settled.devices
    yield "manyhands_loss", "Training loss of the newest global step.", loss
    text = "0 if no device could report a finite loss of the newest settled global step."
    yield "manyhands_loss_finite", text, finite
    yield "manyhands_step_timestamp_seconds", "When the newest global step was completed.", completed_at
    text = "Samples averaged in at the newest settled global step, over its target batch."
    yield "manyhands_step_batch_ratio", text, ratio
    yield "manyhands_step_devices", "Devices that reported the newest settled global step.", devices


def _totals(now: Snapshot) -> Iterator[Metric]:
    yield counter("manyhands_samples", "Samples averaged in, since the run began.", now.samples)
    yield counter("manyhands_averaged_bytes", "Of gradients that devices averaged for others.", now.averaged_bytes)
    yield counter("manyhands_training_seconds", "Time that devices have trained, each counted.", now.elapsed_s)
    yield counter("manyhands_data_wait_seconds", "Of it, time that they waited for data.", now.data_wait_s)


def _checkpoints(now: Snapshot) -> Iterator[Gauge]:
    newest = now.checkpoint
    yield "manyhands_checkpoint_step", "Step of the newest checkpoint.", newest.step if newest else None
    yield "manyhands_checkpoint_size_bytes", "Its size.", newest.size_bytes if newest else None
    yield "manyhands_checkpoint_timestamp_seconds", "When it was written.", newest.created_at if newest else None
    yield "manyhands_checkpoint_withheld", "1 if it is not published.", int(bool(newest.withheld)) if newest else None
    yield "manyhands_checkpoints", "Checkpoints that are kept.", len(now.checkpoints)


def _pending_validations(now: Snapshot | None) -> Iterator[Gauge]:
    """Yield the number of checkpoints to be evaluated; `now` is None if evaluation is disabled."""
    count: int | None = None
    oldest: float | None = None
    if now is not None:
        evaluated = {(each.step, each.manifest_sha256) for each in now.validations}
        waiting = [each.created_at for each in now.checkpoints if (each.step, each.manifest_sha256) not in evaluated]
        count, oldest = len(waiting), min(waiting, default=None)
    yield "manyhands_validations_pending", "Checkpoints yet to be evaluated.", count
    yield "manyhands_validation_pending_timestamp_seconds", "When the oldest of these was written.", oldest


def _newest_validation(now: Snapshot) -> Iterator[Gauge]:
    """Yield the results of the newest evaluated checkpoint on held-out text."""
    row = now.validations[-1].facts if now.validations else {}
    finite = int(row["loss"] is not None) if row else None
    detected, f1 = row.get("detection_accuracy"), row.get("detection_f1")
    yield "manyhands_validation_step", "Step of the newest checkpoint that was evaluated.", row.get("step")
    yield "manyhands_validation_accuracy", "Share of predicted tokens that it gets right.", row.get("accuracy")
    yield "manyhands_validation_loss", "Its loss on held-out text.", row.get("loss")
    yield "manyhands_validation_loss_finite", "0 if that is no number.", finite
    yield "manyhands_validation_perplexity", "Exponential of its token loss.", row.get("perplexity")
    yield "manyhands_validation_sop_accuracy", "Share of sentence orders that it tells.", row.get("sop_accuracy")
    yield "manyhands_validation_detection_accuracy", "Share of all tokens that it tells replaced or not.", detected
    yield "manyhands_validation_detection_f1", "F1 of the replaced tokens that it finds.", f1


def _figures_metrics(figures: Figures) -> Iterator[Metric]:
    """Yield the keeper's counters (reset when it restarts), suspicions and quarantined devices."""
    ended = CounterMetricFamily(
        "manyhands_averaging_rounds", "Rounds of averaging since the keeper started.", labels=["outcome"]
    )
    seconds = HistogramMetricFamily(
        "manyhands_averaging_round_duration_seconds", "How long those took that succeeded, gathering included."
    )
    if (rounds := figures.rounds) is not None:  # the keeper takes part in all rounds
        ended.add_metric(["succeeded"], rounds.succeeded)
        ended.add_metric(["failed"], rounds.failed)
        bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        seconds.add_metric([], list(zip(bounds, accumulate(rounds.by_duration), strict=True)), rounds.seconds)
    yield ended
    yield seconds
    text = "Peers that take part, by role and whether others can connect to them."
    peers = [([role, "true" if direct else "false"], count) for role, direct, count in figures.census]
    yield by_labels("manyhands_swarm_peers", text, ("role", "reachable"), peers)
    text = "Auxiliary peers that would shorten the rounds, by the lines of the newest one."
    yield gauge("manyhands_missing_auxiliaries", text, figures.missing_auxiliaries)
    text = "Words against devices within `quarantine_window_s`, by kind."
    words = [([kind], figures.suspicions.get(kind, 0)) for kind in sorted(KINDS)]
    yield by_labels("manyhands_suspicions", text, ("kind",), words)
    yield gauge("manyhands_devices_quarantined", "Devices in quarantine.", figures.quarantined)
    text = "When the keeper's token expires, which it renews by itself."
    yield gauge("manyhands_keeper_token_expiry_timestamp_seconds", text, figures.keeper_token_until)


def certificate_expiry(path: Path) -> float | None:
    """Return the expiration of the service's certificate (PEM) as a Unix time, or None if it cannot be read."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError) as error:
        logger.warning("cannot read when %s expires: %s", path, error)
        return None


def _room(folder: Path) -> tuple[int | None, int | None]:
    """Return the free and total bytes of the folder's disk, or two Nones if they cannot be read."""
    try:
        disk = shutil.disk_usage(folder)
    except OSError:
        return None, None
    return disk.free, disk.total


def gauge(name: str, text: str, value: float | None) -> Metric:
    """Return a gauge with one sample, or with none if `value` is None."""
    return GaugeMetricFamily(name, text, value)


def by_labels(name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    """Return a gauge with one sample per combination of label values."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, sample in samples:
        family.add_metric(values, sample)
    return family


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter with one sample; `_total` is appended to its name."""
    return CounterMetricFamily(name, text, value)
