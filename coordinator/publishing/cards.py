"""Model cards (README.md) for a model, its sentence embeddings and its task models.

The cards are rendered from `templates` and `coordinator.publishing.card_facts`. The filter `plain`
escapes text from members (names, hardware), which could otherwise add headings, links or tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from coordinator.evaluation.tasks.results import CLASS_HEADINGS, TaskResult, class_rows, score_text
from coordinator.publishing.card_facts import CardFacts
from coordinator.publishing.front_matter import (
    PIPELINES,
    TASK_TYPES,
    front_matter,
    is_dataset_name,
    model_results,
    task_results,
)
from coordinator.statistics.curve import draw_curve
from peer.config.data import Source
from peer.config.evaluation import HUB, Examples, Task
from peer.config.phases import all_phases
from peer.config.run import RunConfig

CARD, CURVE = "README.md", "loss.svg"
SENTENCES = "sentence-transformers"
_MARKS = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~&:@])")


def card_files(facts: CardFacts) -> Mapping[str, str]:
    """Return the model card and, if any step has a loss, the loss curve, keyed by file name."""
    files = {CARD: write_card(facts)}
    return files | ({CURVE: _curve(facts)} if facts.losses else {})


def write_card(facts: CardFacts) -> str:
    """Return the README.md of the run's model."""
    config = facts.config
    name, pipeline = config.run.name, PIPELINES[config.objective.name]
    newest = sorted({row.sequence_length: row for row in facts.validations}.items())
    results = [row.result for row in facts.evaluations]
    return _render(
        "model.md",
        facts,
        front_matter(facts, "transformers", pipeline, name=name, results=model_results(facts)),
        longest=longest_sequence(config),
        phases=list(_phase_lines(config)),
        held_out=[row for _, row in newest],
        has_order=any(row.sop_loss is not None or row.sop_accuracy is not None for _, row in newest),
        scored=[result for result in results if result.kind != "bias"],
        references={task.name: task.references for task in config.evaluation.tasks},
        probes=[probe for result in results for probe in result.probes],
    )


def embedding_card(facts: CardFacts, width: int, length: int, parameters: int | None) -> str:
    """Return the README.md of a checkpoint exported as an untuned sentence-transformers model.

    `width` is the size of an embedding, `length` the maximum number of tokens in a text.
    """
    front = front_matter(facts, SENTENCES, "sentence-similarity", (SENTENCES, "feature-extraction"), facts.repository)
    return _render("embedding.md", facts, front, width=width, length=length, parameters=parameters)


def task_card(facts: CardFacts, task: Task, result: TaskResult) -> str:
    """Return the README.md of a fine-tuned task model; `facts` describe the base model."""
    run = facts.config.run.name
    base_model = facts.repository or run
    retrieves = task.kind == "retrieval"
    library, tags = (SENTENCES, (SENTENCES,)) if retrieves else ("transformers", ())
    results = task_results(result, task)
    return _render(
        "task.md",
        facts,
        front_matter(facts, library, TASK_TYPES[task.kind], tags, base_model, f"{run}-{task.name}", results),
        task=task,
        base_model=base_model,
        retrieves=retrieves,
        train=_shown_examples(task.train),
        test=_shown_examples(task.test),
        result=result,
    )


def longest_sequence(config: RunConfig) -> int:
    """Return the longest sequence length used in training, in tokens."""
    return max(phase.sequence_length for phase in all_phases(config))


def escaped(text: str) -> str:
    """Escape a member's text for use in Markdown, and join its lines."""
    return _MARKS.sub(r"\\\1", " ".join(text.split()))


def _render(template: str, facts: CardFacts, front: str, **more: object) -> str:
    sources = dict.fromkeys(map(_describe, facts.config.all_sources))
    text = (
        _templates()
        .get_template(template)
        .render(facts=facts, config=facts.config, front=front, sources=sources, **more)
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"  # omitted sections leave blank lines


def _templates() -> Environment:
    folder = FileSystemLoader(Path(__file__).parent / "templates")
    made = Environment(loader=folder, undefined=StrictUndefined, trim_blocks=True)  # noqa: S701 - Markdown, no HTML
    made.filters |= {"plain": escaped, "amount": _amount, "number": _number}
    made.globals |= {"counted": _counted, "class_rows": class_rows, "class_headings": CLASS_HEADINGS}
    made.globals["score_text"] = score_text
    made.globals["zip"] = partial(zip, strict=True)
    return made


def _curve(facts: CardFacts) -> str:
    boundaries = {phase.from_step: f"phase {phase.number}" for phase in all_phases(facts.config)[1:]}
    by_set = groupby(facts.validations, lambda row: row.set_sha256)  # losses on different samples are not comparable
    held_out = [[(float(row.step), row.loss) for row in group if row.loss is not None] for _, group in by_set]
    title = f"Loss of {facts.config.run.name} over {len(facts.losses)} global steps"
    return draw_curve(facts.losses, title, boundaries, held_out)


def _describe(source: Source) -> str:
    """Describe a source without private details such as local folders, logins and URL queries."""
    if source.kind == "builtin":
        return "the built-in corpus: CPython's documentation; licence: PSF-2.0"
    names = [_public_address(path, source.kind == "hub") for path in source.paths[:3]]
    more = f" and {len(source.paths) - 3} more" if len(source.paths) > 3 else ""
    revision = f", revision {escaped(source.revision)}" if source.revision else ""
    told = [f"{source.kind}: {', '.join(f'`{name}`' for name in names)}{more}{revision}, weight {source.weight:g}"]
    if source.sampling is not None:
        told.append(f"sampled by perplexity ({source.sampling.method}, scale {source.sampling.scale:g})")
    if source.duplicates != "none":
        told.append(f"{source.duplicates} duplicates dropped")
    if source.filters.min_characters:
        told.append(f"at least {source.filters.min_characters:,} characters")
    if source.filters.languages:
        told.append(f"languages: {escaped(', '.join(source.filters.languages))}")
    told.append(f"licence: {escaped(source.license)}" if source.license else "licence: not stated")
    return "; ".join(told)


def _public_address(path: str, is_dataset: bool) -> str:
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        place, _, inside = re.split(r"[?#]", rest)[0].partition("/")
        return f"{scheme}://{place.rpartition('@')[2]}/{inside}".replace("`", "")
    return (path if is_dataset and is_dataset_name(path) else path.rpartition("/")[2]).replace("`", "")


def _shown_examples(examples: Examples | None) -> str:
    """Return a file's name and digest; leave out its folder, which is private."""
    if examples is None:
        return "nothing"
    name = examples.path if examples.path.startswith(HUB) else examples.path.partition("?")[0].rpartition("/")[2]
    digest = "" if examples.sha256 is None else f" (SHA-256 `{examples.sha256[:16]}`)"
    return f"`{name.replace('`', '')}`{digest}"


def _phase_lines(config: RunConfig) -> Iterator[str]:
    """Describe each phase; include its mask probability if the phases' probabilities differ."""
    phases = all_phases(config)
    rates = [config.in_phase(phase.from_step).objective.mask_probability for phase in phases]
    for phase, rate in zip(phases, rates, strict=True):
        yield f"{phase}, mask probability {rate:g}" if len(set(rates)) > 1 else str(phase)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _amount(value: float) -> str:
    """Format a number with one decimal if it is at least 1, else with two significant digits."""
    return f"{value:,.1f}" if value >= 1 else f"{float(f'{value:.2g}'):f}".rstrip("0").rstrip(".")


def _number(value: float | None, form: str = ".4f") -> str:
    return "—" if value is None else format(value, form)
