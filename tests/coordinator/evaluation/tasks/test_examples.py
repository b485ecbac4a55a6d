"""Examples load from each format (CoNLL, tables, SQuAD, texts, templates, datasets), or an error names the line."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from auth.errors import ConfigError
from coordinator.evaluation.tasks.data import DataFolders, check_readable, read_split, read_text
from coordinator.evaluation.tasks.examples import (
    Classified,
    QuestionExample,
    Tagged,
    classified,
    read_conll,
    read_probes,
    read_rows,
    read_squad,
    read_texts,
)
from peer.config.evaluation import Columns, Examples, Task


@pytest.mark.parametrize(
    "text",
    [
        'text,label\n"good, very",yes\nbad,no\n',
        "\ufefftext\tlabel\r\ngood, very\tyes\r\nbad\tno\r\n",
        '{"text": "good, very", "label": "yes"}\n\n{"text": "bad", "label": "no"}\n',
    ],
    ids=["csv", "tsv", "jsonl"],
)
def test_tables_of_each_format_give_the_same_examples(text: str) -> None:
    """CSV, TSV and JSON Lines are told apart by their beginning."""
    assert classified(read_rows(text, "file"), Columns()) == [
        Classified("good, very", None, "yes"),
        Classified("bad", None, "no"),
    ]


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        ('"a" is one\tx\nb "\ty\n', ['"a" is one', 'b "']),
        ('"a\tx\nb"\ty\n', ['"a', 'b"']),
        ('"a ""b"""\tx\n"c\td"\ty\n', ['a "b"', "c\td"]),
    ],
    ids=["plain", "unpaired", "quoted"],
)
def test_quotation_marks_of_a_tsv_are_text_unless_they_quote_cells(rows: str, texts: list[str]) -> None:
    """PAWS-X quotes no cells; a cell that holds a tab is quoted."""
    assert [row["text"] for _, row in read_rows(f"text\tlabel\n{rows}", "file")] == texts


def test_pairs_and_numbers_as_labels() -> None:
    """Columns are chosen by name, and a label may be a number."""
    rows = read_rows('{"premise": "a", "hypothesis": "b", "label": 2}', "file")
    assert classified(rows, Columns(text="premise", pair="hypothesis")) == [Classified("a", "b", "2")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"text": "a", "label": "b"}\n{"text": ', "file, line 2 is not JSON"),
        (
            '{"text": "a"}\n',
            "no `label` (its columns: text): name the right one (--label-column, or `columns.label` of a task)",
        ),
        ("text,label\nx,y\nz\n", "file, line 3 has no `label`"),
        ("text,label\n", "file holds no example"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(text: str, said: str) -> None:
    """By its line and what it lacks."""
    with pytest.raises(ConfigError) as caught:
        classified(read_rows(text, "file"), Columns())
    assert said in str(caught.value)


def squad(answer: str = "Paris", start: int = 13) -> str:
    """One question in SQuAD's format."""
    answers = [{"text": answer, "answer_start": start}]
    question = {"id": "q1", "question": "where?", "answers": answers}
    return json.dumps({"data": [{"paragraphs": [{"context": "ada lives in Paris", "qas": [question]}]}]})


def test_squads_format_is_read_with_and_without_answers() -> None:
    """Version 2's questions without an answer have none."""
    assert read_squad(squad(), "file") == [QuestionExample("q1", "where?", "ada lives in Paris", ("Paris",), (13,))]
    for none in ("[]", '[{"text": "", "answer_start": -1}]'):
        without = squad().replace('[{"text": "Paris", "answer_start": 13}]', none)
        assert read_squad(without, "file")[0].answers == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [("[]", "is not in SQuAD's format"), (squad(start=12), "question q1: its answer 'Paris' is not at character 12")],
)
def test_answers_must_be_where_they_say(text: str, said: str) -> None:
    """An answer at another place would teach nonsense."""
    with pytest.raises(ConfigError) as caught:
        read_squad(text, "file")
    assert said in str(caught.value)


def test_texts_are_lines_or_documents() -> None:
    """Plain lines, and the lines of each JSON object's text."""
    assert read_texts("a b\r\n\nc\n", "file") == ["a b", "c"]
    assert read_texts('{"text": "a\\nb"}\n{"text": "c"}', "file") == ["a", "b", "c"]


def test_a_template_needs_a_mask_and_a_gap() -> None:
    """What lacks one is named."""
    with pytest.raises(ConfigError, match="template 0"):
        read_probes('[{"template": "{group} is a doctor", "groups": ["he", "she"]}]', "file")
    with pytest.raises(ConfigError, match="groups"):
        read_probes('[{"template": "{group} is a [MASK]", "groups": ["he"]}]', "file")
    assert len(read_probes('[{"template": "{group} is a [MASK]", "groups": ["he", "she"]}]', "file")) == 1


def test_a_digest_tells_whether_it_is_the_file(tmp_path: Path) -> None:
    """A packed file is unpacked if it is what its digest says, and refused otherwise."""
    raw = gzip.compress("বাংলা\tO\n".encode())
    (tmp_path / "a.conll.gz").write_bytes(raw)
    right = Examples(path="a.conll.gz", sha256=hashlib.sha256(raw).hexdigest())
    place = DataFolders(tmp_path, tmp_path)
    assert read_text(right, place) == "বাংলা\tO\n"
    with pytest.raises(ConfigError, match="is not the file that"):
        read_text(right.model_copy(update={"sha256": "0" * 64}), place)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"a O\n\xff O\n", "line 2 is not UTF-8 text"),
        (gzip.compress(b"a O\n", mtime=0)[:-9], "is damaged"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(raw: bytes | None, said: str, tmp_path: Path) -> None:
    """Bytes that are no text, half a file, and none."""
    if raw is not None:
        (tmp_path / "a").write_bytes(raw)
    with pytest.raises(ConfigError, match=said):
        read_text(Examples(path="a"), DataFolders(tmp_path, tmp_path))


def test_datasets_give_words_and_the_names_of_tags(tmp_path: Path) -> None:
    """Of a dataset the columns and the split are chosen; here it lies in a folder."""
    rows = [{"tokens": ["ada", "runs"], "ner_tags": ["B-PER", "O"]}, {"tokens": [], "ner_tags": []}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "test.jsonl").write_text(json.dumps(rows[0]))
    where = {"path": f"hub:{tmp_path}"}
    task = Task.model_validate({"name": "ner", "kind": "ner", "train": where, "test": where})
    place = DataFolders(tmp_path, tmp_path)
    assert [found.tags for found in read_split(task, "train", place) or ()] == [("B-PER", "O")]
    assert len(read_split(task, "test", place) or ()) == 1
    assert read_split(task, "dev", place) is None
    check_readable([task], place)
    renamed = task.model_copy(update={"columns": Columns(text="words")})
    with pytest.raises(ConfigError, match="has no lists of equal length `words`"):
        read_split(renamed, "train", place)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_split(task.model_copy(update={"train": Examples(path=f"hub:{tmp_path}/none")}), "train", place)


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
    assert read_conll(text, "file", Columns()) == TWO


@pytest.mark.parametrize(
    ("line", "columns", "word", "tag"),
    [
        ("New\u00a0York\u2028\x85x\tB-LOC\n", Columns(), "New\u00a0York\u2028\x85x", "B-LOC"),
        ("New York\tB-LOC\n", Columns(), "New York", "B-LOC"),
        ("1\tAda\tNNP\tx\n", Columns(text=1, label=2), "Ada", "NNP"),
    ],
    ids=["what ends lines elsewhere", "a space where tabs divide columns", "columns by number"],
)
def test_a_word_is_all_that_its_column_holds(line: str, columns: Columns, word: str, tag: str) -> None:
    """The second column of four is as good a tag as the last."""
    assert read_conll(line, "file", columns) == [Tagged((word,), (tag,))]


CONLLU = """\
# newdoc id = news
# newpar
# sent_id = 1
# text = Vámonos al\tmar #1
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tVamos\tir\tVERB\t_\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
6\t#\t#\tSYM\t_\t_\t5\tdep\t_\t_

#comment without a space
0.1\tyo\tyo\tPRON\t_\t_\t_\t_\t0:root\t_
1\t20 000\t20000\tNUM\t_\t_\t0\troot\t_\t_
1.1\tson\tser\tAUX\t_\t_\t_\t_\t1:dep\t_
"""


def words_by_their_numbers(text: str) -> list[list[tuple[str, str]]]:
    """An independent reading: the lines whose first column is a whole number, with FORM and UPOS."""
    blocks = [[line.split("\t") for line in block.splitlines()] for block in text.split("\n\n")]
    return [[(cells[1], cells[3]) for cells in block if cells[0].isdecimal()] for block in blocks]


@pytest.mark.parametrize(("words", "tags"), [(None, None), (1, 3), (-9, 3)])
def test_only_the_words_of_conllu_are_read(words: int | None, tags: int | None) -> None:
    """Comments, ranges and empty nodes are none; FORM and UPOS are the columns by default."""
    found = read_conll(CONLLU, "file", Columns(text=words, label=tags))
    assert [list(zip(each.words, each.tags, strict=True)) for each in found] == words_by_their_numbers(CONLLU)
    assert found[0].words == ("Vamos", "nos", "a", "el", "mar", "#")
    assert found[1].words == ("20 000",)


def test_words_and_questions_may_be_json_lines(tmp_path: Path) -> None:
    """As benchmarks keep them; numbers instead of tags' names are one sentence."""
    (tmp_path / "ner").write_text('{"tokens": ["Ada", "lives"], "tags": ["B-PER", "O"]}\n')
    columns = {"text": "tokens", "label": "tags"}
    ner = Task.model_validate({"name": "ner", "kind": "ner", "train": "ner", "test": "ner", "columns": columns})
    place = DataFolders(tmp_path, tmp_path)
    assert read_split(ner, "test", place) == [TWO[0]]
    (tmp_path / "ner").write_text('{"tokens": ["Ada", "lives"], "tags": [1, 0]}\n')
    with pytest.raises(ConfigError, match="ner, line 1 has numbers as tags"):
        read_split(ner, "test", place)
    answers = {"text": ["Paris"], "answer_start": [13]}
    row = {"id": "q1", "question": "where?", "context": "ada lives in Paris", "answers": answers}
    (tmp_path / "qa").write_text(json.dumps(row) + "\n" + json.dumps({**row, "id": "q2"}))
    qa = Task.model_validate({"name": "qa", "kind": "qa", "train": "qa", "test": "qa"})
    assert [each.id for each in read_split(qa, "test", place) or ()] == ["q1", "q2"]


def test_a_numbered_file_of_other_columns_is_read_alike() -> None:
    """Universal NER has five columns; where words are in the first column, `1-2` is a word."""
    text = "# sent_id = 1\n1-2\tal\tO\t-\t-\n1\ta\tO\t-\t-\n2\tel\tB-LOC\t-\t-\n"
    assert read_conll(text, "file", Columns(text=1, label=2)) == [Tagged(("a", "el"), ("O", "B-LOC"))]
    assert read_conll("1-2\tO\n1.1\tO\n# x\n#\tO\n", "file", Columns()) == [
        Tagged(("1-2", "1.1", "#"), ("O", "O", "O"))
    ]
    assert read_conll("# O\n1 O\n", "file", Columns()) == [Tagged(("#", "1"), ("O", "O"))]


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
        read_conll(text, "file", Columns())
    assert said in str(caught.value)


def test_half_a_line_is_passed_over_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """The sentence goes on after a tag without a word or a word without a tag; the warning has the first line."""
    assert read_conll("Ada\tB-PER\n\tO\nlives\tO\nx\t\n\nParis\tB-LOC\n", "file", Columns()) == TWO
    assert "file: 2 lines lack a word or its tag, the first is 2" in caplog.text


def test_a_file_without_empty_lines_is_one_sentence_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing says where its sentences end; a file of usual sentences is read without a word."""
    assert len(read_conll("a O\n\n" * 1001, "file", Columns())) == 1001
    assert caplog.text == ""
    assert [len(sentence.words) for sentence in read_conll("a O\n" * 1001, "file", Columns())] == [1001]
    assert "file: a sentence has 1001 words" in caplog.text


def test_a_column_that_is_not_there_is_an_error() -> None:
    """Of two columns there is no third."""
    with pytest.raises(ConfigError, match="there is no column 2"):
        read_conll("Ada O\n", "file", Columns(text=0, label=2))


def test_a_recipe_takes_the_first_examples_of_each_split(tmp_path: Path) -> None:
    """`max_train` bounds what a model is trained on, `max_test` what it is judged on."""
    (tmp_path / "x.csv").write_text("text,label\n" + "good,yes\nbad,no\n" * 5)
    content = {"name": "mood", "kind": "classification", "recipe": {"max_train": 3, "max_test": 2}}
    task = Task.model_validate(content | dict.fromkeys(("train", "dev", "test"), "x.csv"))
    place = DataFolders(tmp_path, tmp_path)
    assert [len(read_split(task, split, place) or ()) for split in ("train", "dev", "test")] == [3, 2, 2]
