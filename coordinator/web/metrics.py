"""Prometheus metrics, drawn from the snapshot at each scrape; no label has unbounded values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.validations import ValidationRow
from coordinator.web.snapshot import Snapshot


class SnapshotCollector(Collector):
    """Turns the newest snapshot into metrics."""

    def __init__(self, current: Callable[[], Snapshot]) -> None:
        self._current = current

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: there is no snapshot yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        snapshot = self._current()
        swarm = snapshot.swarm
        losses = [row.loss for row in snapshot.steps if row.loss is not None]
        yield _gauge("manyhands_global_step", "Global steps completed.", swarm.step if swarm else 0)
        yield _gauge("manyhands_peers", "Peers that train now.", swarm.peers if swarm else 0)
        yield _gauge("manyhands_devices_online", "Devices with an open session.", len(snapshot.online))
        yield _gauge("manyhands_stale", "1 while the keeper is silent.", int(snapshot.stale))
        yield _gauge(
            "manyhands_batch_samples",
            "Samples accumulated towards the next global step.",
            swarm.samples_accumulated if swarm else 0,
        )
        if losses:
            yield _gauge("manyhands_loss", "Training loss of the newest global step.", losses[-1])
        if snapshot.checkpoint is not None:
            yield _gauge("manyhands_checkpoint_step", "Step of the newest checkpoint.", snapshot.checkpoint.step)
        if snapshot.validations:
            yield from _validation(snapshot.validations[-1])
        yield _counter("manyhands_samples", "Samples averaged in, since the run began.", snapshot.samples)
        yield _counter(
            "manyhands_averaged_bytes", "Of gradients that devices averaged for others.", snapshot.averaged_bytes
        )
        yield _counter(
            "manyhands_training_seconds", "Time that devices have trained, each counted.", snapshot.elapsed_s
        )
        yield _counter("manyhands_data_wait_seconds", "Of it, time that they waited for data.", snapshot.data_wait_s)


def _validation(row: ValidationRow) -> Iterator[Metric]:
    """What held-out text says of the newest checkpoint that was evaluated."""
    yield _gauge("manyhands_validation_step", "Step of the newest checkpoint that was evaluated.", row.step)
    yield _gauge("manyhands_validation_accuracy", "Share of predicted tokens that it gets right.", row.accuracy)
    if row.loss is not None:
        yield _gauge("manyhands_validation_loss", "Its loss on held-out text.", row.loss)
    if row.perplexity is not None:
        yield _gauge("manyhands_validation_perplexity", "Exponential of its token loss.", row.perplexity)
    if row.sop_accuracy is not None:
        yield _gauge("manyhands_validation_sop_accuracy", "Share of sentence orders that it tells.", row.sop_accuracy)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def metrics_text(current: Callable[[], Snapshot]) -> Callable[[], bytes]:
    """A function that renders the metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(current))
    return lambda: generate_latest(registry)
