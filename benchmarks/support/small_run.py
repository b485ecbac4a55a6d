"""The run file of most benchmarks."""

from __future__ import annotations

from pathlib import Path

SMALL_RUN = Path(__file__).with_name("small.yaml")
