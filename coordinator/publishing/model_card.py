"""The model card: the README.md of a published model, and the loss curve that it shows.

Both are made of the facts that `coordinator.publishing.card_facts` gathers. Text from members (names, hardware) is
escaped: a name is never a heading, a link or a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from coordinator.checkpoints.validations import ValidationRow
from coordinator.evaluation.evaluations import EvaluationRow
from coordinator.evaluation.tasks.results import CLASS_HEADINGS, ProbeResult, TaskResult, class_rows, score_text
from coordinator.publishing.card_facts import CardFacts
from coordinator.publishing.front_matter import PIPELINES, document, front_matter, is_dataset_name, is_discriminator
from coordinator.statistics.curve import draw_curve
from peer.config.data import Source
from peer.config.evaluation import Task
from peer.config.phases import all_phases
from peer.config.run import RunConfig

CARD, CURVE = "README.md", "loss.svg"
_MARKS = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~&:@])")

FOLDER = "DIR"  # in code, where the model has no repository
WATTS = (30, 300)  # of a laptop without a graphics card, and of a desktop computer with a large one

USES = {
    "fill-mask": "to predict masked words, and as a base to fine-tune for tasks such as classification, named "
    "entities, question answering and sentence embeddings. It does not write texts.",
    "replaced-token-detection": "to tell replaced tokens from original ones, and as a base to fine-tune for tasks such "
    "as classification, named entities, question answering and sentence embeddings. It neither fills masks nor writes "
    "texts.",
    "text-generation": "to go on with a text, and as a base to fine-tune. It was not tuned to follow instructions.",
}
LIMITS = (
    "Its output is no source of facts. Do not use it for decisions about people unless a person checks each of them.",
    "The training text was not searched for personal data or insults beyond the filters named under *Training data*; "
    "the model may repeat both.",
)
NO_PROBES = (
    "No bias probes were run on this checkpoint. Expect the stereotypes of its training text, and test the model on "
    "your own use before you rely on it."
)

CAUTION = (
    "The fillings below are the model's own, from the text that it was trained on; they are no statements of the "
    "volunteers. A distance of 0 means that the group made no difference, 1 that nothing was common."
)

ORDER_NOTE = (
    "transformers lists the pooler and the sentence-order head as `UNEXPECTED`, because this class leaves them out; "
    "`AutoModelForPreTraining` loads them."
)
ASKED = {"fill-mask": "To fill a mask", "text-generation": "To go on with a text"}

OBJECTIVES = {
    "mlm": "masked language modelling",
    "mlm+sop": "masked language modelling and sentence order",
    "rtd": "detection of tokens that a generator replaced",
    "clm": "causal language modelling",
}

LOSSES = {
    "mlm": "the loss of the masked tokens",
    "mlm+sop": "the loss of the masked tokens and that of the sentences' order, added",
    "rtd": "the loss of the generator's tokens, plus {weight:g} times the discriminator's loss",
    "clm": "the loss of the next token",
}

DECAYS = {
    "linear": "then linearly",
    "cosine": "then on half a cosine",
    "warmup_stable_decay": "constant, in the last {:,} steps",
}

MAX_HARDWARE = 50  # kinds


def card_files(facts: CardFacts) -> Mapping[str, str]:
    """Return the card and, if any step has a loss, its curve, by file name."""
    files = {CARD: write_card(facts)}
    return files | ({CURVE: _curve(facts)} if facts.losses else {})


def write_card(facts: CardFacts) -> str:
    """Return the whole README.md."""
    return document(front_matter(facts), _sections(facts))


def _curve(facts: CardFacts) -> str:
    boundaries = {phase.from_step: f"phase {phase.number}" for phase in all_phases(facts.config)[1:]}
    by_set = groupby(facts.validations, lambda row: row.set_sha256)  # losses on other samples join no line
    held_out = [[(float(row.step), row.loss) for row in group if row.loss is not None] for _, group in by_set]
    title = f"Loss of {facts.config.run.name} over {len(facts.losses)} global steps"
    return draw_curve(facts.losses, title, boundaries, held_out)


def _sections(facts: CardFacts) -> Iterator[str]:
    config = facts.config
    yield f"# {config.run.name}"
    yield escaped(config.run.description)
    counted = "" if facts.samples is None else f" ({facts.samples:,} samples)"
    sized = "" if facts.parameters is None else f" with {facts.parameters:,} parameters"
    yield (
        f"A language model of the family `{config.model.architecture}`{sized} for the language "
        f"`{config.run.language}`, trained together by volunteers for {_counted(facts.step, 'global step')}{counted}, "
        f"with {OBJECTIVES[config.objective.name]}."
    )
    yield facts.choice and escaped(facts.choice)
    yield "## Use\n" + usage(config, facts.repository)
    yield "## Intended use and limits\n" + intended_use(config)
    yield training_data(config)
    curve = f"![Loss over global steps](loss.svg)\n\n{_curve_caption(config)}\n\n" if facts.losses else ""
    yield "## Training\n" + curve + hyperparameters(config)
    if facts.validations:
        yield "## Evaluation\n" + _evaluation(facts.validations)
    if tasks := downstream(facts.evaluations, config.evaluation.tasks):
        yield "## Downstream tasks\n" + tasks
    yield "## Bias\n" + bias([row.result for row in facts.evaluations])
    yield from origin(facts)
    told = f"The manifest of this checkpoint has the SHA-256 `{facts.manifest_sha256}`."
    if facts.model_class and facts.probe_loss is not None:
        told += "\n\n" + check_code(config, facts.model_class, facts.probe_loss, facts.repository)
    yield "## Check\n" + told
    if facts.year is not None:
        yield "## Citation\n" + citation(config, facts.step, facts.manifest_sha256, facts.year)


def training_data(config: RunConfig) -> str:
    """Return the section that names each source with its licence."""
    return "## Training data\n" + listed(dict.fromkeys(map(_describe, config.all_sources)))


def origin(facts: CardFacts) -> Iterator[str]:
    """Yield the sections on compute, hardware, contributors and licence."""
    if facts.device_hours is not None:
        yield "## Compute and energy\n" + compute(facts.device_hours, len(facts.contributors) + facts.unnamed)
    if facts.hardware:
        yield "## Hardware\nAs the devices describe themselves:\n\n" + _hardware(facts.hardware)
    if facts.contributors or facts.unnamed:
        yield "## Contributors\n" + _contributors(facts)
    yield "## Licence\n" + (
        f"`{facts.license}`"
        if facts.license
        else "The run names no licence: ask its operator before you use the model."
    )


def usage(config: RunConfig, repository: str) -> str:
    """The lines that load the model, and its pipeline or its generator."""
    kind, place = config.objective.auto_class, repository or FOLDER
    loading = (
        f"```python\nfrom transformers import AutoTokenizer, {kind}\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{place}")\nmodel = {kind}.from_pretrained("{place}")\n```'
    )
    told = place_note(repository)
    if is_discriminator(config):
        more = f"The generator that it was trained with lies beside it:\n\n{generator_code(repository)}"
    else:
        more = f"{ASKED[PIPELINES[config.objective.name]]}:\n\n{pipeline_code(config, place)}"
    note = f"\n\n{ORDER_NOTE}" if config.objective.name == "mlm+sop" else ""
    return f"{told}{loading}{note}\n\n{more}"


def place_note(repository: str) -> str:
    """Say where the model lies, if it has no repository; "" if it has one."""
    return "" if repository else f"`{FOLDER}` stands for the folder of this file.\n\n"


def intended_use(config: RunConfig) -> str:
    """The purpose of the model, its longest input, and the purposes that it does not serve."""
    longest, possible = longest_sequence(config), config.model.max_position_embeddings
    length = f"It takes at most {possible:,} tokens, and was trained on sequences of up to {longest:,}"
    length += "." if longest == possible else ": expect less of it beyond that."
    lines = (language_limit(config), length, *LIMITS)
    uses = USES[PIPELINES[config.objective.name]]
    return f"The model is meant {uses}\n\n{listed(lines)}"


def listed(lines: Iterable[str]) -> str:
    """Return a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def language_limit(config: RunConfig) -> str:
    """Say for which language the model was trained."""
    return f"Texts in other languages than `{config.run.language}` are not what it was trained for."


def longest_sequence(config: RunConfig) -> int:
    """Return the number of tokens in the longest sequences that the model was trained on."""
    return max(phase.sequence_length for phase in all_phases(config))


def _curve_caption(config: RunConfig) -> str:
    loss = LOSSES[config.objective.name].format(weight=config.objective.discriminator_weight)
    return f"The curve shows {loss}."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _describe(source: Source) -> str:
    """A source without what is the operator's own: folders of the machine, logins, queries."""
    if source.kind == "builtin":
        return "the built-in corpus: CPython's documentation; licence: PSF-2.0"
    names = [_public_address(path, source.kind == "hub") for path in source.paths[:3]]
    more = f" and {len(source.paths) - 3} more" if len(source.paths) > 3 else ""
    revision = f", revision {escaped(source.revision)}" if source.revision else ""
    chosen = sampling(source)
    told = f"{source.kind}: {', '.join(f'`{name}`' for name in names)}{more}{revision}, weight {source.weight:g}"
    licence = f"licence: {escaped(source.license)}" if source.license else "licence: not stated"
    return "; ".join(part for part in (told, chosen, licence) if part)


def _public_address(path: str, is_dataset: bool) -> str:
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        place, _, inside = re.split(r"[?#]", rest)[0].partition("/")
        return f"{scheme}://{place.rpartition('@')[2]}/{inside}".replace("`", "")
    return (path if is_dataset and is_dataset_name(path) else path.rpartition("/")[2]).replace("`", "")


def _hardware(hardware: Mapping[str, int]) -> str:
    kinds = sorted(hardware.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"- {count} × {escaped(name) or 'unknown'}" for name, count in kinds[:MAX_HARDWARE]]
    rest = sum(count for _, count in kinds[MAX_HARDWARE:])
    return "\n".join([*lines, *([f"- {rest} others"] if rest else [])])


def _evaluation(rows: Sequence[ValidationRow]) -> str:
    """The newest measures, one line for each sequence length."""
    newest = {row.sequence_length: row for row in rows}
    has_order = any(row.sop_loss is not None or row.sop_accuracy is not None for row in newest.values())
    headings = ["step", "sequence length", "samples", "token loss", "perplexity", "token accuracy"]
    headings += ["sentence-order loss", "sentence-order accuracy"] if has_order else []
    lines = []
    for length, row in sorted(newest.items()):
        cells = [f"{row.step:,}", length, f"{row.samples:,}"]
        perplexity = "—" if row.perplexity is None else f"{row.perplexity:,.2f}"
        cells += [number(row.mlm_loss), perplexity, number(row.accuracy)]
        cells += [number(row.sop_loss), number(row.sop_accuracy)] if has_order else []
        lines.append(cells)
    told = "On text that was held out from training. The perplexity is the exponential of the token loss."
    if has_order:
        told += " Half of the sentence pairs are swapped, so chance gives a sentence-order accuracy of 0.5."
    return f"{told}\n\n{table(headings, lines)}"


def _contributors(facts: CardFacts) -> str:
    lines = [
        f"- {escaped(name)}: {f'{samples:,} samples' if samples else 'averaged for the others'}"
        for name, samples in facts.contributors
    ]
    if facts.unnamed:
        lines.append(f"- {facts.unnamed} more who are not named")
    return "Thanks to everybody who lent a hand:\n\n" + "\n".join(lines)


def hyperparameters(config: RunConfig) -> str:
    """Objective, optimizer, schedule, and each phase."""
    optimizer, schedule = config.optimizer, config.schedule
    facts = {
        **_objective(config),
        "optimizer": optimizer.name,
        "learning rate": f"{optimizer.learning_rate:g}, warmed up over {_counted(schedule.warmup_steps, 'step')}, "
        f"{DECAYS[schedule.shape].format(schedule.decay_steps or 0)} to 0 at step {schedule.total_steps:,}",
        "betas, epsilon": f"{optimizer.betas[0]:g}, {optimizer.betas[1]:g}; {optimizer.epsilon:g}",
        **({"momentum of hidden layers' matrices": f"{optimizer.momentum:g}"} if optimizer.name == "muon" else {}),
        "weight decay": f"{optimizer.weight_decay:g}",
        "gradient clipping": f"{optimizer.max_grad_norm:g}",
        "layers, hidden size, heads": f"{config.model.num_hidden_layers}, {config.model.hidden_size}, "
        f"{config.model.num_attention_heads}",
        "vocabulary": f"up to {config.tokenizer.vocab_size:,} tokens",
        "averaging": f"{config.averaging.compression}, {config.averaging.aggregation}"
        + (f", {config.averaging.local_steps} local steps" if config.averaging.local_steps > 1 else ""),
        "seed": str(config.run.seed),
    }
    return f"{table(('what', 'value'), facts.items())}\n\nSequences and batches:\n\n{listed(_phase_lines(config))}"


def _objective(config: RunConfig) -> dict[str, str]:
    """The settings that apply to the run's objective, for the table."""
    objective = config.objective
    facts = {"objective": f"`{objective.name}`"}
    if objective.masks:
        facts["mask probability"] = f"{objective.mask_probability:g}"
        facts["masked units"] = "whole words" if objective.whole_words else "single tokens"
    if objective.name == "rtd":
        facts["width of the generator"] = f"{objective.generator_size:g} of the discriminator's"
        facts["weight of the discriminator's loss"] = f"{objective.discriminator_weight:g}"
    facts["attention between documents of a sample"] = "yes" if config.data.cross_document_attention else "no"
    return facts


def _phase_lines(config: RunConfig) -> Iterator[str]:
    """Each phase in words, with the mask probability where phases change it."""
    phases = all_phases(config)
    rates = [config.in_phase(phase.from_step).objective.mask_probability for phase in phases]
    for phase, rate in zip(phases, rates, strict=True):
        yield escaped(f"{phase}, mask probability {rate:g}" if len(set(rates)) > 1 else str(phase))


def sampling(source: Source) -> str:
    """The sampling of a source's documents, in words; "" if all were read."""
    told = []
    if source.sampling is not None:
        told.append(f"sampled by perplexity ({source.sampling.method}, scale {source.sampling.scale:g})")
    if source.duplicates != "none":
        told.append(f"{source.duplicates} duplicates dropped")
    if source.filters.min_characters:
        told.append(f"at least {source.filters.min_characters:,} characters")
    if source.filters.languages:
        told.append(f"languages: {escaped(', '.join(source.filters.languages))}")
    return "; ".join(told)


def downstream(rows: Sequence[EvaluationRow], tasks: Sequence[Task]) -> str:
    """Scores on tasks, beside earlier models where the run names them; failed seeds are told."""
    references = {task.name: task.references for task in tasks}
    lines = []
    for row in rows:
        result = row.result
        if result.kind == "bias":
            continue
        for metric in result.metrics:
            if result.values(metric) or metric == result.metric:
                lines.append(
                    (escaped(result.task), escaped(metric), score_text(result, metric), f"{result.examples:,}")
                )
        lines += [
            (escaped(result.task), escaped(result.metric), f"{number(each.value)} ({escaped(each.name)})", "")
            for each in references.get(result.task, ())
        ]
    if not lines:
        return ""
    parts = [table(("task", "metric", "mean ± standard deviation", "examples"), lines)]
    return "\n\n".join([*parts, *(text for row in rows if (text := by_class(row.result)))])


def by_class(result: TaskResult) -> str:
    """The scores of each class of entities; "" for a task without any."""
    rows = [(escaped(name), *cells) for name, *cells in class_rows(result)]
    return f"Entities of {escaped(result.task)} by class:\n\n{table(CLASS_HEADINGS, rows)}" if rows else ""


def bias(results: Sequence[TaskResult]) -> str:
    """Each template with what fills it, group beside group."""
    probes = [_probe(probe) for result in results for probe in result.probes]
    return "\n\n".join([CAUTION, *probes]) if probes else NO_PROBES


def _probe(probe: ProbeResult) -> str:
    rows = zip(
        *[[f"{escaped(each.token)} {each.probability:.4f}" for each in group] for group in probe.fillings], strict=True
    )
    heading = f"{escaped(probe.template)} (distance {probe.distance:.4f})"
    return f"{heading}\n\n{table([escaped(group) for group in probe.groups], rows)}"


def check_code(config: RunConfig, model_class: str, probe_loss: float, repository: str) -> str:
    """Code by which anybody can check the weights: a fixed batch, and their loss on it."""
    download, place = _folder_code(repository)
    loss = "the discriminator's loss" if is_discriminator(config) else LOSSES[config.objective.name]
    return (
        f"`probe.safetensors` holds a fixed batch. On it the weights have a loss of **{probe_loss:.4f}** ({loss}):\n\n"
        f"```python\nfrom pathlib import Path\n\nimport torch\n{download}"
        f"from safetensors.torch import load_file\nfrom transformers import {model_class}\n\n"
        f"folder = Path({place})\n"
        f"model = {model_class}.from_pretrained(folder, use_safetensors=True).eval()\n"
        "with torch.no_grad():\n"
        "    print(f\"{float(model(**load_file(folder / 'probe.safetensors')).loss):.4f}\")\n```"
    )


def pipeline_code(config: RunConfig, place: str) -> str:
    """The lines that ask the model through transformers' pipeline."""
    task = PIPELINES[config.objective.name]
    begin = f'```python\nfrom transformers import pipeline\n\nask = pipeline("{task}", model="{place}")\n'
    if task == "fill-mask":
        each = 'for found in ask(f"... {ask.tokenizer.mask_token} ..."):\n'
        return f'{begin}{each}    print(found["token_str"], round(found["score"], 4))\n```'
    return f'{begin}print(ask("...")[0]["generated_text"])\n```'


def generator_code(repository: str) -> str:
    """Code that loads the generator of a released discriminator, which fills masks."""
    download, place = _folder_code(repository)
    return (
        f"```python\nfrom pathlib import Path\n\n{download}from safetensors.torch import load_file\n"
        "from transformers import AutoConfig, ElectraForMaskedLM\n\n"
        f"folder = Path({place})\n"
        'config = AutoConfig.from_pretrained(folder / "generator.json")\n'
        "generator = ElectraForMaskedLM.from_pretrained(\n"
        '    None, config=config, state_dict=load_file(folder / "generator.safetensors")\n)\n```'
    )


def _folder_code(repository: str) -> tuple[str, str]:
    """Return the import that brings the model's folder, empty where it is here, and the folder's expression."""
    if not repository:
        return "", f'"{FOLDER}"'
    return "from huggingface_hub import snapshot_download\n", f'snapshot_download("{repository}")'


def compute(device_hours: float, contributors: int) -> str:
    """The hours that volunteers' devices trained, and the energy that they may have taken."""
    least, most = (device_hours * watts / 1000 for watts in WATTS)
    people = "contributor" if contributors == 1 else "contributors"
    return (
        f"The devices of {contributors:,} {people} trained for {_amount(device_hours)} hours in total. Their energy "
        f"was not measured: at {WATTS[0]} to {WATTS[1]} W for each device, it was {_amount(least)} to {_amount(most)} "
        "kWh."
    )


def _amount(value: float) -> str:
    """One digit after the point from 1 on, two digits that are not zero below."""
    return f"{value:,.1f}" if value >= 1 else f"{float(f'{value:.2g}'):f}".rstrip("0").rstrip(".")


def citation(config: RunConfig, step: int, manifest_sha256: str, year: int) -> str:
    """BibTeX entries for the model and for the method's paper."""
    title = config.run.name.replace("{", "").replace("}", "")
    return (
        f"```bibtex\n@misc{{{title}-{step},\n  title = {{{title}: a language model trained together by volunteers}},\n"
        f"  year = {{{year}}},\n  note = {{Step {step}, manifest {manifest_sha256[:16]}}}\n}}\n"
        "@inproceedings{diskin2021dedloc,\n  title = {Distributed Deep Learning In Open Collaborations},\n"
        "  author = {Diskin, Michael and Bukhtiyarov, Alexey and Ryabinin, Max and others},\n"
        "  booktitle = {Advances in Neural Information Processing Systems},\n  year = {2021},\n"
        "  eprint = {2106.10207}\n}\n```"
    )


def escaped(text: str) -> str:
    """Somebody's own words as Markdown that shows just these, on one line."""
    return _MARKS.sub(r"\\\1", " ".join(text.split()))


def number(value: float | None) -> str:
    """Four digits after the point, a dash for nothing."""
    return "—" if value is None else f"{value:.4f}"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lines of a Markdown table; the cells are escaped by whoever gives them."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
