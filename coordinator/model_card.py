"""The model card: the README.md that goes out with a model, with the front matter that the Hugging Face Hub reads.

Text only, from facts that `coordinator/card_facts.py` gathers. What members wrote (names, hardware) is escaped: a name
is never a heading, a link or a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from coordinator.validations import ValidationRow
from peer.config.data import Source
from peer.run_config import RunConfig

PIPELINES = {"mlm": "fill-mask", "mlm+sop": "fill-mask", "clm": "text-generation"}
OBJECTIVES = {
    "mlm": "masked language modelling",
    "mlm+sop": "masked language modelling and sentence order",
    "clm": "causal language modelling",
}
MAX_HARDWARE = 50  # kinds
_DATASET = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)  # a name on the hub, and no folder
_MARKS = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~&:@])")


@dataclass(frozen=True)
class CardFacts:
    """What a card tells."""

    config: RunConfig
    step: int
    manifest_sha256: str  # of the checkpoint
    license: str  # as the hub names it; "": none is given
    samples: int | None  # that all steps together took; None: nobody counted
    has_curve: bool
    hardware: Mapping[str, int]  # as devices say of themselves -> how many devices
    validations: Sequence[ValidationRow]  # up to this step
    contributors: Sequence[tuple[str, int]]  # public name, samples; who asked not to be named is not here
    unnamed: int  # how many members these are


def write_card(facts: CardFacts) -> str:
    """The whole README.md."""
    front = yaml.safe_dump(_front_matter(facts), sort_keys=False, allow_unicode=True)
    sections = "\n\n".join(section for section in _sections(facts) if section)
    return f"---\n{front}---\n\n{sections}\n"


def escaped(text: str) -> str:
    """Somebody's own words as Markdown that shows just these, on one line."""
    return _MARKS.sub(r"\\\1", " ".join(text.split()))


def _front_matter(facts: CardFacts) -> dict[str, Any]:
    config = facts.config
    paths = {path for source in config.data.sources if source.kind == "hub" for path in source.paths}
    datasets = sorted(path for path in paths if _DATASET.fullmatch(path))
    newest = facts.validations[-1] if facts.validations else None
    front: dict[str, Any] = {"language": config.run.language.partition("-")[0], "library_name": "transformers"}
    front |= {"license": facts.license} if facts.license else {}
    front |= {"pipeline_tag": PIPELINES[config.objective.name], "tags": [config.model.architecture, "manyhands"]}
    front |= {"datasets": datasets} if datasets else {}
    return front | ({} if newest is None else {"model-index": _index(config, newest)})


def _index(config: RunConfig, row: ValidationRow) -> list[dict[str, Any]]:
    """The measures in the form in which the hub shows them."""
    values = {"accuracy": row.accuracy, "perplexity": row.perplexity}
    metrics = [{"type": kind, "value": round(value, 4)} for kind, value in values.items() if value is not None]
    dataset = {"name": "held-out text of the run", "type": "held-out"}
    task = {"type": PIPELINES[config.objective.name]}
    return [{"name": config.run.name, "results": [{"task": task, "dataset": dataset, "metrics": metrics}]}]


def _sections(facts: CardFacts) -> Iterator[str]:
    config = facts.config
    yield f"# {config.run.name}"
    yield escaped(config.run.description)
    counted = "" if facts.samples is None else f" ({facts.samples:,} samples)"
    yield (
        f"A `{config.model.architecture}` model, trained together by volunteers for {facts.step} global steps"
        f"{counted}, with {OBJECTIVES[config.objective.name]}. "
        f"The checkpoint's manifest has the SHA-256 `{facts.manifest_sha256}`."
    )
    yield _usage(config)
    yield "## Training data\n" + "\n".join(f"- {_describe(source)}" for source in config.data.sources)
    if facts.has_curve:
        yield "## Training\n![Loss over global steps](loss.svg)"
    if facts.hardware:
        yield "## Hardware\nAs the devices say of themselves:\n\n" + _hardware(facts.hardware)
    if facts.validations:
        yield "## Evaluation\n" + _evaluation(facts.validations)
    if facts.contributors or facts.unnamed:
        yield "## Contributors\n" + _contributors(facts)
    yield "## Licence\n" + (f"`{facts.license}`" if facts.license else "None is given.")


def _usage(config: RunConfig) -> str:
    kind = "AutoModelForCausalLM" if config.objective.name == "clm" else "AutoModelForMaskedLM"
    return (
        f"```python\nfrom transformers import AutoTokenizer, {kind}\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("DIR")\nmodel = {kind}.from_pretrained("DIR")\n```'
    )


def _describe(source: Source) -> str:
    """A source without what is the operator's own: folders of the machine, logins, queries."""
    if source.kind == "builtin":
        return "the built-in corpus: CPython's documentation"
    names = [_public_address(path, source.kind == "hub") for path in source.paths[:3]]
    more = f" and {len(source.paths) - 3} more" if len(source.paths) > 3 else ""
    revision = f", revision {escaped(source.revision)}" if source.revision else ""
    return f"{source.kind}: {', '.join(f'`{name}`' for name in names)}{more}{revision}, weight {source.weight:g}"


def _public_address(path: str, is_dataset: bool) -> str:
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        place, _, inside = re.split(r"[?#]", rest)[0].partition("/")
        return f"{scheme}://{place.rpartition('@')[2]}/{inside}".replace("`", "")
    return (path if is_dataset and _DATASET.fullmatch(path) else path.rpartition("/")[2]).replace("`", "")


def _hardware(hardware: Mapping[str, int]) -> str:
    kinds = sorted(hardware.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"- {count} × {escaped(name) or 'unknown'}" for name, count in kinds[:MAX_HARDWARE]]
    rest = sum(count for _, count in kinds[MAX_HARDWARE:])
    return "\n".join([*lines, *([f"- {rest} others"] if rest else [])])


def _evaluation(rows: Sequence[ValidationRow]) -> str:
    """The newest measures, one line for each sequence length."""
    newest = {row.sequence_length: row for row in rows}
    lines = ["| step | sequence length | samples | loss | perplexity | accuracy |", "|---|---|---|---|---|---|"]
    for length, row in sorted(newest.items()):
        cells = (row.step, length, row.samples, _number(row.loss), _number(row.perplexity), _number(row.accuracy))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "On text that was held out from training:\n\n" + "\n".join(lines)


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4f}"


def _contributors(facts: CardFacts) -> str:
    lines = [
        f"- {escaped(name)}: {f'{samples:,} samples' if samples else 'averaged for the others'}"
        for name, samples in facts.contributors
    ]
    if facts.unnamed:
        lines.append(f"- {facts.unnamed} more who are not named")
    return "Thanks to everybody who lent a hand:\n\n" + "\n".join(lines)
