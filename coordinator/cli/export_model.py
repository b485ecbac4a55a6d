"""`manyhands export`: write a checkpoint to a folder for plain transformers, and test the folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import typer

from auth.errors import ConfigError
from coordinator.checkpoints.export import exporting
from coordinator.checkpoints.manifest import StoredCheckpoint, verify
from coordinator.context.open_run import OpenRun, open_run
from coordinator.ledger.recorded_checkpoints import checkpoints
from coordinator.publishing.card_facts import facts_of_checkpoint, facts_of_run, hub_repository
from coordinator.publishing.cards import card_files
from coordinator.publishing.embedding import export_embedder, require_bidirectional, require_package
from coordinator.publishing.places import open_place
from coordinator.publishing.soundness import ONNX_TASKS, check_loads, export_onnx, find_exporter
from coordinator.run.directory import RunDirectory
from coordinator.run.publish_settings import HUB
from peer.config.run import RunConfig
from peer.runtime.console import say, say_json

app = typer.Typer(pretty_exceptions_enable=False)


@app.command("export", epilog="Example: manyhands export my-run my-model")
def export(
    checkpoint: Path = typer.Argument(
        ...,
        metavar="DIR|CHECKPOINT",
        help="A run's directory (its newest publishable checkpoint is exported), or a checkpoint's folder.",
        show_default=False,
    ),
    out: Path = typer.Argument(..., help="The folder to write; it must be empty or not exist.", show_default=False),
    onnx: bool = typer.Option(
        False,
        "--onnx",
        help="Also export to ONNX with optimum (optimum-cli must be on the PATH), and test it with ONNX Runtime.",
    ),
    sentence_transformers: bool = typer.Option(
        False,
        "--sentence-transformers",
        help="Export a model for sentence-transformers instead; its sentence embeddings are not fine-tuned.",
    ),
    push: str = typer.Option(
        "", help="Afterwards publish it once at this place of `publications`; a withheld checkpoint is refused."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Export a checkpoint: weights, tokenizer and model card, without optimizer state or the run's own files."""
    if sentence_transformers and (onnx or push):
        raise ConfigError(
            "--sentence-transformers writes a model of its own kind: export it without --onnx and --push."
        )
    exporter = find_exporter() if onnx else None
    if sentence_transformers:
        require_package()
    source, run_dir = _find(checkpoint)
    stored = verify(source)
    if sentence_transformers:
        _export_embedder(stored, run_dir, out, as_json)
        return
    objective = RunConfig.from_yaml(source / "run.yaml").objective.name if onnx else ""
    if onnx and objective not in ONNX_TASKS:
        raise ConfigError(f"--onnx has no task for a model of the objective `{objective}`: export without it.")
    publish = _publishing(run_dir, push, stored) if push else None
    repository = push.removeprefix(HUB) if push.startswith(HUB) else ""
    with exporting(stored, out, _card(stored, run_dir, repository)) as folder:
        found = check_loads(folder)  # the loaded weights must reproduce the stored loss
    location = publish(out) if publish is not None else None
    if exporter is not None:
        export_onnx(out, objective, found.token_loss, exporter)
    loss, step = found.loss, stored.manifest.step
    facts = {"folder": str(out), "step": step, "loss": loss, "onnx": onnx, "published": location}
    if as_json:
        say_json(facts)
        return
    say(f"Step {step} is in {out}. Plain transformers loads it, with a loss of {loss:.4f} as expected.")
    if location is not None:
        say(f"Published: {location}")


def _find(path: Path) -> tuple[Path, Path | None]:
    """Return the checkpoint's folder, and the run's directory if it is on this machine."""
    if (path / "settings.yaml").is_file():
        with open_run(path) as run:
            for row in checkpoints(run.database):
                if not row.withheld:
                    return run.directory.checkpoint_dir(row.step), path.absolute()
        raise ConfigError(f"{path} has no checkpoint that may be published: name one (in {path / 'checkpoints'}).")
    run_dir = path.absolute().parent.parent
    return path.absolute(), run_dir if (run_dir / "settings.yaml").is_file() else None


def _publishing(run_dir: Path | None, address: str, stored: StoredCheckpoint) -> Callable[[Path], str]:
    """Return a function that publishes the export. Raises `ConfigError` if that is not allowed."""
    if run_dir is None:
        raise ConfigError("--push needs a run, whose `publications` say how to reach the place: give its directory.")
    place = open_place(run_dir, RunDirectory.open(run_dir).settings.publication(address))
    step = stored.manifest.step

    def publish(folder: Path) -> str:
        with open_run(run_dir) as run, run.audit.act("publish", address, f"step {step}"):
            return place.publish(folder, stored)

    with open_run(run_dir) as run:
        _require_publishable(run, stored)
    return publish


def _require_publishable(run: OpenRun, stored: StoredCheckpoint) -> None:
    found = [row for row in checkpoints(run.database) if row.manifest_sha256 == stored.manifest_sha256]
    why = found[0].withheld if found else "the run has no record of it"
    if why:
        raise ConfigError(f"Step {stored.manifest.step} may not be published: {why}. Export it without --push.")


def _export_embedder(stored: StoredCheckpoint, run_dir: Path | None, out: Path, as_json: bool) -> None:
    facts = facts_of_checkpoint(stored)
    require_bidirectional(facts.config)
    if run_dir is not None:
        with open_run(run_dir) as run:
            repository = hub_repository(run.directory.settings)
            facts = facts_of_run(run.directory, run.database, stored, repository=repository)
    width = export_embedder(stored, out, facts)
    if as_json:
        say_json({"folder": str(out), "step": stored.manifest.step, "dimensions": width})
        return
    step = stored.manifest.step
    say(f"Step {step} is in {out}. sentence-transformers loads it: untuned embeddings of {width} numbers.")


def _card(stored: StoredCheckpoint, run_dir: Path | None, repository: str) -> Mapping[str, str]:
    if run_dir is None:
        return card_files(facts_of_checkpoint(stored))
    with open_run(run_dir) as run:
        return card_files(facts_of_run(run.directory, run.database, stored, repository=repository))
