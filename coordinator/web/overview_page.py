"""What the overview's template needs: its numbers, and the curve as a drawing inside the page."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from markupsafe import Markup

from coordinator.milestones import milestones
from coordinator.web.curve import ENGLISH, CurveTexts, draw_curve
from coordinator.web.milestone_marks import MilestoneTexts
from coordinator.web.run_facts import overview_of
from coordinator.web.snapshot import Snapshot
from coordinator.web.translations import Texts
from peer.phases import all_phases
from peer.run_config import RunConfig


def overview_values(state: Any, texts: Texts) -> dict[str, Any]:
    """`overview`, as the API gives it, and `curve`, an SVG; `state` is the application's."""
    snapshot: Snapshot = state.live.current
    drawing = curve_of(snapshot, state.config, curve_texts(texts))
    return {
        "overview": overview_of(snapshot, state.config, state.join_link),
        "curve": Markup(drawing),  # noqa: S704  # `draw_curve` escapes what is text in it
    }


def curve_texts(texts: Texts) -> CurveTexts:
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
