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
    """Return a function that renders the metrics in the Prometheus text format."""
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
        """Return an empty list, because there is no snapshot yet at registration."""
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
        text = "The step at which an active alarm began, by kind; no sample without an active alarm."
        yield by_labels("manyhands_alarm_step", text, ("kind",), [([each.kind], each.step) for each in now.alarms])
        text = "The version of manyhands, of Python, and the run's name."
        yield by_labels("manyhands_build_info", text, ("version", "python", "run"), [(self._build, 1)])

    def _host(self) -> Iterator[Gauge]:
        """Yield the disk's space (no samples if unreadable) and the certificate's expiry."""
        free, size = _room(self._folder)
        expiry = self._certificate_until
        yield "manyhands_checkpoint_disk_free_bytes", "Free space on the disk that holds the checkpoints.", free
        yield "manyhands_checkpoint_disk_size_bytes", "Size of the disk that holds the checkpoints.", size
        text = "When the control plane's certificate expires."
        yield "manyhands_tls_certificate_expiry_timestamp_seconds", text, expiry


def _progress(now: Snapshot) -> Iterator[Gauge]:
    """Yield the swarm's progress as reported by the keeper."""
    swarm, apart = now.swarm, sum(each.state == APART for each in now.online)
    yield "manyhands_global_step", "Global steps completed.", swarm.step if swarm else 0
    yield "manyhands_peers", "Peers that are training now.", swarm.peers if swarm else 0
    yield "manyhands_devices_online", "Devices with an open session.", len(now.online)
    yield "manyhands_devices_apart", "Online devices that train without seeing the keeper.", apart
    yield "manyhands_stale", "1 while the keeper is silent.", int(now.stale)
    yield "manyhands_era", "Number of times that the run has returned to a checkpoint.", now.era
    samples = swarm.samples_accumulated if swarm else 0
    yield "manyhands_batch_samples", "Samples accumulated towards the next global step.", samples
    target, pace, seen_at = (
        (swarm.target_batch_size, swarm.samples_per_second, swarm.updated_at) if swarm else (None, None, None)
    )
    yield "manyhands_target_batch_samples", "Samples of a full batch.", target
    yield "manyhands_samples_per_second", "Counted samples, divided by the elapsed time.", pace
    yield "manyhands_time_left_seconds", "Time until the run's last step at the current speed.", now.time_left_s
    yield "manyhands_keeper_timestamp_seconds", "When the keeper's own swarm node last responded.", seen_at
    yield "manyhands_snapshot_timestamp_seconds", "When the store was last read.", now.taken_at


def _newest_step(now: Snapshot) -> Iterator[Gauge]:
    """Yield the newest step's time and loss, and statistics of the newest fully reported step."""
    completed_at = now.steps[-1].completed_at if now.steps else None
    loss = next((row.loss for row in reversed(now.steps[-100:]) if row.loss is not None), None)
    settled = now.settled_step
    finite = None if settled is None else int(settled.loss is not None)
    ratio = None if settled is None else settled.samples / max(1, settled.target_batch_size)
    devices = None if settled is None else settled.devices
    yield "manyhands_loss", "Training loss of the newest global step.", loss
    text = "0 if no device could report a finite loss for the newest settled global step."
    yield "manyhands_loss_finite", text, finite
    yield "manyhands_step_timestamp_seconds", "When the newest global step was completed.", completed_at
    text = "Samples averaged in the newest settled global step, divided by its target batch."
    yield "manyhands_step_batch_ratio", text, ratio
    yield "manyhands_step_devices", "Devices that reported the newest settled global step.", devices


def _totals(now: Snapshot) -> Iterator[Metric]:
    yield counter("manyhands_samples", "Samples averaged into steps since the run began.", now.samples)
    yield counter("manyhands_averaged_bytes", "Gradient bytes that devices averaged for others.", now.averaged_bytes)
    yield counter("manyhands_training_seconds", "Time that devices have trained, summed over devices.", now.elapsed_s)
    yield counter("manyhands_data_wait_seconds", "Part of the training time spent waiting for data.", now.data_wait_s)


def _checkpoints(now: Snapshot) -> Iterator[Gauge]:
    newest = now.checkpoint
    yield "manyhands_checkpoint_step", "Step of the newest checkpoint.", newest.step if newest else None
    yield "manyhands_checkpoint_size_bytes", "Size of the newest checkpoint.", newest.size_bytes if newest else None
    yield "manyhands_checkpoint_timestamp_seconds", "Newest checkpoint's time.", newest.created_at if newest else None
    yield "manyhands_checkpoint_withheld", "1 if it is not published.", int(bool(newest.withheld)) if newest else None
    yield "manyhands_checkpoints", "Number of stored checkpoints.", len(now.checkpoints)


def _pending_validations(now: Snapshot | None) -> Iterator[Gauge]:
    """Yield metrics of unevaluated checkpoints; `now` is None if evaluation is disabled."""
    count: int | None = None
    oldest: float | None = None
    if now is not None:
        evaluated = {(each.step, each.manifest_sha256) for each in now.validations}
        waiting = [each.created_at for each in now.checkpoints if (each.step, each.manifest_sha256) not in evaluated]
        count, oldest = len(waiting), min(waiting, default=None)
    yield "manyhands_validations_pending", "Checkpoints yet to be evaluated.", count
    yield "manyhands_validation_pending_timestamp_seconds", "When the oldest pending checkpoint was written.", oldest


def _newest_validation(now: Snapshot) -> Iterator[Gauge]:
    """Yield the results of the newest evaluated checkpoint on held-out text."""
    row = now.validations[-1].facts if now.validations else {}
    finite = int(row["loss"] is not None) if row else None
    detected, f1 = row.get("detection_accuracy"), row.get("detection_f1")
    yield "manyhands_validation_step", "Step of the newest checkpoint that was evaluated.", row.get("step")
    yield "manyhands_validation_accuracy", "Share of tokens predicted correctly.", row.get("accuracy")
    yield "manyhands_validation_loss", "Loss on held-out text.", row.get("loss")
    yield "manyhands_validation_loss_finite", "0 if the loss on held-out text is not finite.", finite
    yield "manyhands_validation_perplexity", "Exponential of the token loss.", row.get("perplexity")
    yield "manyhands_validation_sop_accuracy", "Share of sentence orders recognized correctly.", row.get("sop_accuracy")
    yield "manyhands_validation_detection_accuracy", "Share of tokens classified correctly.", detected
    yield "manyhands_validation_detection_f1", "F1 score for detecting replaced tokens.", f1


def _figures_metrics(figures: Figures) -> Iterator[Metric]:
    """Yield the keeper's counters (reset when it restarts), suspicions and quarantined devices."""
    ended = CounterMetricFamily(
        "manyhands_averaging_rounds", "Averaging rounds since the keeper started.", labels=["outcome"]
    )
    seconds = HistogramMetricFamily(
        "manyhands_averaging_round_duration_seconds", "Duration of successful rounds, including the wait for the group."
    )
    if (rounds := figures.rounds) is not None:  # the keeper takes part in every round, so its counts cover the run
        ended.add_metric(["succeeded"], rounds.succeeded)
        ended.add_metric(["failed"], rounds.failed)
        bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        seconds.add_metric([], list(zip(bounds, accumulate(rounds.by_duration), strict=True)), rounds.seconds)
    yield ended
    yield seconds
    text = "Peers in the swarm, by role and whether other peers can connect to them."
    peers = [([role, "true" if direct else "false"], count) for role, direct, count in figures.census]
    yield by_labels("manyhands_swarm_peers", text, ("role", "reachable"), peers)
    text = "Auxiliary peers that would shorten the rounds, estimated from the newest round."
    yield gauge("manyhands_missing_auxiliaries", text, figures.missing_auxiliaries)
    text = "Suspicions against devices within `quarantine_window_s`, by kind."
    words = [([kind], figures.suspicions.get(kind, 0)) for kind in sorted(KINDS)]
    yield by_labels("manyhands_suspicions", text, ("kind",), words)
    yield gauge("manyhands_devices_quarantined", "Devices in quarantine.", figures.quarantined)
    text = "When the keeper's token expires; the keeper renews it by itself."
    yield gauge("manyhands_keeper_token_expiry_timestamp_seconds", text, figures.keeper_token_until)


def certificate_expiry(path: Path) -> float | None:
    """Return the expiry of a PEM certificate as a Unix time, or None if it is unreadable."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError) as error:
        logger.warning("cannot read when %s expires: %s", path, error)
        return None


def _room(folder: Path) -> tuple[int | None, int | None]:
    """Return the free and total bytes of the folder's disk, or (None, None) if unreadable."""
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
