"""What the model's template needs: whether it can be tried, its evaluations, its checkpoints."""

from __future__ import annotations

from typing import Any

from coordinator.evaluations import curves
from coordinator.web.overview_models import ValidationFacts
from coordinator.web.run_facts import checkpoint_facts
from coordinator.web.snapshot import Snapshot
from coordinator.web.translations import Texts
from coordinator.web.trials import trial_of

# What the field begins with, in the run's language: a visitor need only press the button.
EXAMPLES = {
    "blanks": {
        "bn": "আমার সোনার বাংলা, আমি তোমায় ___ ।",
        "en": "Many hands make light ___.",
        "es": "Más vale ___ que nunca.",
        "id": "Bersatu kita ___, bercerai kita runtuh.",
    },
    "continuation": {
        "bn": "এক দেশে এক",
        "en": "Once upon a",
        "es": "Había una",
        "id": "Pada suatu",
    },
}


def model_values(state: Any, _texts: Texts) -> dict[str, Any]:
    """The values of `model.html`; `state` is the application's."""
    snapshot: Snapshot = state.live.current
    trial = trial_of(state.config, snapshot)
    language = state.config.run.language.split("-")[0].lower()
    return {
        "trial": {
            **trial.model_dump(),
            "enabled": state.config.dashboard.try_it,
            "example": EXAMPLES[trial.kind].get(language, ""),
        },
        "evaluations": [ValidationFacts(**row.facts) for row in snapshot.validations],
        "tasks": curves(state.config.evaluation.tasks, snapshot.evaluations),
        "checkpoints": [checkpoint_facts(row) for row in snapshot.checkpoints],
    }
