"""The operator's commands: `manyhands coordinator init | serve | invite | allow | members | ...`.

Each command opens the run's directory, acts and exits; only `serve` and `evaluator` keep running.
"""

from __future__ import annotations

from peer.runtime.commands import LazyCommand, lazy_app

_RUN, _PEOPLE, _TRAINING = "The run", "People and devices", "Training"
_EVALUATION, _ADMINISTRATION, _COPIES = "Evaluation", "Administrators", "Copies and keys"
COMMANDS = {
    "init": LazyCommand("coordinator.cli.configure", "Create a new run.", _RUN),
    "configure": LazyCommand(
        "coordinator.cli.configure",
        "Create a run from the MANYHANDS_* variables, or update its settings from them.",
        _RUN,
    ),
    "serve": LazyCommand("coordinator.cli.serve", "Serve a run until Ctrl-C or SIGTERM.", _RUN),
    "status": LazyCommand("coordinator.cli.status", "Show the state of a run.", _RUN),
    "doctor": LazyCommand("coordinator.cli.status", "Check the run's files and its machine.", _RUN),
    "invite": LazyCommand("coordinator.cli.members", "Invite a volunteer.", _PEOPLE),
    "allow": LazyCommand(
        "coordinator.cli.members", "Allow an account or an organisation at an identity provider to log in.", _PEOPLE
    ),
    "members": LazyCommand(
        "coordinator.cli.members", "List the members, their devices and their contributions.", _PEOPLE
    ),
    "devices": LazyCommand("coordinator.cli.members", "List devices.", _PEOPLE),
    "revoke": LazyCommand("coordinator.cli.members", "Revoke a member's access.", _PEOPLE),
    "quarantine": LazyCommand("coordinator.cli.members", "Quarantine a device, or lift a quarantine.", _PEOPLE),
    "erase": LazyCommand("coordinator.cli.members", "Erase a member's name permanently.", _PEOPLE),
    "display-name": LazyCommand("coordinator.cli.members", "Set the name that the public sees for a member.", _PEOPLE),
    "hide-name": LazyCommand(
        "coordinator.cli.members", "Hide a member's name: the public sees a number instead.", _PEOPLE
    ),
    "credits": LazyCommand("coordinator.cli.members", "Show or change the names in the model card.", _PEOPLE),
    "pause": LazyCommand("coordinator.cli.steer", "Pause all volunteers.", _TRAINING),
    "resume": LazyCommand("coordinator.cli.steer", "Resume training after a pause.", _TRAINING),
    "stop": LazyCommand("coordinator.cli.steer", "End the run after a given step.", _TRAINING),
    "change": LazyCommand("coordinator.cli.steer", "Change settings of a live run from a given step on.", _TRAINING),
    "rewind": LazyCommand("coordinator.cli.steer", "Return to a checkpoint.", _TRAINING),
    "announce": LazyCommand("coordinator.cli.steer", "Send a message to all volunteers.", _TRAINING),
    "evaluator": LazyCommand(
        "coordinator.cli.evaluator", "Evaluate each published checkpoint on the tasks of the run file.", _EVALUATION
    ),
    "evaluators": LazyCommand(
        "coordinator.cli.evaluator", "List, add or remove evaluators on other machines.", _EVALUATION
    ),
    "admin": LazyCommand("coordinator.cli.administration", "Add, remove or list web administrators.", _ADMINISTRATION),
    "audit": LazyCommand("coordinator.cli.administration", "Show the audit log.", _ADMINISTRATION),
    "refusals": LazyCommand(
        "coordinator.cli.administration", "Show the refused requests of devices and visitors.", _ADMINISTRATION
    ),
    "backup": LazyCommand("coordinator.cli.copies", "Back up a run.", _COPIES),
    "restore": LazyCommand("coordinator.cli.copies", "Restore a run from a backup.", _COPIES),
    "rotate-key": LazyCommand("coordinator.cli.copies", "Replace the authority's key.", _COPIES),
    "archive": LazyCommand(
        "coordinator.cli.copies", "Archive the dashboard as static files that any web host can serve.", _COPIES
    ),
}
app = lazy_app(COMMANDS, name="coordinator", help="Start and steer a run.")
