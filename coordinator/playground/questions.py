"""Visitors' questions to the model: validation, and the queue and answer cache in the database.

Any replica of the service can store a question and read its state; a single process answers the
questions in order. Answers are cached for a day.

A blank is written `[MASK]`, `<mask>` or at least three underscores, regardless of the tokenizer's
mask token. Sentences for a causal model have no blanks: the model continues the sentence.
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
BLANK = "[MASK]"  # spelling of a blank in stored sentences
_SPELLINGS = re.compile(r"\[mask\]|<mask>|_{3,}", re.IGNORECASE)
MAX_WAITING = 32  # maximum queue length; each concurrent replica may exceed it by one
PATIENCE_S = 60.0  # an unanswered question expires after this many seconds
KEPT_S = 86_400.0
MAX_KEPT = 10_000


def clean_sentence(text: str, *, masked: bool) -> str:
    """Normalize a sentence, so that repeated questions match; raises `RequestError` if invalid.

    `masked` is True if the run's model fills blanks, and False if it continues sentences.
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
    """The queue of questions is full."""


@dataclass(frozen=True)
class Candidate:
    """A token that may fill a blank, and its probability."""

    token: str
    probability: float


Answer = tuple[tuple[Candidate, ...], ...]  # candidates of each blank, most likely first


@dataclass(frozen=True)
class QuestionRow:
    """A question, with its position in the queue or its answer."""

    id: str
    manifest_sha256: str
    step: int
    text: str
    asked_at: float  # Unix time in seconds
    answer: Answer
    reason: str  # reason for a failure; "" if the question has not failed
    answered_at: float | None
    ahead: int = 0  # number of earlier questions still waiting for an answer


def question_id(manifest_sha256: str, text: str) -> str:
    """Return a hash of checkpoint and sentence; unlike a number, this id cannot be guessed."""
    return hashlib.sha256(f"manyhands-question-v1\n{manifest_sha256}\n{text}".encode()).hexdigest()


def ask(database: Database, checkpoint: CheckpointRow, text: str, now: float) -> QuestionRow:
    """Queue a question about a normalized sentence, or return the existing question.

    A failed question is queued again. Raises `QueueFullError`.
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
    """Return the question with this id, or None if the question is unknown or has expired."""
    with database() as session:
        row = session.get(Question, identity)
        return None if row is None or _is_forgotten(row, now) else _row(session, row, now)


def next_question(database: Database, now: float) -> QuestionRow | None:
    """Return the oldest waiting question, or None if the queue is empty."""
    with database() as session:
        row = session.scalar(select(Question).where(*_waits(now)).order_by(Question.asked_at, Question.id).limit(1))
        return None if row is None else _row(session, row, now)


def record_answer(database: Database, identity: str, answer: Sequence[Sequence[Candidate]], now: float) -> None:
    """Store the answer to a question."""
    content = [[[each.token, each.probability] for each in blank] for blank in answer]
    _settle(database, identity, json.dumps(content, ensure_ascii=False), "", now)


def record_no_answer(database: Database, identity: str, reason: str, now: float) -> None:
    """Store the reason why a question cannot be answered."""
    _settle(database, identity, "", reason, now)


def forget_old_questions(database: Database, now: float) -> None:
    """Delete expired questions and those older than a day; keep at most the newest `MAX_KEPT`."""
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
