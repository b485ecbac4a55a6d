"""What the dashboard's benchmark counts is what the server and the browser did."""

from __future__ import annotations

import http.client

import pytest

from benchmarks.coordinator.dashboard import ask
from benchmarks.coordinator.viewers import watching
from benchmarks.coordinator.visit import visit, visit_slowly
from tests.support.served_page import FakeRun, PageServer
from tests.support.waiting import PATIENCE_S, wait_until

VIEWERS = 40  # more than one address may be


@pytest.fixture
def run(run: FakeRun) -> FakeRun:
    """A run with a few steps."""
    run.add_member("ada")
    for step in (1, 2, 3):
        run.add_step(step, 5.0)
    return run


def test_viewers_get_what_is_new(server: PageServer, run: FakeRun) -> None:
    """Each from an address of its own; all of them hear of a step."""
    with watching("127.0.0.1", server.port, VIEWERS) as crowd:
        began = crowd.events
        run.add_step(4, 4.0)
        wait_until("every viewer has heard of the step", lambda: crowd.events >= began + VIEWERS)
        assert crowd.listening == VIEWERS


def test_a_visit_is_measured(server: PageServer) -> None:
    """A real browser paints and has its chart; what it loads is counted, Plotly apart and once."""
    seen = visit(server.url, 0.1)
    assert seen.first_paint_s > 0
    assert seen.chart_s > 0
    assert 10_000 < seen.own_bytes < 250 * 1024
    assert seen.plotly_bytes > 1_000_000


@pytest.mark.thorough
def test_a_phones_visit_is_measured(server: PageServer) -> None:
    """The largest paint may be before the chart or be the chart; what has shifted is a part of the screen."""
    seen = visit_slowly(server.url)
    assert seen.largest_paint_s > 0
    assert seen.there_s > 0
    assert 0 <= seen.shifted < 5
    assert 10_000 < seen.own_bytes < 1_000_000


def test_answers_are_asked_for_and_refusals_noticed(server: PageServer) -> None:
    """The time of an answer counts; a refusal is none."""
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    seconds, content = ask(line, "/healthz")
    assert seconds > 0
    assert content == b'{"status":"ok"}'
    with pytest.raises(RuntimeError, match="404"):
        ask(line, "/nowhere")
    line.close()
