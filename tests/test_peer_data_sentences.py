"""Where sentences end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.data.sentences import MAX_CHARACTERS, split_sentences


@pytest.mark.parametrize(
    ("document", "sentences"),
    [
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("Use e.g. this one. Then stop.", ["Use e.g. this one.", "Then stop."]),
        ("Pi is 3.14 or so. Yes.", ["Pi is 3.14 or so.", "Yes."]),
        ('He said "Go." Then he went.', ['He said "Go."', "Then he went."]),
        ("Well... Perhaps.", ["Well...", "Perhaps."]),
        ("আমি ভাত খাই।তুমি কী খাও? সে যায়।। শেষ", ["আমি ভাত খাই।", "তুমি কী খাও?", "সে যায়।।", "শেষ"]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("A title\n\nwith a text\nover two lines.", ["A title", "with a text\nover two lines."]),
        ("  \n\n \t", []),
    ],
)
def test_sentences_end_where_their_script_says_so(document: str, sentences: list[str]) -> None:
    """Full stops need white space and no small letter after them; dandas, CJK marks and empty lines need nothing."""
    assert split_sentences(document) == sentences


def test_a_long_text_without_an_end_is_split_at_its_lines() -> None:
    """A poem or a table is no single sentence."""
    line = "word " * 20
    document = "\n".join([line] * (MAX_CHARACTERS // len(line) + 2))
    assert split_sentences(document) == [line.strip()] * document.count("\n") + [line.strip()]


@given(st.text(alphabet="aB.!?। \n\"')…"))
def test_no_character_but_white_space_is_lost(document: str) -> None:
    """The sentences hold every visible character of the document, in order."""
    assert "".join("".join(split_sentences(document)).split()) == "".join(document.split())
