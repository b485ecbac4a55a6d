"""The checkpoint that tasks are tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_bert import save_tiny_bert


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT, whose folder's name says nothing."""
    return save_tiny_bert(tmp_path_factory.mktemp("x") / "17")
