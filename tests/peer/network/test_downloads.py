"""Files that a coordinator names: only plain names of data, only inside the folder, only as announced."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from auth.errors import RequestError, StorageError
from peer.network.downloads import check_announced, has_digest, incoming_file, is_served_name
from peer.protocol import MAX_FILE_BYTES

CONTENT = b"data"
DIGEST = hashlib.sha256(CONTENT).digest()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.json.gz", "bn.model", "vocab.txt", "a-b_c.safetensors"])
def test_data_is_taken(name: str) -> None:
    """The formats that a tokenizer or weights are read from."""
    check_announced(name, 0)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../tokenizer.json",
        "/etc/tokenizer.json",
        "a/b.json",
        "a\\b.json",
        "a\0.json",
        "a\n.json",
        "tokenizer.json\n",
        ".hidden.json",
        "x" * 200 + ".json",
        "pytorch_model.bin",
        "model.pt",
        "model.pkl",
        "modeling.py",
        "lib.so",
        "tokenizer",
    ],
)
def test_other_names_are_refused(name: str, tmp_path: Path) -> None:
    """No path, nothing hidden, no format that may hold code; and nothing is written before that is known."""
    assert not is_served_name(name)
    with pytest.raises(RequestError, match="not taken"), incoming_file(tmp_path, name, DIGEST, len(CONTENT)):
        raise AssertionError("the block must not begin")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_announced_too_large_is_refused() -> None:
    """The limit is in the message."""
    with pytest.raises(RequestError, match=str(MAX_FILE_BYTES)):
        check_announced("a.json", MAX_FILE_BYTES + 1)


@pytest.mark.parametrize("name", ["a.json", ".a.json.part"])
def test_a_link_in_the_folder_is_replaced_and_not_followed(name: str, tmp_path: Path) -> None:
    """What the link points to stays as it was."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    into = tmp_path / "into"
    into.mkdir()
    (into / name).symlink_to(outside)
    with incoming_file(into, "a.json", DIGEST, len(CONTENT)) as file:
        file.write(CONTENT)
    assert outside.read_bytes() == b"precious"
    assert not (into / "a.json").is_symlink()
    assert [path.read_bytes() for path in into.iterdir()] == [CONTENT]


def test_only_a_plain_file_can_be_there_already(tmp_path: Path) -> None:
    """A link counts as missing, and so does a pipe, which would never end."""
    real = tmp_path / "real.json"
    real.write_bytes(CONTENT)
    (tmp_path / "link.json").symlink_to(real)
    os.mkfifo(tmp_path / "pipe.json")
    present = {path.name for path in tmp_path.iterdir() if has_digest(path, DIGEST)}
    assert present == {"real.json"}
    assert not has_digest(tmp_path / "missing.json", DIGEST)


@pytest.mark.parametrize("arriving", [b"dat", b"data!", b"Data"])
def test_what_is_not_as_announced_leaves_nothing(arriving: bytes, tmp_path: Path) -> None:
    """Too short, too long, or altered: no file takes the name."""
    with pytest.raises(StorageError, match="damaged"), incoming_file(tmp_path, "a.json", DIGEST, 4) as file:
        file.write(arriving)
    assert list(tmp_path.iterdir()) == []
