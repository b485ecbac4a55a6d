"""Questions of visitors to the model: the rules for a sentence, and the queue and cache in the database.

Any replica of the service enters a question and reads its state. The one answering process, beside the keeper and its
checkpoints, takes the questions in order. An answer is kept for a day, so that the same sentence costs nothing.

A blank is `[MASK]`, `<mask>` or three underscores, whatever the run's tokenizer calls it. A causal model has no blanks:
it continues the sentence.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from auth.errors import RequestError
from coordinator.ledger.recorded_checkpoints import CheckpointRow
from coordinator.store.engine import Database
from coordinator.store.service_models import Question

MAX_CHARACTERS = 300
MAX_BLANKS = 4
BLANK = "[MASK]"  # as sentences are stored and shown
_SPELLINGS = re.compile(r"\[mask\]|<mask>|_{3,}", re.IGNORECASE)
MAX_WAITING = 32  # more are turned away; at most as many too many as there are replicas
PATIENCE_S = 60.0  # a question that waits longer has nobody waiting for it
KEPT_S = 86_400.0
MAX_KEPT = 10_000


def clean_sentence(text: str, *, masked: bool) -> str:
    """The sentence in one form, so that equal ones are known again; raises `RequestError` for one that cannot be asked.

    `masked`: the run's model fills blanks; else it continues.
    """
    printable = "".join(character if character.isprintable() else " " for character in text)
    sentence = " ".join(unicodedata.normalize("NFC", _SPELLINGS.sub(BLANK, printable)).split())
    if not sentence:
        raise RequestError("The sentence is empty: write one.")
    if len(sentence) > MAX_CHARACTERS:
        raise RequestError(f"The sentence has {len(sentence)} characters; {MAX_CHARACTERS} are allowed.")
    blanks = sentence.count(BLANK)
    if masked and not 1 <= blanks <= MAX_BLANKS:
        raise RequestError(f"The sentence has {blanks} blanks; write {BLANK} for one to {MAX_BLANKS} of its words.")
    if masked and sentence.replace(BLANK, "").strip() == "":
        raise RequestError("The sentence is nothing but blanks: leave some words.")
    if not masked and blanks:
        raise RequestError(f"This run's model continues sentences and fills no blanks: leave {BLANK} out.")
    return sentence


class QueueFullError(Exception):
    """So many visitors ask that another would wait too long."""


@dataclass(frozen=True)
class Candidate:
    """A token that may stand at a blank."""

    token: str
    probability: float


Answer = tuple[tuple[Candidate, ...], ...]  # for each blank its candidates, the likeliest first


@dataclass(frozen=True)
class QuestionRow:
    """A question and how far it is."""

    id: str
    manifest_sha256: str
    step: int
    text: str
    asked_at: float  # Unix seconds
    answer: Answer
    reason: str  # why there is no answer
    answered_at: float | None
    ahead: int = 0  # questions that wait before it


def question_id(manifest_sha256: str, text: str) -> str:
    """Names a sentence put to one checkpoint; only who knows the sentence can look up its answer."""
    return hashlib.sha256(f"manyhands-question-v1\n{manifest_sha256}\n{text}".encode()).hexdigest()


def ask(database: Database, checkpoint: CheckpointRow, text: str, now: float) -> QuestionRow:
    """Put a clean sentence to a checkpoint, unless that is done already; raises `QueueFullError`.

    What failed is tried again.
    """

    def enter(session: Session) -> QuestionRow:
        identity = question_id(checkpoint.manifest_sha256, text)
        row = session.get(Question, identity)
        if row is not None and not (row.reason or _is_forgotten(row, now)):
            return _row(session, row, now)
        if row is not None:
            session.delete(row)
            session.flush()
        waiting = session.scalar(select(func.count()).select_from(Question).where(*_waits(now)))
        if (waiting or 0) >= MAX_WAITING:
            raise QueueFullError(f"{waiting} sentences wait for an answer already: try again in a minute.")
        row = Question(
            id=identity, manifest_sha256=checkpoint.manifest_sha256, step=checkpoint.step, text=text, asked_at=now
        )
        session.add(row)
        session.flush()
        return _row(session, row, now)

    return database.transact(enter)


def find_question(database: Database, identity: str, now: float) -> QuestionRow | None:
    """The state of a question; None if it is unknown or forgotten."""
    with database() as session:
        row = session.get(Question, identity)
        return None if row is None or _is_forgotten(row, now) else _row(session, row, now)


def next_question(database: Database, now: float) -> QuestionRow | None:
    """The one that has waited longest."""
    with database() as session:
        row = session.scalar(select(Question).where(*_waits(now)).order_by(Question.asked_at, Question.id).limit(1))
        return None if row is None else _row(session, row, now)


def record_answer(database: Database, identity: str, answer: Sequence[Sequence[Candidate]], now: float) -> None:
    """Store the checkpoint's answer to a question."""
    content = [[[each.token, each.probability] for each in blank] for blank in answer]
    _settle(database, identity, json.dumps(content, ensure_ascii=False), "", now)


def record_no_answer(database: Database, identity: str, reason: str, now: float) -> None:
    """Store the reason why a question has no answer."""
    _settle(database, identity, "", reason, now)


def forget_old_questions(database: Database, now: float) -> None:
    """Remove what nobody waits for, what is a day old, and the oldest where there are too many."""
    with database.begin() as session:
        waited_in_vain = Question.answered_at.is_(None) & (Question.asked_at < now - PATIENCE_S)
        session.execute(delete(Question).where((Question.asked_at < now - KEPT_S) | waited_in_vain))
        newest = select(Question.asked_at).order_by(Question.asked_at.desc()).offset(MAX_KEPT).limit(1)
        oldest_kept = session.scalar(newest)
        if oldest_kept is not None:
            session.execute(delete(Question).where(Question.asked_at <= oldest_kept))


def _settle(database: Database, identity: str, answer: str, reason: str, now: float) -> None:
    def enter(session: Session) -> None:
        row = session.get(Question, identity)
        if row is not None:
            row.answer, row.reason, row.answered_at = answer, reason, now

    database.transact(enter)


def _waits(now: float) -> tuple[ColumnElement[bool], ...]:
    return Question.answered_at.is_(None), Question.asked_at >= now - PATIENCE_S


def _is_forgotten(row: Question, now: float) -> bool:
    return row.answered_at is None and row.asked_at < now - PATIENCE_S


def _row(session: Session, row: Question, now: float) -> QuestionRow:
    before = select(func.count()).select_from(Question).where(*_waits(now), Question.asked_at < row.asked_at)
    content = json.loads(row.answer) if row.answer else []
    return QuestionRow(
        id=row.id,
        manifest_sha256=row.manifest_sha256,
        step=row.step,
        text=row.text,
        asked_at=row.asked_at,
        answer=tuple(tuple(Candidate(token, probability) for token, probability in blank) for blank in content),
        reason=row.reason or "",
        answered_at=row.answered_at,
        ahead=0 if row.answered_at is not None else session.scalar(before) or 0,
    )
