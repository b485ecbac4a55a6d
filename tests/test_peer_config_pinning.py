"""Which sources may change under a run."""

from __future__ import annotations

from typing import Any

import pytest

from peer.config.pinning import unpinned
from peer.run_config import RunConfig

COMMIT = "0123456789" * 4


def warnings(**source: Any) -> list[str]:
    return list(unpinned(RunConfig.from_mapping({"data": {"sources": [source]}})))


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "builtin"},
        {"kind": "text", "path": "/data/a.txt"},
        {"kind": "hub", "path": "o/n", "revision": COMMIT},
        {"kind": "jsonl", "path": f"hf://datasets/o/n@{COMMIT}/a.jsonl"},
    ],
)
def test_what_is_pinned_goes_without_a_word(source: dict[str, Any]) -> None:
    """A commit holds a dataset or a file fast; local files are the machine's own."""
    assert warnings(**source) == []


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ({"kind": "hub", "path": "o/n"}, "`revision`"),
        ({"kind": "hub", "path": "o/n", "revision": "main"}, "`revision`"),
        ({"kind": "jsonl", "path": "hf://datasets/o/n/a.jsonl"}, "`@COMMIT`"),
        ({"kind": "text", "path": "https://example.org/a.txt"}, "not pinned"),
        (
            {"kind": "builtin", "sampling": {"method": "random", "scale": 1.0, "scorer": {"model": "m.json"}}},
            "`sha256`",
        ),
    ],
)
def test_what_may_change_is_told_with_the_remedy(source: dict[str, Any], remedy: str) -> None:
    """One sentence each."""
    (warning,) = warnings(**source)
    assert remedy in warning
