"""The operator's commands: `manyhands coordinator init | serve | invite | allow | members | ...`.

Each command opens the run's directory, does one thing and ends, except `serve` and `evaluator`.
"""

from __future__ import annotations

from peer.runtime.commands import LazyCommand, lazy_app

_RUN, _PEOPLE, _TRAINING = "The run", "People and devices", "Training"
_EVALUATION, _ADMINISTRATION, _COPIES = "Evaluation", "Administrators", "Copies and keys"
COMMANDS = {
    "init": LazyCommand("coordinator.cli.configure", "Make a new run.", _RUN),
    "configure": LazyCommand(
        "coordinator.cli.configure", "Make the run that the MANYHANDS_* variables describe.", _RUN
    ),
    "serve": LazyCommand("coordinator.cli.serve", "Serve a run until told to stop by Ctrl-C or SIGTERM.", _RUN),
    "status": LazyCommand("coordinator.cli.status", "Show where the run stands.", _RUN),
    "doctor": LazyCommand("coordinator.cli.status", "Examine the run's files and its machine.", _RUN),
    "invite": LazyCommand("coordinator.cli.members", "Invite a volunteer.", _PEOPLE),
    "allow": LazyCommand("coordinator.cli.members", "Let an account at an identity provider log in.", _PEOPLE),
    "members": LazyCommand(
        "coordinator.cli.members", "List the members, their devices and what they contributed.", _PEOPLE
    ),
    "devices": LazyCommand("coordinator.cli.members", "List the members' devices.", _PEOPLE),
    "revoke": LazyCommand("coordinator.cli.members", "Shut a member out.", _PEOPLE),
    "quarantine": LazyCommand("coordinator.cli.members", "Cut a device off until that is lifted.", _PEOPLE),
    "erase": LazyCommand("coordinator.cli.members", "Forget a member's name for good.", _PEOPLE),
    "display-name": LazyCommand(
        "coordinator.cli.members", "Choose the name under which the public sees a member.", _PEOPLE
    ),
    "hide-name": LazyCommand(
        "coordinator.cli.members", "Let the public see a number instead of a member's name.", _PEOPLE
    ),
    "credits": LazyCommand("coordinator.cli.members", "Say whom the model card names.", _PEOPLE),
    "pause": LazyCommand("coordinator.cli.steer", "Let all volunteers wait.", _TRAINING),
    "resume": LazyCommand("coordinator.cli.steer", "Let all volunteers go on after a pause.", _TRAINING),
    "stop": LazyCommand("coordinator.cli.steer", "End the run with a step.", _TRAINING),
    "change": LazyCommand("coordinator.cli.steer", "Change a live run from a step on.", _TRAINING),
    "rewind": LazyCommand("coordinator.cli.steer", "Go back to a checkpoint.", _TRAINING),
    "announce": LazyCommand("coordinator.cli.steer", "Tell all volunteers something.", _TRAINING),
    "evaluator": LazyCommand(
        "coordinator.cli.evaluator", "Try each published checkpoint on the tasks of the run file.", _EVALUATION
    ),
    "evaluators": LazyCommand(
        "coordinator.cli.evaluator", "Say which evaluators on other machines may report.", _EVALUATION
    ),
    "admin": LazyCommand(
        "coordinator.cli.administration", "Say who may administer the run over the web.", _ADMINISTRATION
    ),
    "audit": LazyCommand("coordinator.cli.administration", "Show who did what to the run.", _ADMINISTRATION),
    "refusals": LazyCommand(
        "coordinator.cli.administration", "Show what was refused to devices and visitors, and why.", _ADMINISTRATION
    ),
    "backup": LazyCommand("coordinator.cli.copies", "Back the run up.", _COPIES),
    "restore": LazyCommand("coordinator.cli.copies", "Make a run anew from a backup.", _COPIES),
    "rotate-key": LazyCommand("coordinator.cli.copies", "Replace the authority's key.", _COPIES),
    "archive": LazyCommand(
        "coordinator.cli.copies", "Freeze the dashboard into plain files that any web host serves for ever.", _COPIES
    ),
}
app = lazy_app(COMMANDS, name="coordinator", help="Start and steer a run.")
