"""Presets of benchmarks: each is a task that can be evaluated, and a folder's files are found by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from auth.errors import ConfigError
from coordinator.cli.evaluate import make_task
from coordinator.evaluation.presets import PRESETS, files_of, preset_of
from coordinator.evaluation.tasks.data import DataFolders, read_split
from coordinator.evaluation.tasks.examples import Tagged


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_is_a_task(name: str) -> None:
    """Its kind knows its measure, and its name may stand in a run file."""
    task = make_task("", {"train": "a", "test": "b"}, {}, "", {}, name)
    assert (task.name, task.main_metric) == (name, preset_of(name).metric)


def test_a_folder_names_its_splits_by_its_files(tmp_path: Path) -> None:
    """Plain or packed, `validation` or `dev`; two files of a split, or none for the test, are one sentence."""
    with pytest.raises(ConfigError, match="holds no file such as"):
        files_of(tmp_path)
    for name in ("train.tsv", "dev.jsonl.gz", "test.csv", "readme.txt"):
        (tmp_path / name).touch()
    found = {split: Path(path).name for split, path in files_of(tmp_path).items()}
    assert found == {"train": "train.tsv", "dev": "dev.jsonl.gz", "test": "test.csv"}
    (tmp_path / "test.json").touch()
    with pytest.raises(ConfigError, match=r"test.json and test.csv: name one with `--test`"):
        files_of(tmp_path)
    with pytest.raises(ConfigError, match="must be one of: xnli"):
        preset_of("glue")


# A row as the benchmark's own files have it, for each preset whose columns have names.
ROWS = {
    "xnli": '{"premise": "a", "hypothesis": "b", "label": 1}',
    "paws-x": 'id\tsentence1\tsentence2\tlabel\n1\t"a" is one\tb "\t0',
    "blub-sentiment": '{"sentence1": "a", "label": "neg"}',
    "blub-inference": '{"sentence1": "a", "sentence2": "b", "label": "contradiction"}',
    "blub-ner": '{"tokens": ["a"], "tags": ["B-PER"]}',
    "blub-qa": '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "1", "question": "b", "answers": []}]}]}]}',
    "indicxtreme-sentiment": '{"INDIC REVIEW": "a", "ENGLISH REVIEW": "b", "LABEL": "Positive"}',
    "indicxtreme-xnli": '{"premise": "a", "hypothesis": "b", "label": 2}',
    "indicxtreme-ner": '{"words": ["a"], "ner": ["B-LOC"]}',
    "indicxtreme-qa": '{"context": "a", "question": "b", "answers": {"text": [""], "answer_start": [""]}}',
    "euroeval-sentiment": '{"text": "a", "label": "positive"}',
    "euroeval-acceptability": '{"text": "a", "label": "correct"}',
    "euroeval-ner": '{"text": "a", "tokens": ["a"], "labels": ["O"]}',
    "euroeval-qa": '{"context": "a", "question": "b", "answers": {"text": ["a"], "answer_start": [0]}}',
}


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_reads_a_row_of_its_benchmark(name: str, tmp_path: Path) -> None:
    """With the columns of the benchmark's own files."""
    path = tmp_path / "test.json"
    path.write_text(ROWS[name])
    task = make_task("", dict.fromkeys(("train", "test"), str(path)), {}, "", {}, name)
    assert len(read_split(task, "test", DataFolders(tmp_path, tmp_path)) or ()) == 1


def test_blubs_entities_are_read_as_multiconer_has_them(tmp_path: Path) -> None:
    """In CoNLL files, whose columns have no names; the lines that name a sentence are no words."""
    path = tmp_path / "test.conll"
    path.write_text("# id 1a2b\tdomain=bn\n# _ _ O\nParis _ _ B-LOC\n\n# id 3c4d\tdomain=bn\nAda _ _ B-PER\n")
    task = make_task("", dict.fromkeys(("train", "test"), str(path)), {}, "", {}, "blub-ner")
    found = read_split(task, "test", DataFolders(tmp_path, tmp_path))
    assert found == [Tagged(("#", "Paris"), ("O", "B-LOC")), Tagged(("Ada",), ("B-PER",))]
