"""The files that peers may fetch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coordinator.context.services import list_run_files


def test_only_what_a_peer_would_take_is_listed(tmp_path: Path) -> None:
    """Plain files of data formats, with size and digest; no links, folders, hidden files or formats that hold code."""
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    for name in (".hidden.json", "pytorch_model.bin", "modeling.py"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link.json").symlink_to(tmp_path / "tokenizer.json")
    (tmp_path / "folder.json").mkdir()
    files = list_run_files(tmp_path)
    assert {name: (file.size_bytes, file.sha256) for name, file in files.items()} == {
        "tokenizer.json": (2, hashlib.sha256(b"{}").digest())
    }
