"""Metrics of what the run stands on: the disk under its checkpoints, and the certificate that peers have pinned."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.web.metric_families import gauge

logger = logging.getLogger(__name__)


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
