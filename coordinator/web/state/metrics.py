"""Prometheus' metrics: the run's, drawn from the snapshot at each scrape, the host's, the service's own, the process's.

Names and units follow Prometheus' conventions: base units, `_total` for counters, moments as Unix timestamps, which
alerts subtract from `time()`. No label has unbounded values. A metric of which nothing is known yet has no sample, but
its name is there (`gauge` and `counter` make a family of metrics in one line).
"""

from __future__ import annotations

import logging
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from cryptography import x509
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.context.telemetry import Telemetry
from coordinator.ledger.presence import APART
from coordinator.run.directory import RunDirectory
from coordinator.statistics.swarm_health import Figures
from coordinator.web.state.snapshot import Snapshot
from peer.reporting.metrics import BOUNDS_S, RoundTally
from peer.reporting.suspicions import KINDS
from peer.runtime.version import software_version

logger = logging.getLogger(__name__)


class SnapshotCollector(Collector):
    """Turns the newest snapshot into metrics."""

    def __init__(self, current: Callable[[], Snapshot], validates: bool) -> None:
        self._current, self._validates = current, validates

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: there is no snapshot yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        snapshot = self._current()
        yield from _progress(snapshot)
        yield from _newest_step(snapshot)
        yield from _totals(snapshot)
        yield from _checkpoints(snapshot)
        yield from _validation(snapshot, self._validates)
        yield from _figures_metrics(snapshot.figures)
        yield _alarms(snapshot)


def _progress(snapshot: Snapshot) -> Iterator[Metric]:
    """Where the swarm stands, as the keeper says."""
    swarm = snapshot.swarm
    yield gauge("manyhands_global_step", "Global steps completed.", swarm.step if swarm else 0)
    yield gauge("manyhands_peers", "Peers that train now.", swarm.peers if swarm else 0)
    yield gauge("manyhands_devices_online", "Devices with an open session.", len(snapshot.online))
    apart = sum(each.state == APART for each in snapshot.online)
    yield gauge("manyhands_devices_apart", "Of these, such as train without seeing the keeper.", apart)
    yield gauge("manyhands_stale", "1 while the keeper is silent.", int(snapshot.stale))
    yield gauge("manyhands_era", "How often the run has returned to a checkpoint.", snapshot.era)
    yield gauge(
        "manyhands_batch_samples",
        "Samples accumulated towards the next global step.",
        swarm.samples_accumulated if swarm else 0,
    )
    yield gauge(
        "manyhands_target_batch_samples", "Samples that make a global step.", swarm.target_batch_size if swarm else None
    )
    yield gauge(
        "manyhands_samples_per_second",
        "Samples of counted steps over the time that passed.",
        swarm.samples_per_second if swarm else None,
    )
    yield gauge("manyhands_time_left_seconds", "Until the run's last step, at that speed.", snapshot.time_left_s)
    yield gauge(
        "manyhands_keeper_timestamp_seconds",
        "When the keeper's own swarm node last answered it.",
        swarm.updated_at if swarm else None,
    )
    yield gauge("manyhands_snapshot_timestamp_seconds", "When the store was last read.", snapshot.taken_at)


def _newest_step(snapshot: Snapshot) -> Iterator[Metric]:
    """What the newest global step came to; what reports say of it, of the newest whose reports are in."""
    last, settled = snapshot.steps[-1] if snapshot.steps else None, snapshot.settled_step
    losses = [row.loss for row in snapshot.steps[-100:] if row.loss is not None]
    yield gauge("manyhands_loss", "Training loss of the newest global step.", losses[-1] if losses else None)
    yield gauge(
        "manyhands_loss_finite",
        "0 if no device could report a finite loss of the newest settled global step.",
        None if settled is None else int(settled.loss is not None),
    )
    yield gauge(
        "manyhands_step_timestamp_seconds",
        "When the newest global step was completed.",
        None if last is None else last.completed_at,
    )
    yield gauge(
        "manyhands_step_batch_ratio",
        "Samples averaged in at the newest settled global step, over its target batch.",
        None if settled is None else settled.samples / max(1, settled.target_batch_size),
    )
    yield gauge(
        "manyhands_step_devices",
        "Devices that reported the newest settled global step.",
        None if settled is None else settled.devices,
    )


def _alarms(snapshot: Snapshot) -> Metric:
    family = gauge(
        "manyhands_alarm_step",
        "The step with which an alarm that holds began, by kind; no sample where none holds.",
        None,
        ("kind",),
    )
    for alarm in snapshot.alarms:
        family.add_metric([alarm.kind], alarm.step)
    return family


def _totals(snapshot: Snapshot) -> Iterator[Metric]:
    yield counter("manyhands_samples", "Samples averaged in, since the run began.", snapshot.samples)
    yield counter("manyhands_averaged_bytes", "Of gradients that devices averaged for others.", snapshot.averaged_bytes)
    yield counter("manyhands_training_seconds", "Time that devices have trained, each counted.", snapshot.elapsed_s)
    yield counter("manyhands_data_wait_seconds", "Of it, time that they waited for data.", snapshot.data_wait_s)


def _checkpoints(snapshot: Snapshot) -> Iterator[Metric]:
    newest = snapshot.checkpoint
    yield gauge("manyhands_checkpoint_step", "Step of the newest checkpoint.", newest.step if newest else None)
    yield gauge("manyhands_checkpoint_size_bytes", "Its size.", newest.size_bytes if newest else None)
    yield gauge("manyhands_checkpoint_timestamp_seconds", "When it was written.", newest.created_at if newest else None)
    yield gauge(
        "manyhands_checkpoint_withheld", "1 if it is not published.", int(bool(newest.withheld)) if newest else None
    )
    yield gauge("manyhands_checkpoints", "Checkpoints that are kept.", len(snapshot.checkpoints))


def _validation(snapshot: Snapshot, validates: bool) -> Iterator[Metric]:
    """What held-out text says of the newest checkpoint that was evaluated."""
    row = snapshot.validations[-1] if snapshot.validations else None
    evaluated = {(each.step, each.manifest_sha256) for each in snapshot.validations}
    pending = [each for each in snapshot.checkpoints if (each.step, each.manifest_sha256) not in evaluated]
    oldest = min((each.created_at for each in pending), default=None) if validates else None
    yield gauge(
        "manyhands_validations_pending", "Checkpoints yet to be evaluated.", len(pending) if validates else None
    )
    yield gauge("manyhands_validation_pending_timestamp_seconds", "When the oldest of these was written.", oldest)
    yield gauge(
        "manyhands_validation_step",
        "Step of the newest checkpoint that was evaluated.",
        None if row is None else row.step,
    )
    yield gauge(
        "manyhands_validation_accuracy",
        "Share of predicted tokens that it gets right.",
        None if row is None else row.accuracy,
    )
    yield gauge("manyhands_validation_loss", "Its loss on held-out text.", None if row is None else row.loss)
    yield gauge(
        "manyhands_validation_loss_finite",
        "0 if that is no number.",
        None if row is None else int(row.loss is not None),
    )
    yield gauge(
        "manyhands_validation_perplexity", "Exponential of its token loss.", None if row is None else row.perplexity
    )
    yield gauge(
        "manyhands_validation_sop_accuracy",
        "Share of sentence orders that it tells.",
        None if row is None else row.sop_accuracy,
    )
    yield gauge(
        "manyhands_validation_detection_accuracy",
        "Share of all tokens that it tells replaced or not.",
        None if row is None else row.detection_accuracy,
    )
    yield gauge(
        "manyhands_validation_detection_f1",
        "F1 of the replaced tokens that it finds.",
        None if row is None else row.detection_f1,
    )


class BuildCollector(Collector):
    """What runs here."""

    def __init__(self, run: str) -> None:
        self._labels = {"version": software_version(), "python": platform.python_version(), "run": run}

    def describe(self) -> list[Metric]:
        """What `collect` gives."""
        return list(self.collect())

    def collect(self) -> Iterator[Metric]:
        """Always 1."""
        family = gauge(
            "manyhands_build_info",
            "The version of manyhands, of Python, and the run's name.",
            None,
            tuple(self._labels),
        )
        family.add_metric(list(self._labels.values()), 1)
        yield family


def metrics_text(directory: RunDirectory, telemetry: Telemetry, current: Callable[[], Snapshot]) -> Callable[[], bytes]:
    """A function that renders the metrics in Prometheus' text format."""
    registry, config = CollectorRegistry(), directory.config
    registry.register(SnapshotCollector(current, validates=config.data.validation.share > 0))
    registry.register(HostCollector(directory.checkpoints_dir, certificate_expiry(directory.tls_cert_path)))
    registry.register(BuildCollector(config.run.name))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return lambda: generate_latest(registry) + generate_latest(telemetry.registry)


def _figures_metrics(figures: Figures) -> Iterator[Metric]:
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
    yield gauge(
        "manyhands_missing_auxiliaries",
        "Auxiliary peers that would shorten the rounds, by the lines of the newest one.",
        figures.missing_auxiliaries,
    )
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
