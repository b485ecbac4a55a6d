"""CoNLL files as they are in earnest load, or fail with the line."""

from __future__ import annotations

import pytest

from auth.errors import ConfigError
from coordinator.evaluate.conll import Tagged, read_conll

TWO = [Tagged(("Ada", "lives"), ("B-PER", "O")), Tagged(("Paris",), ("B-LOC",))]


@pytest.mark.parametrize(
    "text",
    [
        "Ada\tB-PER\nlives\tO\n\nParis\tB-LOC\n",
        "Ada B-PER\nlives O\n\nParis B-LOC",
        "\ufeffAda\tB-PER\r\nlives\tO\r\n\r\nParis\tB-LOC\r\n",
        "Ada\tB-PER\rlives\tO\r\rParis\tB-LOC\r",
        "\n\nAda\tB-PER\nlives\tO\n \n\t\n\nParis\tB-LOC\n\n\n",
        "Ada\tB-PER\t\nlives\t\tO\n\nParis\tB-LOC\n",
        "-DOCSTART- -X- -X- O\n\nAda NNP B-NP B-PER\nlives VBZ B-VP O\n\nParis NNP B-NP B-LOC\n",
        "# text = Ada lives\nAda\tB-PER\nlives\tO\n\n# text = Paris\nParis\tB-LOC\n",
    ],
    ids=["tabs", "spaces", "windows", "old macintosh", "empty sentences", "empty columns", "four columns", "comments"],
)
def test_every_form_gives_the_same_sentences(text: str) -> None:
    """Line ends, separators, empty lines and further columns change nothing."""
    assert read_conll(text, "file") == TWO


def test_a_word_may_hold_what_ends_lines_elsewhere() -> None:
    """U+2028, U+0085 and a no-break space within a word stay in it."""
    assert read_conll("New\u00a0York\u2028\x85x\tB-LOC\n", "file")[0].words == ("New\u00a0York\u2028\x85x",)


def test_words_with_spaces_are_whole_where_tabs_divide_columns() -> None:
    """In a line with a tab spaces belong to the words."""
    assert read_conll("New York\tB-LOC\n", "file") == [Tagged(("New York",), ("B-LOC",))]


def test_columns_are_chosen_by_number() -> None:
    """The second column of four is as good a tag as the last."""
    assert read_conll("1\tAda\tNNP\tx\n", "file", 1, 2) == [Tagged(("Ada",), ("NNP",))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Ada O\n\nParis\n", "file, line 3 has one column"),
        ("Ada O\nlives V O\n", "file, line 2 has 3 columns ('lives | V | O'), and the lines before have 2"),
        ("Ada O\nParis V B-LOC x\n", "file, line 2 has 4 columns"),
        ("\n \n", "file holds no sentence"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(text: str, said: str) -> None:
    """The message has the line's number and what stands there."""
    with pytest.raises(ConfigError) as caught:
        read_conll(text, "file")
    assert said in str(caught.value)


def test_half_a_line_is_passed_over_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """The sentence goes on after a tag without a word or a word without a tag; the warning has the first line."""
    assert read_conll("Ada\tB-PER\n\tO\nlives\tO\nx\t\n\nParis\tB-LOC\n", "file") == TWO
    assert "file: 2 lines lack a word or its tag, the first is 2" in caplog.text


def test_a_file_without_empty_lines_is_one_sentence_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing says where its sentences end; a file of usual sentences is read without a word."""
    assert len(read_conll("a O\n\n" * 1001, "file")) == 1001
    assert caplog.text == ""
    assert [len(sentence.words) for sentence in read_conll("a O\n" * 1001, "file")] == [1001]
    assert "file: a sentence has 1001 words" in caplog.text


def test_a_column_that_is_not_there_is_an_error() -> None:
    """Of two columns there is no third."""
    with pytest.raises(ConfigError, match="there is no column 2"):
        read_conll("Ada O\n", "file", 0, 2)
