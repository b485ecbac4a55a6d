"""What is written can be read again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from peer.data.document_writer import NAMES, Packing, open_writer


@pytest.mark.parametrize("packing", ["none", "gz", "zst"])
def test_each_packing_holds_a_line_for_a_document(tmp_path: Path, packing: Packing) -> None:
    """Whatever is in the text; half a surrogate pair becomes a question mark."""
    texts = ["one\nline", "আমি", "\u2028 odd", "\ud800"]
    with open_writer(tmp_path, packing) as writer:
        writer.write(texts[:2])
        writer.write(texts[2:])
    path = tmp_path / NAMES[packing]
    with {"none": open, "gz": gzip.open, "zst": zstandard.open}[packing](path, "rb") as file:
        lines = file.read().decode().split("\n")[:-1]
    assert [json.loads(line)["text"] for line in lines] == [*texts[:3], "?"]
