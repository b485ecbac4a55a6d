"""Runs one task on one checkpoint in a process of its own, which alone imports torch and is gone afterwards."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

from auth.errors import ConfigError, ManyhandsError, WorkerError
from coordinator.evaluation.tasks.plan import Plan
from coordinator.evaluation.tasks.results import TaskResult
from peer.runtime.processes import die_with_parent, lead_own_group, name_process
from peer.runtime.software import how_to_add

POLL_S = 0.2
NICENESS = 10
EXTRAS = {  # by the module that lacks
    "accelerate": "evaluate",
    "seqeval": "evaluate",
    "sklearn": "evaluate",
    "sentence_transformers": "embeddings",
}


def run_apart(plan: Plan, should_stop: Callable[[], bool] = lambda: False) -> TaskResult | None:
    """The task's result; None if it was told to stop before the end.

    Raises what the process says is wrong, and `WorkerError` if it died without a word.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_main, args=(plan, os.getpid(), theirs), name=f"evaluate {plan.task.name}")
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
            f"The evaluation of `{plan.task.name}` ended without a result (exit code {process.exitcode}): "
            "was there enough memory?"
        ) from error
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()
    if isinstance(answer, ManyhandsError):
        raise answer
    assert isinstance(answer, TaskResult)
    return answer


def _main(plan: Plan, parent_pid: int, answer: Connection) -> None:
    name_process(f"evaluation of {plan.task.name}")
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
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        answer.send(ConfigError(f"This task needs `{error.name}`: {how_to_add(extra)}."))
