"""`manyhands release`: release the best checkpoint as a usable model, locally and on the Hub."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from auth.errors import ConfigError
from coordinator.context.open_run import OpenRun, open_run
from coordinator.publishing.places import HubPlace, open_place
from coordinator.publishing.release import (
    DEMO,
    HELD_OUT,
    MODEL,
    NEWEST,
    Released,
    ReleaseOptions,
    make_release,
    task_repository,
)
from coordinator.run.publish_settings import HUB, PlaceSettings, read_secret
from peer.runtime.console import say, say_json

app = typer.Typer(pretty_exceptions_enable=False)


@app.command("release", epilog="Example: manyhands release my-run my-release --rule held-out-loss --task ner --demo")
def release(
    directory: Path = typer.Argument(..., metavar="DIR", help="The run's directory.", show_default=False),
    out: Path = typer.Argument(..., help="The folder to write; it must be empty or not exist.", show_default=False),
    rule: str = typer.Option(
        HELD_OUT,
        help=f"Checkpoint to release: {HELD_OUT}, {NEWEST}, a step's number, or a task's name (of "
        "the evaluated checkpoints, the best on the task's development set).",
    ),
    task: list[str] = typer.Option([], help="Also fine-tune for this task of the run file; repeatable."),
    evaluate: bool = typer.Option(
        False, "--evaluate", help="Afterwards evaluate the chosen checkpoint on all tasks that it has no results for."
    ),
    demo: bool = typer.Option(False, "--demo", help="Also write a demo page for the models, ready for a Space."),
    push: str = typer.Option(
        "",
        help="Afterwards publish the release at this place of the run's `publications`: task models at "
        "hf://OWNER/NAME-TASK, the demo page as the Space OWNER/NAME-demo. Other places receive the model only.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Release a run's best checkpoint: weights, tokenizer, model card, task models and a demo."""
    with open_run(directory) as run:
        place = run.directory.settings.publication(push) if push else None
        repository = place.to.removeprefix(HUB) if place is not None and place.is_hub else ""
        if place is not None and not place.is_hub and (task or demo):
            raise ConfigError(f"{push} takes the model only: task models and the demo go to a hub (hf://owner/name).")
        wanted = ReleaseOptions(rule, tuple(task), evaluate, demo, repository)
        made = make_release(run, out, wanted, time.time)
        published = [] if place is None else _publish(run, place, out, made, demo)
    facts = {"folder": str(out), "step": made.stored.manifest.step, "choice": made.choice, "loss": made.loss}
    if as_json:
        say_json({**facts, "tasks": list(made.tasks), "published": published})
        return
    say(made.choice)
    say(f"It is in {out / MODEL}. Plain transformers loads it, with a loss of {made.loss:.4f} as its card says.")
    for name in made.tasks:
        say(f"A model for the task {name} is in {out / name}.")
    if demo:
        say(f"To try them: cd {out / DEMO} && uvicorn app:app")
    for location in published:
        say(f"Published: {location}")


def _publish(run: OpenRun, place: PlaceSettings, out: Path, made: Released, demo: bool) -> list[str]:
    """Publish the model, then the repositories that refer to the model; return all URLs."""
    step = made.stored.manifest.step
    with run.audit.act("release", place.to, f"step {step}"):
        published = [open_place(run.directory.path, place).publish(out / MODEL, made.stored)]
        published += [_to_hub(run, place, name, out / name, made) for name in made.tasks]
        return published + ([_to_hub(run, place, DEMO, out / DEMO, made, space=True)] if demo else [])


def _to_hub(run: OpenRun, place: PlaceSettings, name: str, folder: Path, made: Released, *, space: bool = False) -> str:
    beside = place.model_copy(update={"to": task_repository(place.to, name)})
    return HubPlace(beside, read_secret(run.directory.path, place), space=space).publish(folder, made.stored)
