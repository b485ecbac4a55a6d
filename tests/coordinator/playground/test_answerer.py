"""The answering process over a real run directory with real checkpoints."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AlbertForPreTraining, AutoTokenizer

from coordinator.context.open_run import OpenRun, open_run
from coordinator.ledger.recorded_checkpoints import checkpoints, record_checkpoint
from coordinator.playground.answerer import FAILED, IDLE_S, Answerer, open_answerer
from coordinator.playground.questions import QuestionRow, ask, find_question
from coordinator.service.parts import ANSWERER, PartProcess
from tests.support.clocks import Clock
from tests.support.small_checkpoints import add_checkpoint
from tests.support.small_run import make_small_run
from tests.support.waiting import wait_until

SENTENCE = "Many hands make [MASK] work."


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OpenRun]:
    """A run with checkpoints of two steps, of different weights."""
    with open_run(make_small_run(tmp_path, try_it=True).path) as opened:
        for step in (5, 10):
            add_checkpoint(opened.directory, opened.database, step, seed=step)
        yield opened


@pytest.fixture
def answerer(run: OpenRun, clock: Clock) -> Answerer:
    """Its answerer."""
    return open_answerer(run.directory.path, clock)


def put(run: OpenRun, text: str, step: int, now: float) -> str:
    """Ask the checkpoint of this step; returns the question's id."""
    (checkpoint,) = (row for row in checkpoints(run.database) if row.step == step)
    return ask(run.database, checkpoint, text, now).id


def settled(run: OpenRun, answerer: Answerer, text: str, step: int) -> QuestionRow:
    """What the answerer makes of it."""
    identity = put(run, text, step, answerer.clock())
    assert answerer.answer_next()
    row = find_question(run.database, identity, answerer.clock())
    assert row is not None
    assert row.answered_at is not None
    return row


def test_it_answers_as_plain_transformers_would(run: OpenRun, answerer: Answerer) -> None:
    """The same tokens with the same probabilities, from the checkpoint that was asked and no other."""
    for step in (10, 5):
        row = settled(run, answerer, SENTENCE, step)
        folder = run.directory.checkpoint_dir(step)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AlbertForPreTraining.from_pretrained(folder, use_safetensors=True).eval()
        inputs = tokenizer(SENTENCE, return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).prediction_logits[0]
        (place,) = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten().tolist()
        expected = torch.topk(torch.softmax(logits[place], -1), 5)
        assert [each.probability for each in row.answer[0]] == pytest.approx(expected.values.tolist(), abs=1e-5)
        spelt = [tokenizer.decode([token]).strip() for token in expected.indices.tolist()]
        assert [each.token for each in row.answer[0]] == spelt
    assert not answerer.answer_next()


def test_each_blank_has_its_candidates(run: OpenRun, answerer: Answerer) -> None:
    """In the order of the sentence."""
    row = settled(run, answerer, "Many [MASK] make [MASK] work.", 10)
    assert [len(blank) for blank in row.answer] == [5, 5]
    for blank in row.answer:
        assert sorted(blank, key=lambda each: -each.probability) == list(blank)
        assert 0 < sum(each.probability for each in blank) <= 1


def test_what_it_cannot_answer_it_says(run: OpenRun, answerer: Answerer) -> None:
    """A sentence too long for the model, or a checkpoint that is gone, withheld or damaged; the next is answered."""
    row = settled(run, answerer, f"{'many hands ' * 25}[MASK]", 10)
    assert "this run's model reads 32" in row.reason
    identity = put(run, SENTENCE, 5, answerer.clock())
    record_checkpoint(run.database, step=5, size_bytes=1, manifest_sha256="0" * 64, now=0.0, withheld="its loss rose")
    assert answerer.answer_next()
    refused = find_question(run.database, identity, answerer.clock())
    assert refused is not None
    assert "no longer kept" in refused.reason
    assert settled(run, answerer, SENTENCE, 10).reason == ""


def test_a_bug_costs_one_answer(run: OpenRun, answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails inside is told to the visitor in one sentence, and the sentence stays out of the log."""
    settled(run, answerer, SENTENCE, 10)
    assert answerer.filler is not None
    monkeypatch.setattr(answerer.filler, "fill", lambda *_: 1 / 0)
    assert settled(run, answerer, "A [MASK].", 10).reason == FAILED
    monkeypatch.undo()
    assert settled(run, answerer, "B [MASK].", 10).reason == ""


def test_the_models_memory_is_given_back(run: OpenRun, answerer: Answerer, clock: Clock) -> None:
    """When nobody has asked for a while; who asks then has it loaded again."""
    settled(run, answerer, SENTENCE, 10)
    clock.now += IDLE_S - 1
    answerer.rest()
    assert answerer.filler is not None
    clock.now += 2
    answerer.rest()
    assert answerer.filler is None
    assert settled(run, answerer, "A [MASK].", 10).reason == ""


def test_an_idle_process_has_not_loaded_torch() -> None:
    """It costs next to nothing while nobody asks."""
    script = "import sys, coordinator.playground.answerer; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.usefixtures("forked")
def test_the_process_answers_and_stops_when_told(run: OpenRun) -> None:
    """As the supervisor runs it."""
    process = PartProcess(ANSWERER, run.directory.path)
    process.start()
    try:
        identity = put(run, SENTENCE, 10, time.time())

        def is_answered() -> bool:
            row = find_question(run.database, identity, time.time())
            return row is not None and row.answered_at is not None

        wait_until("the question is answered", is_answered)
        process.ask_to_stop()
        wait_until("the answerer has ended", process.has_ended)
    finally:
        assert process.end() == 0
