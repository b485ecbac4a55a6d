"""Families of metrics in one line; one of which nothing is known has a name and no sample."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import CounterMetricFamily


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
