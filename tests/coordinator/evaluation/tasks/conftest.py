"""The checkpoint that tasks are tried on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny_bert import save_tiny_bert


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT, whose folder's name says nothing."""
    return save_tiny_bert(tmp_path_factory.mktemp("x") / "17")


@pytest.fixture
def shared_with_the_group() -> Iterator[None]:
    """Under this umask new files have the mode 0640."""
    before = os.umask(0o027)
    yield
    os.umask(before)
