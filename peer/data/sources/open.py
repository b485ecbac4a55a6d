"""Opening of a source's units, for each kind of source."""

from __future__ import annotations

from peer.config.data import Source
from peer.data.sources.files import FileUnits
from peer.data.sources.units import BuiltinUnits, Units


def open_units(source: Source, *, whole: bool = False) -> Units:
    """Open the units of a source: by default cut so finely that many devices can share it, else as it lies there."""
    if source.kind == "builtin":
        return BuiltinUnits()
    if source.kind in ("text", "jsonl"):
        return FileUnits(source, whole=whole)
    from peer.data.sources.datasets import DatasetUnits

    return DatasetUnits(source, whole=whole)
