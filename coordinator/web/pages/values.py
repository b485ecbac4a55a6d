"""Values for the templates of the overview, the time machine (`history.html`) and the model's page.

The loss curve is a drawing inside the page, in the page's language.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from markupsafe import Markup

from coordinator.evaluation.evaluations import curves
from coordinator.statistics.curve import ENGLISH, CurveTexts, MilestoneTexts, draw_curve
from coordinator.statistics.milestones import milestones
from coordinator.web.api.history import milestones_of
from coordinator.web.api.trials import trial_of
from coordinator.web.pages.translations import Translation
from coordinator.web.state.overview import ValidationFacts, checkpoint_facts, overview_of
from coordinator.web.state.snapshot import Snapshot
from peer.config.phases import all_phases
from peer.config.run import RunConfig

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


def overview_values(state: Any, texts: Translation) -> dict[str, Any]:
    """`overview`, as the API gives it, and `curve`, an SVG; `state` is the application's."""
    snapshot: Snapshot = state.live.current
    drawing = curve_of(snapshot, state.config, curve_texts(texts))
    return {
        "overview": overview_of(snapshot, state.config, state.join_link),
        "curve": Markup(drawing),  # noqa: S704  # `draw_curve` escapes what is text in it
    }


def curve_texts(texts: Translation) -> CurveTexts:
    """The words of the drawing in a language."""
    return CurveTexts(
        training=texts("curve.training"),
        held_out=texts("curve.held_out"),
        step=texts("curve.step"),
        phase=texts("curve.phase"),
        milestone=texts("curve.milestone"),
        waiting=texts("curve.waiting"),
        milestones=MilestoneTexts(
            first_step=texts("history.first-step"),
            samples=texts("history.milestone_samples"),
            devices=texts("history.milestone_devices"),
            loss=texts("history.milestone_loss"),
        ),
    )


def curve_of(snapshot: Snapshot, config: RunConfig, texts: CurveTexts = ENGLISH, alone: bool = False) -> str:
    """The loss over global steps as an SVG; `alone`: a file of its own, which brings its style along."""
    points = [(float(row.step), row.loss) for row in snapshot.steps if row.loss is not None]
    by_set = groupby(snapshot.validations, lambda row: row.set_sha256)  # losses on other samples join no line
    held_out = [[(float(row.step), row.loss) for row in rows if row.loss is not None] for _, rows in by_set]
    title = f"Loss of {config.run.name} over {len(points)} global steps"
    boundaries = {phase.from_step: texts.phase.format(number=phase.number) for phase in all_phases(config)[1:]}
    told = [texts.milestones.of(each) for each in milestones(snapshot.steps, snapshot.validations)]
    return draw_curve(points, title, boundaries, held_out, texts, alone, told)


def history_values(state: Any, texts: Translation) -> dict[str, Any]:
    """The values of `history.html`; `state` is the application's."""
    snapshot: Snapshot = state.live.current
    drawing = curve_of(snapshot, state.config, curve_texts(texts))
    return {
        "last": snapshot.steps[-1].step if snapshot.steps else 0,
        "curve": Markup(drawing),  # noqa: S704  # `draw_curve` escapes what is text in it
        "milestones": milestones_of(snapshot).milestones,
    }


def model_values(state: Any, _texts: Translation) -> dict[str, Any]:
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
