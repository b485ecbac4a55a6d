"""Sections of the model card about how the model was made and what it can do: pure, from the run's own facts."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.card_text import escaped, number, table
from coordinator.evaluate.results import ProbeResult, TaskResult, score_text
from coordinator.evaluations import EvaluationRow
from peer.config.data import Source
from peer.config.evaluation import Task
from peer.phases import all_phases
from peer.run_config import RunConfig

CAUTION = (
    "The fillings below are the model's own, from the text that it was trained on; they are no statements of the "
    "volunteers. A distance of 0 means that the group made no difference, 1 that nothing was common."
)


def hyperparameters(config: RunConfig) -> str:
    """Optimizer, schedule, and each phase."""
    optimizer, schedule = config.optimizer, config.schedule
    facts = {
        "optimizer": optimizer.name,
        "learning rate": f"{optimizer.learning_rate:g}, warm over {schedule.warmup_steps:,} steps, "
        f"then linearly to 0 at {schedule.total_steps:,}",
        "betas, epsilon": f"{optimizer.betas[0]:g}, {optimizer.betas[1]:g}; {optimizer.epsilon:g}",
        "weight decay": f"{optimizer.weight_decay:g}",
        "gradient clipping": f"{optimizer.max_grad_norm:g}",
        "layers, hidden size, heads": f"{config.model.num_hidden_layers}, {config.model.hidden_size}, "
        f"{config.model.num_attention_heads}",
        "vocabulary": f"{config.tokenizer.vocab_size:,} asked for",
        "averaging": f"{config.averaging.compression}, {config.averaging.aggregation}"
        + (f", {config.averaging.local_steps} local steps" if config.averaging.local_steps > 1 else ""),
        "seed": str(config.run.seed),
    }
    phases = "\n".join(f"- {escaped(str(phase))}" for phase in all_phases(config))
    return f"{table(('what', 'value'), facts.items())}\n\n{phases}"


def sampling(source: Source) -> str:
    """How documents of a source were chosen; "" if all were read."""
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
    return table(("task", "metric", "mean ± standard deviation", "examples"), lines) if lines else ""


def bias(results: Sequence[TaskResult]) -> str:
    """Each template with what fills it, group beside group."""
    probes = [_probe(probe) for result in results for probe in result.probes]
    return "\n\n".join([CAUTION, *probes]) if probes else ""


def _probe(probe: ProbeResult) -> str:
    rows = zip(
        *[[f"{escaped(each.token)} {each.probability:.4f}" for each in group] for group in probe.fillings], strict=True
    )
    heading = f"{escaped(probe.template)} (distance {probe.distance:.4f})"
    return f"{heading}\n\n{table([escaped(group) for group in probe.groups], rows)}"


def check_code(model_class: str, probe_loss: float) -> str:
    """How anybody can see that these are the weights: a fixed batch, and the loss that they give on it."""
    return (
        f"`probe.safetensors` holds a fixed batch. On it the loss of these weights is **{probe_loss:.4f}**:\n\n"
        "```python\nfrom pathlib import Path\n\nimport torch\n"
        f"from safetensors.torch import load_file\nfrom transformers import {model_class}\n\n"
        'folder = Path("DIR")\n'
        f"model = {model_class}.from_pretrained(folder, use_safetensors=True).eval()\n"
        "with torch.no_grad():\n"
        "    print(f\"{float(model(**load_file(folder / 'probe.safetensors')).loss):.4f}\")\n```"
    )


def filling_code() -> str:
    """The fill-mask pipeline on the released folder."""
    return (
        '```python\nfrom transformers import pipeline\n\nfill = pipeline("fill-mask", model="DIR")\n'
        'print(fill(f"... {fill.tokenizer.mask_token} ..."))\n```'
    )


def compute(device_hours: float, contributors: int) -> str:
    """What volunteers gave."""
    return f"{contributors:,} contributors' devices trained for {device_hours:,.1f} hours, all of them added up."


def citation(config: RunConfig, step: int, manifest_sha256: str, year: int) -> str:
    """How to cite the model; the method's own paper with it."""
    title = config.run.name.replace("{", "").replace("}", "")
    return (
        f"```bibtex\n@misc{{{title}-{step},\n  title = {{{title}: a language model trained together by volunteers}},\n"
        f"  year = {{{year}}},\n  note = {{Step {step}, manifest {manifest_sha256[:16]}}}\n}}\n"
        "@inproceedings{diskin2021dedloc,\n  title = {Distributed Deep Learning In Open Collaborations},\n"
        "  author = {Diskin, Michael and Bukhtiyarov, Alexey and Ryabinin, Max and others},\n"
        "  booktitle = {Advances in Neural Information Processing Systems},\n  year = {2021},\n"
        "  eprint = {2106.10207}\n}\n```"
    )
