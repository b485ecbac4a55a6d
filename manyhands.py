"""The `manyhands` command: the entry point for volunteers' and operators' commands.

Only the requested command is imported, so that `manyhands --help` is fast. Each spawned process
imports this module, too, but does not need typer. Only this module converts a `ManyhandsError`,
which a user can fix, into one sentence on stderr and an exit code.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

PACKAGES = ("auth", "peer", "coordinator", "dashboards")
_TAKE_PART, _OPERATE = "Take part in a run", "Operate a run"
# For each command: the module whose `app` contains it, its line in `--help`, and the heading.
COMMANDS = {
    "demo": (
        "coordinator.cli.demo",
        "Start a whole run on this machine: coordinator, dashboard and two volunteers.",
        _OPERATE,
    ),
    "join": ("peer.cli.join", "Take part in a run with this machine.", _TAKE_PART),
    "assist": ("peer.cli.join", "Average for a run's trainers without training.", _TAKE_PART),
    "doctor": ("peer.cli.doctor", "Check this machine and its network, stage by stage.", _TAKE_PART),
    "name": ("peer.cli.name", "Choose the name that a run's page shows for you.", _TAKE_PART),
    "support-bundle": ("peer.cli.doctor", "Write a redacted archive for the run's operator.", _TAKE_PART),
    "replay": ("peer.cli.replay", "Show the events of several nodes on one timeline.", _TAKE_PART),
    "verify": (
        "peer.cli.verify",
        "Verify a run's leaderboard, or a certificate of contribution.",
        _TAKE_PART,
    ),
    "recipe": ("peer.cli.recipe", "Write the run file of a published model, in any language, for editing.", _OPERATE),
    "plan": ("peer.cli.rehearse", "Write a run file for an event, each value with its reason.", _OPERATE),
    "rehearse": ("peer.cli.rehearse", "Rehearse a run in virtual time, before anybody has joined.", _OPERATE),
    "scenario": ("peer.cli.scenario", "Write the scenario of a past run, for rehearsals.", _OPERATE),
    "tokenizer": ("peer.cli.tokenizer", "Train or inspect a tokenizer.", _OPERATE),
    "corpus": ("peer.cli.corpus", "Prepare a corpus: sample it by perplexity, drop duplicates.", _OPERATE),
    "export": (
        "coordinator.cli.export_model",
        "Export a checkpoint for plain transformers, with a model card.",
        _OPERATE,
    ),
    "evaluate": (
        "coordinator.cli.evaluate",
        "Evaluate checkpoints on downstream tasks: fine-tune and compare.",
        _OPERATE,
    ),
    "release": ("coordinator.cli.release", "Release the best checkpoint: model, card, task models, a demo.", _OPERATE),
    "coordinator": (
        "coordinator.cli.main",
        "Start and steer a run: init, serve, invite, allow, members, revoke, status.",
        _OPERATE,
    ),
}
EPILOG = "Example: manyhands demo --steps 12"


def check_packages(root: Path) -> None:
    """Check that our packages are those next to this file: PyPI has others with the same names.

    Raises `SystemExit`, because even the package with our error classes may be a foreign one.
    """
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"manyhands: the package `{name}` is missing: install manyhands again.")
        if Path(spec.origin).resolve().parent.parent != root:
            raise SystemExit(
                f"manyhands: `{name}` is imported from {Path(spec.origin).parent}, which is not part of manyhands: "
                "install manyhands into a virtual environment of its own, and start it from another directory."
            )


def build_app() -> typer.Typer:
    """Build the command line interface; a command is imported only when called."""
    import typer

    from peer.runtime.commands import LazyCommand, lazy_app  # must follow `check_packages`

    def print_version(asked: bool) -> None:
        if asked:
            from peer.runtime.version import software_version

            sys.stdout.write(f"manyhands {software_version()}\n")
            raise typer.Exit

    def options(
        _version: bool = typer.Option(
            False, "--version", callback=print_version, is_eager=True, help="Print the version and exit."
        ),
    ) -> None:
        """Accept the options of `manyhands` itself."""

    app = lazy_app(
        {name: LazyCommand(*entry) for name, entry in COMMANDS.items()},
        epilog=EPILOG,
        help="Train one language model together, on whatever hardware the members of a community have.",
    )
    app.callback()(options)
    return app


def main() -> None:
    """Run the command line; the entry point of `manyhands` and of `python -m manyhands`."""
    check_packages(Path(__file__).resolve().parent)
    from auth.errors import ManyhandsError  # imported after the check, because `auth` might be a foreign package
    from peer.runtime.software import how_to_add

    try:
        build_app()(prog_name="manyhands")
    except ManyhandsError as error:
        sys.stderr.write(f"manyhands: {error}\n")
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in PACKAGES:
            raise  # one of our modules is missing: a bug, not an incomplete installation
        sys.stderr.write(
            f"manyhands: this command needs `{error.name}`, which is not installed; for the operator's side "
            f"{how_to_add('coordinator')}.\n"
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
