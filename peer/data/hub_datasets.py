"""Documents of a Hugging Face dataset, streamed: nothing is downloaded before it is needed.

The only module that imports `datasets`, and only when a run names such a source: the import alone takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from auth.errors import ConfigError
from peer.config.data import Source

Position = Mapping[str, Any]


class HubDocuments:
    """An endless stream of one dataset's documents; each epoch in another order, each seed in its own.

    The order of the shards (files, or row groups of Parquet files) is shuffled, and the documents within a buffer.
    After a return the buffer is filled anew: up to `buffer_size` documents of the interrupted epoch are left out.
    """

    def __init__(self, source: Source, seed: int, buffer_size: int, position: Position | None = None) -> None:
        self._field = source.text_field
        self._dataset = _open(source).shuffle(seed=seed, buffer_size=buffer_size)
        self._epoch = 0 if position is None else int(position["epoch"])
        self._dataset.set_epoch(self._epoch)
        if position is not None:
            self._dataset.load_state_dict(position["state"])
        self._records = iter(self._dataset)
        self._epoch_is_empty = position is None

    def __next__(self) -> str:
        for record in self._records:
            self._epoch_is_empty = False
            text = record[self._field]
            return text if isinstance(text, str) else ""
        if self._epoch_is_empty:
            raise ConfigError(f"A hub data source has no documents with `{self._field}`: check its `split`.")
        self._epoch, self._epoch_is_empty = self._epoch + 1, True
        self._dataset.set_epoch(self._epoch)
        self._records = iter(self._dataset)
        return next(self)

    @property
    def epoch(self) -> int:
        """How often the whole dataset was read."""
        return self._epoch

    def position(self) -> Position:
        """What to pass to the constructor to go on from here."""
        return {"epoch": self._epoch, "state": self._dataset.state_dict()}


def _open(source: Source) -> Any:
    """The dataset as a stream of records with the text field alone; raises `ConfigError`."""
    import datasets

    datasets.logging.set_verbosity_error()  # it warns of the refilled buffer at every return
    assert source.path is not None
    try:
        dataset = datasets.load_dataset(
            source.path, source.config_name, split=source.split, revision=source.revision, streaming=True
        )
    except Exception as error:
        raise ConfigError(f"Cannot open the dataset `{source.path}`: {' '.join(str(error).split())}.") from error
    if dataset.column_names is not None and source.text_field not in dataset.column_names:
        columns = ", ".join(dataset.column_names)
        raise ConfigError(f"The dataset `{source.path}` has no column `{source.text_field}` (it has {columns}).")
    # More shards than files, where the format allows it: the more shards, the less two devices read alike.
    return dataset.select_columns([source.text_field]).reshard()
