"""The position of a sink on disk: the next points to write are recorded there before they are written.

If the process is killed, the next one knows which points may have been written, and the sink, if it can be asked, how
many were.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from auth.errors import StorageError
from auth.files import write_private
from coordinator.tracking.points import SinkPosition


class Logbook:
    """A sink's file; raises `StorageError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, position: SinkPosition, ahead: Sequence[SinkPosition]) -> None:
        """Record that the rows up to the positions `ahead`, one after the other, are about to be written."""
        text = json.dumps({"position": asdict(position), "ahead": [asdict(each) for each in ahead]})
        write_private(self._path, text.encode())

    def settle(self, position: SinkPosition) -> None:
        """All up to here is written."""
        self.begin(position, ())

    def recover(self, held: int | None) -> SinkPosition:
        """Return the position to go on from, if the sink holds so many rows; None: unknown, so no row is written twice.

        A sink that holds nothing (its folder was removed) is written anew.
        """
        if held == 0:
            return SinkPosition()
        position, ahead = self._read()
        if held is None:
            return ahead[-1] if ahead else position
        return max([each for each in ahead if each.rows <= held], key=lambda each: each.rows, default=position)

    def _read(self) -> tuple[SinkPosition, list[SinkPosition]]:
        try:
            found = json.loads(self._path.read_bytes())
            return SinkPosition(**found["position"]), [SinkPosition(**each) for each in found["ahead"]]
        except FileNotFoundError:
            return SinkPosition(), []
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StorageError(f"Cannot read {self._path}: remove it to have the sink written anew.") from error
