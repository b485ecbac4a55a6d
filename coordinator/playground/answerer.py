"""The answerer, a process that fills blanks in visitors' sentences with the model's predictions.

The service must not import torch, and training must not wait for visitors. The answerer is
therefore a separate low-priority process with one thread, which shares only the database with the
service. It imports torch on the first question, and unloads a model unused for `IDLE_S`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from auth.errors import ManyhandsError, StorageError
from coordinator.playground.questions import (
    QuestionRow,
    forget_old_questions,
    next_question,
    record_answer,
    record_no_answer,
)
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database, open_engine
from coordinator.store.models import Checkpoint
from peer.runtime.processes import stop_at_sigterm

if TYPE_CHECKING:
    from coordinator.playground.fill_blanks import BlankFiller

logger = logging.getLogger(__name__)
POLL_S = 0.25  # short, because visitors are waiting
IDLE_S = 600.0  # a model is unloaded if unused for this many seconds
TIDY_S = 60.0
FAILED = "The model failed at this sentence; the coordinator's log says why."


@dataclass
class Answerer:
    """A loop that answers visitors' questions."""

    directory: RunDirectory
    database: Database
    clock: Callable[[], float] = time.time
    filler: BlankFiller | None = None  # created on the first question, because BlankFiller imports torch
    asked_at: float = 0.0
    tidied_at: float = 0.0

    def run(self, stop: threading.Event) -> None:
        """Answer questions in order of arrival until `stop` is set."""
        while not stop.is_set():
            if not self.answer_next():
                self.rest()
                stop.wait(POLL_S)

    def answer_next(self) -> bool:
        """Answer the oldest waiting question; return False if there is none."""
        question = next_question(self.database, self.clock())
        if question is None:
            return False
        self.asked_at = self.clock()
        try:
            self._answer(question)
        except ManyhandsError as error:
            record_no_answer(self.database, question.id, str(error), self.clock())
        except Exception:  # a failed question must not prevent later answers
            logger.exception("a sentence could not be answered by the checkpoint of step %d", question.step)
            record_no_answer(self.database, question.id, FAILED, self.clock())
        return True

    def rest(self) -> None:
        """Unload an idle model, and delete old questions once a minute."""
        now = self.clock()
        if self.filler is not None and now - self.asked_at > IDLE_S:
            self.filler = None
        if not 0 <= now - self.tidied_at < TIDY_S:
            forget_old_questions(self.database, now)
            self.tidied_at = now

    def _answer(self, question: QuestionRow) -> None:
        self._require_kept(question)
        if self.filler is None:
            from coordinator.playground.fill_blanks import BlankFiller  # imports torch

            self.filler = BlankFiller(self.directory)
        folder = self.directory.checkpoint_dir(question.step)
        answer = self.filler.fill(folder, question.manifest_sha256, question.text)
        record_answer(self.database, question.id, answer, self.clock())

    def _require_kept(self, question: QuestionRow) -> None:
        """Raise `StorageError` if the question's checkpoint has been deleted or withheld."""
        wanted = select(Checkpoint.step).where(
            Checkpoint.step == question.step,
            Checkpoint.manifest_sha256 == question.manifest_sha256,
            Checkpoint.withheld == "",
        )
        with self.database() as session:
            step = session.scalar(wanted)
        if step is None:
            raise StorageError(f"The checkpoint of step {question.step} is no longer kept: ask a newer one.")


def open_answerer(run_dir: Path, clock: Callable[[], float] = time.time) -> Answerer:
    """Open a run's answerer; raises `ConfigError` if the run does not exist."""
    directory = RunDirectory.open(run_dir)
    return Answerer(directory, Database(open_engine(directory.database_url)), clock)


def run_answerer(run_dir: Path) -> None:
    """Run the answerer until SIGTERM."""
    open_answerer(run_dir).run(stop_at_sigterm())
