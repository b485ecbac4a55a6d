"""Presets of benchmarks: each is a task that can be evaluated, and a folder's files are found by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from auth.errors import ConfigError
from coordinator.cli.evaluate import make_task
from coordinator.evaluation.presets import PRESETS, files_of, preset_of


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_is_a_task(name: str) -> None:
    """Its kind knows its measure, and its name may stand in a run file."""
    preset = preset_of(name)
    task = make_task(preset.kind, {"train": "a", "test": "b"}, preset.columns, preset.metric, {}, name)
    assert (task.name, task.main_metric) == (name, preset.metric)


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
