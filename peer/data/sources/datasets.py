"""Hugging Face datasets, streamed by `datasets`; a shard is a row group (Parquet) or a file.

Only this module imports `datasets`, and only when needed, because the import takes a second.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from auth.errors import ConfigError, UnreachableError
from peer.config.data import Source
from peer.data.sources.fields import column_of, document_of, value_of, wanted_fields
from peer.data.sources.units import Record, Shard, State, UnitReader
from peer.network.http import asking, reaching

HUB_TIMEOUT_S = 4.0  # timeout of our own request, because the hub's client retries for minutes
REPOSITORY = re.compile(r"[A-Za-z0-9_-][\w.-]*(/[\w.-]+)?")  # NAME or OWNER/NAME; anything else is a folder
MANY_SHARDS = 64  # number of shards above which shards are not divided
BATCH_ROWS = 1000  # rows decoded at a time
TEXT_TYPES = ("string", "large_string", "string_view")


def dataset_shards(source: Source) -> list[Shard]:
    """Open a dataset and list its shards. Raises `ConfigError` if that fails."""
    dataset = _open(source)
    numbers = range(int(dataset.num_shards))
    return [Shard(f"shard {n} of {source.name}", partial(RowReader, source, dataset, n)) for n in numbers]


class RowReader(UnitReader):
    """A reader of one part (`part` of `parts`) of a shard; each row is a document."""

    def __init__(self, source: Source, dataset: Any, shard: int, part: int, parts: int, state: State | None) -> None:
        from datasets.distributed import split_dataset_by_node

        # Resharding skips the row groups before `state`.
        rows = dataset.shard(dataset.num_shards, shard).reshard()
        self._rows = split_dataset_by_node(rows, part, parts)
        self._begun_at = state  # `datasets` has no state before the first row
        if state is not None:
            self._rows.load_state_dict(state)
        self._records = self._read(source)

    def state(self) -> State:
        return dict(self._rows.state_dict()) if self._begun_at is None else self._begun_at

    def _read(self, source: Source) -> Generator[Record, None, None]:
        with closing(iter(self._rows)) as rows:
            for row in rows:
                self._begun_at = None
                yield document_of(row, source)


def _open(source: Source) -> Any:
    """Open the dataset as a stream of the wanted columns. Raises `ConfigError` if that fails."""
    import datasets

    datasets.logging.set_verbosity(logging.CRITICAL)  # the reader reports errors
    datasets.disable_progress_bars()
    # The library's own retries would take minutes and could not be interrupted.
    datasets.config.STREAMING_OPEN_MAX_RETRIES = datasets.config.STREAMING_READ_MAX_RETRIES = 1
    for wait in ("OPEN_RETRY", "READ_RETRY", "READ_SERVER_UNAVAILABLE_RETRY", "READ_RATE_LIMIT_RETRY"):
        setattr(datasets.config, f"STREAMING_{wait}_INTERVAL", 0)
    dataset = _open_hub(source)
    if dataset.num_shards >= MANY_SHARDS:
        return dataset
    try:
        return dataset.reshard()
    except Exception:  # noqa: BLE001 - one bad file: its reader reports the error
        return dataset


def require_hub(source: Source) -> None:
    """Raise `UnreachableError` if the dataset is on the hub and the hub does not respond at all.

    Local folders need no hub. `HF_HUB_OFFLINE` and `HF_DATASETS_OFFLINE` disable the check.
    """
    name = source.paths[0]
    if source.kind != "hub" or Path(name).exists() or REPOSITORY.fullmatch(name) is None:
        return
    import datasets

    if datasets.config.HF_HUB_OFFLINE:
        return
    hub = datasets.config.HF_ENDPOINT
    try:
        with reaching(hub), asking("HEAD", hub, timeout_s=HUB_TIMEOUT_S):
            pass
    except UnreachableError as error:
        raise UnreachableError(
            f"Cannot open the dataset {source.name} of the hub: {error} Check this machine's connection, and "
            "`HF_ENDPOINT` if it is set."
        ) from error


def _open_hub(source: Source) -> Any:
    """Open a dataset on the hub or in a folder; load only the wanted columns of Parquet files."""
    from datasets import load_dataset_builder

    require_hub(source)
    try:
        builder = load_dataset_builder(source.paths[0], source.config_name, revision=source.revision)
        _require_own_files(builder.config.data_files, source)
        dataset = builder.as_streaming_dataset(split=source.split)
    except (FileNotFoundError, ValueError) as error:  # no such dataset, configuration or split
        raise ConfigError(f"Cannot open the dataset {source.name}: {' '.join(str(error).split())}.") from error
    known, features = dataset.column_names, dataset.features
    names = wanted_fields(source)
    columns = sorted({column_of(name, names if known is None else known) for name in names})
    missing = set(columns) - set(columns if known is None else known)
    if missing:
        raise ConfigError(f"The dataset {source.name} has no column `{missing.pop()}` (it has {', '.join(known)}).")
    kind = value_of(features, source.text_field)
    if features is not None and getattr(kind, "dtype", None) not in TEXT_TYPES:
        raise ConfigError(
            f"The field `{source.text_field}` of the dataset {source.name} is not text but {kind!r:.200}."
        )
    if hasattr(builder.config, "columns"):
        builder.config.columns, builder.config.batch_size = columns, BATCH_ROWS
    return builder.as_streaming_dataset(split=source.split).select_columns(columns)


def _require_own_files(data_files: Any, source: Source) -> None:
    """Raise `ConfigError` if a dataset on the hub refers to files elsewhere, such as local ones."""
    files = [str(file) for names in (data_files or {}).values() for file in names]
    foreign = [file for file in files if not file.startswith("hf://")]
    if foreign and not Path(source.paths[0]).exists():
        raise ConfigError(f"The dataset {source.name} names the file `{foreign[0]:.200}`, which is not its own.")
