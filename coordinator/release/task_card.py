"""The README.md of a fine-tuned task model: which model, which examples, which recipe, which scores. Pure."""

from __future__ import annotations

import yaml

from coordinator.card_text import escaped, table
from coordinator.evaluate.results import TaskResult, score_text
from coordinator.model_card import TASK_TYPES
from peer.config.evaluation import Examples, Task


def task_card(run_name: str, language: str, base_model: str, terms: str, task: Task, result: TaskResult) -> str:
    """The whole text; `base_model`: where the released model is, `terms`: its licence as the hub names it."""
    front = {"language": language.partition("-")[0], "library_name": "transformers"}
    front |= {"license": terms} if terms else {}
    front |= {"pipeline_tag": TASK_TYPES[task.kind], "base_model": base_model}
    recipe = task.recipe
    scores = [(escaped(name), score_text(result, name)) for name in result.metrics if result.values(name)]
    facts = {
        "epochs, patience": f"{recipe.epochs}, {recipe.patience}",
        "batch size": recipe.batch_size,
        "learning rate": f"{recipe.learning_rate:g}",
        "longest text": f"{recipe.max_length} tokens",
        "seeds": ", ".join(map(str, recipe.seeds)),
    }
    failed = "".join(f"\n\nSeed {seed.seed} did not converge: {escaped(seed.failure)}." for seed in result.failures)
    sections = [
        f"# {run_name}: {escaped(task.name)}",
        f"`{base_model}`, fine-tuned. Of all seeds this is the model with the best score on the development set.",
        f"## Examples\nTrained on {_shown(task.train)}, judged on {result.examples:,} of {_shown(task.test)}.",
        f"## Scores\n{table(('metric', 'mean ± standard deviation of the seeds'), scores)}{failed}",
        f"## Recipe\n{table(('what', 'value'), facts.items())}",
    ]
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n\n" + "\n\n".join(sections) + "\n"


def _shown(examples: Examples | None) -> str:
    """A file by its name only, as folders are the operator's own; its digest says which one."""
    if examples is None:
        return "nothing"
    name = examples.path if examples.path.startswith("hub:") else examples.path.partition("?")[0].rpartition("/")[2]
    digest = "" if examples.sha256 is None else f" (SHA-256 `{examples.sha256[:16]}`)"
    return f"`{name.replace('`', '')}`{digest}"
