"""Visitors' sentences and their queue and cache, on either kind of database."""

from __future__ import annotations

import pytest

from auth.errors import RequestError
from coordinator.ledger.recorded_checkpoints import CheckpointRow
from coordinator.playground import questions as module
from coordinator.playground.questions import (
    KEPT_S,
    MAX_CHARACTERS,
    MAX_WAITING,
    PATIENCE_S,
    Candidate,
    QueueFullError,
    ask,
    clean_sentence,
    find_question,
    forget_old_questions,
    next_question,
    record_answer,
    record_no_answer,
)
from coordinator.store.engine import Database

CHECKPOINT = CheckpointRow(5, 1, "ab" * 32, 0.0, "")

LATER = CheckpointRow(9, 1, "cd" * 32, 0.0, "")

ANSWER = ((Candidate("light", 0.5), Candidate("কাজ", 0.25)),)


def test_who_asked_first_is_answered_first(database: Database) -> None:
    """Each learns how many are ahead."""
    first, second = (ask(database, CHECKPOINT, text, now) for text, now in (("a [MASK]", 1.0), ("b [MASK]", 2.0)))
    assert (first.ahead, second.ahead) == (0, 1)
    assert next_question(database, 3.0) == first
    record_answer(database, first.id, ANSWER, 3.0)
    found = find_question(database, first.id, 4.0)
    assert found is not None
    assert (found.answer, found.answered_at, found.reason) == (ANSWER, 3.0, "")
    following = next_question(database, 4.0)
    assert following is not None
    assert (following.id, following.ahead) == (second.id, 0)


def test_the_same_sentence_costs_nothing(database: Database) -> None:
    """Asked again it is the same question, answered or not; of another checkpoint it is another."""
    row = ask(database, CHECKPOINT, "a [MASK]", 1.0)
    assert ask(database, CHECKPOINT, "a [MASK]", 2.0) == row
    record_answer(database, row.id, ANSWER, 3.0)
    assert ask(database, CHECKPOINT, "a [MASK]", 4.0).answer == ANSWER
    assert next_question(database, 4.0) is None
    assert ask(database, LATER, "a [MASK]", 4.0).id != row.id


def test_what_failed_may_be_asked_again(database: Database) -> None:
    """A failure is told to who waits for it, and is no answer for who comes later."""
    row = ask(database, CHECKPOINT, "a [MASK]", 1.0)
    record_no_answer(database, row.id, "too long", 2.0)
    failed = find_question(database, row.id, 3.0)
    assert failed is not None
    assert (failed.reason, failed.answer) == ("too long", ())
    assert ask(database, CHECKPOINT, "a [MASK]", 4.0).answered_at is None


def test_the_queue_is_bounded(database: Database) -> None:
    """Who comes when it is full is turned away, until one is answered or nobody waits for the old ones any more."""
    rows = [ask(database, CHECKPOINT, f"{number} [MASK]", 1.0) for number in range(MAX_WAITING)]
    with pytest.raises(QueueFullError, match="try again"):
        ask(database, CHECKPOINT, "one more [MASK]", 2.0)
    assert ask(database, CHECKPOINT, "0 [MASK]", 2.0).id == rows[0].id
    record_answer(database, rows[0].id, ANSWER, 2.0)
    ask(database, CHECKPOINT, "one more [MASK]", 3.0)
    late = 2.0 + PATIENCE_S
    assert find_question(database, rows[1].id, late) is None
    assert ask(database, CHECKPOINT, "another [MASK]", late).ahead == 1


def test_what_visitors_wrote_is_not_kept_for_long(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers for a day, what nobody waits for a minute, and never more than so many."""
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    answered = [ask(database, CHECKPOINT, f"{number} [MASK]", float(number)) for number in range(4)]
    for row in answered:
        record_answer(database, row.id, ANSWER, 5.0)
    forgotten = ask(database, CHECKPOINT, "nobody [MASK]", 0.5)
    now = 2.0 + PATIENCE_S
    forget_old_questions(database, now)
    kept = [row.id for row in (*answered, forgotten) if find_question(database, row.id, now) is not None]
    assert kept == [row.id for row in answered[2:]]
    forget_old_questions(database, 4.0 + KEPT_S)
    assert find_question(database, answered[3].id, 6.0) is None


@pytest.mark.parametrize(
    ("written", "masked", "clean"),
    [
        ("Many hands make ___ work.", True, "Many hands make [MASK] work."),
        ("  a <mask>\n b\t[mask] ", True, "a [MASK] b [MASK]"),
        ("e\u0301 ____", True, "\u00e9 [MASK]"),
        ("Once upon a\x00 time", False, "Once upon a time"),
        ("অনেক [MASK] কাজ", True, "অনেক [MASK] কাজ"),
    ],
)
def test_equal_sentences_have_one_form(written: str, masked: bool, clean: str) -> None:
    """However a blank is spelt, a letter composed and space put in."""
    assert clean_sentence(written, masked=masked) == clean
    assert clean_sentence(clean, masked=masked) == clean


@pytest.mark.parametrize(
    ("written", "masked", "why"),
    [
        (" \n", True, "empty"),
        ("no blank here", True, "0 blanks"),
        ("___ a " * 5, True, "5 blanks"),
        ("___", True, "nothing but blanks"),
        ("___ ___", True, "nothing but blanks"),
        ("Once ___ a time", False, "fills no blanks"),
        ("a" * (MAX_CHARACTERS + 1), False, "301 characters"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(written: str, masked: bool, why: str) -> None:
    """With the number that is wrong, and what is allowed."""
    with pytest.raises(RequestError, match=why):
        clean_sentence(written, masked=masked)
