"""Documents as a file of JSON Lines, packed or not, as the readers of sources take it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, cast

Packing = Literal["none", "gz", "zst"]
NAMES = {"none": "documents.jsonl", "gz": "documents.jsonl.gz", "zst": "documents.jsonl.zst"}
GZIP_LEVEL = 6


class DocumentWriter:
    """Writes each document as an object with one `text`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, documents: Sequence[str]) -> None:
        """Append them."""
        lines = [json.dumps({"text": document}, ensure_ascii=False) + "\n" for document in documents]
        self._file.write("".join(lines).encode("utf-8", "replace"))


@contextmanager
def open_writer(folder: Path, packing: Packing) -> Iterator[DocumentWriter]:
    """A writer to `NAMES[packing]` in the folder, which is complete when the context ends."""
    with _open(folder / NAMES[packing], packing) as file:
        yield DocumentWriter(file)


def _open(path: Path, packing: Packing) -> BinaryIO:
    if packing == "gz":
        return cast(BinaryIO, gzip.open(path, "wb", GZIP_LEVEL))
    if packing == "zst":
        import zstandard

        return cast(BinaryIO, zstandard.open(path, "wb"))
    return path.open("wb")
