"""Presets for known benchmarks: the kind of task, the columns of its files, and the usual metric.

Presets do not download data; `manyhands evaluate --preset` reads files or a folder of files.

The column names come from the benchmarks' loading scripts: XNLI and PAWS-X in huggingface/datasets,
BLUB in csebuetnlp/banglabert, IndicXTREME in AI4Bharat/IndicBERT, EuroEval in EuroEval/EuroEval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from auth.errors import ConfigError

SPLITS = {"train": ("train",), "dev": ("validation", "dev", "val"), "test": ("test",)}
CONLL_ENDINGS = (".conll", ".conllu", ".txt")
ENDINGS = (".jsonl", ".json", ".csv", ".tsv", *CONLL_ENDINGS)


@dataclass(frozen=True)
class BenchmarkPreset:
    """A benchmark's kind of task, metric and column names; unlisted columns have default names."""

    kind: str
    metric: str
    columns: Mapping[str, str] = field(default_factory=dict)

    def columns_in(self, paths: Iterable[str]) -> Mapping[str, str]:
        """Return the files' column names, or {} for CoNLL files, whose columns are unnamed."""
        is_conll = any(path.removesuffix(".gz").endswith(CONLL_ENDINGS) for path in paths)
        return {} if is_conll and self.kind == "ner" else self.columns


_PAIR = {"text": "sentence1", "pair": "sentence2", "label": "label"}
_INFERENCE = {"text": "premise", "pair": "hypothesis", "label": "label"}
_TEXT = {"text": "text", "label": "label"}
PRESETS: Mapping[str, BenchmarkPreset] = {
    "xnli": BenchmarkPreset("classification", "accuracy", _INFERENCE),
    "paws-x": BenchmarkPreset("classification", "accuracy", _PAIR),
    "blub-sentiment": BenchmarkPreset("classification", "macro_f1", {"text": "sentence1", "label": "label"}),
    "blub-inference": BenchmarkPreset("classification", "accuracy", _PAIR),
    "blub-ner": BenchmarkPreset("ner", "f1", {"text": "tokens", "label": "tags"}),
    "blub-qa": BenchmarkPreset("qa", "f1"),
    "indicxtreme-sentiment": BenchmarkPreset("classification", "accuracy", {"text": "INDIC REVIEW", "label": "LABEL"}),
    "indicxtreme-xnli": BenchmarkPreset("classification", "accuracy", _INFERENCE),
    "indicxtreme-ner": BenchmarkPreset("ner", "f1", {"text": "words", "label": "ner"}),
    "indicxtreme-qa": BenchmarkPreset("qa", "f1"),
    "euroeval-sentiment": BenchmarkPreset("classification", "matthews_correlation", _TEXT),
    "euroeval-acceptability": BenchmarkPreset("classification", "matthews_correlation", _TEXT),
    "euroeval-ner": BenchmarkPreset("ner", "f1_without_misc", {"text": "tokens", "label": "labels"}),
    "euroeval-qa": BenchmarkPreset("qa", "f1"),
}


def preset_of(name: str) -> BenchmarkPreset:
    """Return the preset with this name; raises `ConfigError` if the name is unknown."""
    found = PRESETS.get(name)
    if found is None:
        raise ConfigError(f"`--preset` ({name!r:.60}) must be one of: {', '.join(PRESETS)}.")
    return found


def files_of(folder: Path) -> dict[str, str]:
    """Find the file of each split; raises `ConfigError` if a split has two files or `test` none."""
    found = {}
    for split, names in SPLITS.items():
        for name in names:
            paths = [folder / f"{name}{ending}{packed}" for ending in ENDINGS for packed in ("", ".gz")]
            there = [path for path in paths if path.is_file()]
            if len(there) > 1:
                raise ConfigError(f"{folder} holds {there[0].name} and {there[1].name}: name one with `--{split}`.")
            if there:
                found[split] = str(there[0].absolute())
                break
    if "test" not in found:
        raise ConfigError(f"{folder} holds no file such as test.jsonl, test.csv or test.conll, plain or gzip.")
    return found
