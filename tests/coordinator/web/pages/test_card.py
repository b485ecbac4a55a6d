"""The picture of the run beside a link to its page."""

from __future__ import annotations

from io import BytesIO

import pytest
from PIL import Image
from starlette.testclient import TestClient

from coordinator.web.app import create_app
from coordinator.web.http.answers import AnswerCache
from coordinator.web.pages.card import CARD_S, draw_card
from coordinator.web.state.web_state import WebState
from tests.support.clocks import Clock
from tests.support.served_page import FakeRun

pytestmark = pytest.mark.usefixtures("three_steps")


def test_the_card_is_a_picture_of_the_run(client: TestClient, run: FakeRun, clock: Clock) -> None:
    """1200 x 630, drawn again when it is old and the run has gone on."""
    answer = client.get("/card.png")
    assert answer.headers["content-type"] == "image/png"
    with Image.open(BytesIO(answer.content)) as image:
        assert image.size == (1200, 630)
    assert len(answer.content) < 200_000
    assert client.get("/card.png").content == answer.content
    run.add_step(4, 5.0)
    for passed_s, is_new in ((1.0, False), (CARD_S, True)):
        clock.now += passed_s
        with TestClient(client.app) as later:  # it begins with a new snapshot
            assert (later.get("/card.png").content != answer.content) is is_new


def test_other_questions_do_not_have_the_card_drawn_again(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many answers somebody asks for meanwhile."""
    drawn: list[str] = []
    monkeypatch.setattr("coordinator.web.pages.card.draw_card", lambda name, *_: drawn.append(name) or b"a picture")
    web = WebState(run.directory, run.services, answers=AnswerCache(1))
    with TestClient(create_app(web)) as client:
        for path in ("/card.png", "/api/v1/steps", "/api/v1/moments/0", "/card.png"):
            assert client.get(path).status_code == 200
    assert drawn == ["test-run"]


@pytest.mark.parametrize(
    "loss", [[], [(1.0, 9.0)], [(1.0, 5.0), (2.0, 5.0)], [(float(n), 9.0 / n) for n in range(1, 900)]]
)
def test_a_card_can_be_drawn_of_any_curve(loss: list[tuple[float, float]]) -> None:
    """None yet, a point, a flat line, and one that is longer than the picture is wide; the longest name fits."""
    content = draw_card("a" * 40, loss, len(loss), 10**9, 1)
    with Image.open(BytesIO(content)) as image:
        pixels = image.convert("RGB")
        assert {pixels.getpixel((x, y)) for x in range(1150, 1200) for y in range(100, 160)} == {(15, 23, 32)}
