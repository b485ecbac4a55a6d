"""Execution of a plan in a separate process, so that the caller need not import torch."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from auth.errors import ConfigError, ManyhandsError, WorkerError
from coordinator.evaluation.tasks.plan import EmbedderPlan, Plan
from peer.runtime.processes import die_with_parent, lead_own_group, name_process
from peer.runtime.software import how_to_add

POLL_S = 0.2
NICENESS = 10
EXTRAS = {  # module -> extra of the package manyhands that installs the module
    "accelerate": "evaluate",
    "seqeval": "evaluate",
    "sklearn": "evaluate",
    "sentence_transformers": "embeddings",
}


def run_apart(plan: Plan | EmbedderPlan, should_stop: Callable[[], bool] = lambda: False) -> Any:
    """Run a plan in a new process; return its result (see `worker`), or None if stopped.

    Re-raises the process's `ManyhandsError`; raises `WorkerError` if no result is returned.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_main, args=(plan, os.getpid(), theirs), name=plan.title)
    process.start()
    theirs.close()
    try:
        while not ours.poll(POLL_S):
            if should_stop():
                return None
        answer = ours.recv()
    except EOFError as error:
        process.join()
        raise WorkerError(
            f"The {plan.title} ended without a result (exit code {process.exitcode}): was there enough memory?"
        ) from error
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()
    if isinstance(answer, ManyhandsError):
        raise answer
    return answer


def _main(plan: Plan | EmbedderPlan, parent_pid: int, answer: Connection) -> None:
    name_process(plan.title.replace("`", ""))
    lead_own_group()
    die_with_parent(parent_pid)
    os.nice(NICENESS)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("coordinator.evaluation").setLevel(logging.INFO)
    try:
        from coordinator.evaluation.tasks.worker import main

        main(plan, answer)
    except ManyhandsError as error:
        answer.send(error)
    except ModuleNotFoundError as error:
        complaint = lacking(error, plan.title)
        if complaint is None:
            raise
        answer.send(complaint)


def lacking(error: ModuleNotFoundError, title: str) -> ConfigError | None:
    """Return an error that names the extra to install, or None if no extra provides the module."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    return None if extra is None else ConfigError(f"The {title} needs `{package}`: {how_to_add(extra)}.")
