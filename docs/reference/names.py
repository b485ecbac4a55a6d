"""The reference of the public classes and functions, with their docstrings."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from docs.reference.keys import definition

# Names for use in notebooks and scripts; all other names may change at any time.
NAMES = {
    "A run": (
        "peer.config.run.RunConfig",
        "coordinator.run.directory.RunDirectory",
        "coordinator.context.open_run.create_run",
        "coordinator.context.open_run.open_run",
        "coordinator.ledger.reading.LedgerReader",
        "coordinator.backup.backup.back_up",
        "coordinator.backup.restore.restore",
    ),
    "Text, batches and models": (
        "peer.data.sources.documents.open_documents",
        "peer.data.sources.documents.sample_documents",
        "peer.data.batching.batches.open_batches",
        "peer.data.batching.batches.Batch",
        "peer.models.build.build_model",
        "peer.models.optimizer_setup.parameter_groups",
        "peer.models.optimizer_setup.build_optimizer",
        "peer.models.optimizer_setup.build_scheduler",
    ),
    "Checkpoints and evaluations": (
        "coordinator.checkpoints.manifest.newest_verified",
        "coordinator.checkpoints.manifest.verify",
        "coordinator.checkpoints.manifest.StoredCheckpoint",
        "coordinator.evaluation.tasks.plan.Plan",
        "coordinator.evaluation.tasks.running.run_apart",
        "coordinator.evaluation.tasks.results.TaskResult",
    ),
    "Rehearsals": (
        "peer.rehearsal.scenario.Scenario",
        "peer.rehearsal.scenario.load_scenario",
        "peer.rehearsal.swarm.rehearse",
        "peer.rehearsal.swarm.RehearsedRun",
    ),
    "Identities and proofs": (
        "auth.errors.ManyhandsError",
        "auth.join_link.JoinLink",
        "auth.keys.AuthorityKey",
        "auth.keys.DeviceKey",
        "auth.tokens.read_token",
        "auth.certificates.read_certificate",
        "auth.certificates.open_certificate",
    ),
}


def names_by_topic() -> str:
    """Return a section for each topic, with the names, their parameters and their docstrings."""
    sections = ((topic, map(_definition, names)) for topic, names in NAMES.items())
    return "\n\n".join(f"## {topic}\n\n" + "\n\n".join(described) for topic, described in sections)


def _definition(path: str) -> str:
    module, _, name = path.rpartition(".")
    found: Any = getattr(import_module(module), name)
    call = f"({', '.join(inspect.signature(found).parameters)})" if inspect.isfunction(found) else ""
    return definition([f"{path}{call}"], "", "", " ".join((inspect.getdoc(found) or "").split()))
