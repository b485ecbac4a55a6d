"""The folder of temporary files that goes with its process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from auth.errors import StorageError
from peer.runtime.temporary import LONGEST_FOLDER, make_short_folder, own_temporary_files


def test_temporary_files_of_the_process_and_of_its_children_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they left behind; afterwards both have the places of before."""
    monkeypatch.delenv("TMPDIR", raising=False)
    before = tempfile.gettempdir()
    with own_temporary_files():
        ours = Path(tempfile.mkdtemp())
        makes = "import tempfile; print(tempfile.mkdtemp(), end='')"
        theirs = Path(subprocess.run([sys.executable, "-c", makes], check=True, capture_output=True, text=True).stdout)
        assert ours.parent == theirs.parent != Path(before)
        assert ours.is_dir()
        assert theirs.is_dir()
    assert not ours.parent.exists()
    assert "TMPDIR" not in os.environ
    assert tempfile.gettempdir() == before


def test_a_sockets_name_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where temporary files have a long path, ours are in /tmp; where none can be made, one sentence says so."""
    long = tmp_path / ("x" * LONGEST_FOLDER)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = make_short_folder()
    folder.rmdir()
    assert folder.parent == Path("/tmp")
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(StorageError, match="TMPDIR"):
        make_short_folder()
