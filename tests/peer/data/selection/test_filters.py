"""Which documents are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peer.config.data import Filters, Source
from peer.data.selection.filters import build_filters, have_wanted_length, keep_all
from tests.support.small_scorers import write_unigram


class Without:
    """Drops documents with a letter, and remembers what it was asked."""

    def __init__(self, letter: str) -> None:
        self._letter = letter
        self.asked: list[str] = []

    def __call__(self, documents: Sequence[str]) -> NDArray[np.bool_]:
        self.asked += documents
        return np.array([self._letter not in document for document in documents])


def test_documents_of_the_wanted_length_stay() -> None:
    """Both limits are lengths that are still wanted; without an upper one anything long stays."""
    documents = ["", "ab", "abc", "abcd"]
    both, lower = Filters(min_characters=2, max_characters=3), Filters(min_characters=3)
    assert have_wanted_length(both, documents).tolist() == [False, True, True, False]
    assert have_wanted_length(lower, documents).tolist() == [False, False, True, True]


def test_a_document_must_pass_all_filters() -> None:
    """Each filter sees only what passed those before it, so that the dear ones come last."""
    first, second = Without("x"), Without("y")
    assert keep_all([first, second], ["a", "x", "y", "xy", "b"]).tolist() == [True, False, False, False, True]
    assert second.asked == ["a", "y", "b"]


def test_filters_are_not_asked_about_nothing() -> None:
    """A block without documents is left alone, and so is one of which nothing is left."""
    nothing, unasked = Without("x"), Without("y")
    assert keep_all([nothing, unasked], []).tolist() == []
    assert keep_all([nothing, unasked], ["x"]).tolist() == [False]
    assert unasked.asked == []


def test_the_run_file_says_what_is_filtered() -> None:
    """Without limits there is no filter but those that come first."""
    first = Without("x")
    limited = Source.model_validate({"kind": "builtin", "filters": {"min_characters": 3, "max_characters": 5}})
    assert build_filters(Source(kind="builtin"), [first], None)() == [first]
    assert (
        keep_all(build_filters(limited, [first], None)(), ["abc", "ab", "abx", "abcdef"]).tolist()
        == [True] + [False] * 3
    )


def test_sampling_is_decided_by_the_text(tmp_path: Path) -> None:
    """In whatever company a document is scored."""
    write_unigram(tmp_path / "tokenizer.json")
    sampling = {"method": "gaussian", "scale": 0.6, "quartiles": [10.0, 60.0, 900.0], "width": 2.0}
    source = Source.model_validate({"kind": "builtin", "sampling": sampling})
    [together] = build_filters(source, [], tmp_path)()
    texts = [f"{'a ' * (number % 7)}b {number}" for number in range(200)]
    kept = together(texts)
    assert 20 < kept.sum() < 150
    assert [together([text])[0] for text in texts] == kept.tolist()


def test_a_scale_above_one_keeps_all_by_chance() -> None:
    """As where the target is all there is."""
    source = Source.model_validate({"kind": "builtin", "sampling": {"method": "random", "scale": 1.5}})
    assert keep_all(build_filters(source, [], None)(), ["a", "b", "c"]).all()
