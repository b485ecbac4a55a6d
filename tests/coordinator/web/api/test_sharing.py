"""What others show of the run: charts in frames, and the picture beside a link."""

from __future__ import annotations

from io import BytesIO

import pytest
import yaml
from PIL import Image
from starlette.testclient import TestClient

from coordinator.statistics.card import CardFacts, draw_card
from coordinator.web.api.sharing import CARD_S
from coordinator.web.app import WebState, create_app
from tests.support.clocks import Clock
from tests.support.served_page import FakeRun

pytestmark = pytest.mark.usefixtures("three_steps")


def test_the_embedded_chart_may_be_framed_and_runs_nothing(client: TestClient) -> None:
    """Everything else may not be framed."""
    answer = client.get("/embed/loss?theme=dark")
    policy = answer.headers["content-security-policy"]
    assert policy.endswith("frame-ancestors *")
    assert "script-src" not in policy
    assert "x-frame-options" not in answer.headers
    assert "<script" not in answer.text
    assert 'class="dark"' in answer.text
    assert "loss 7.000" in answer.text
    assert client.get("/embed/loss?theme=pink").status_code == 422
    page = client.get("/")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("origins", "policy"),
    [(["https://example.org", "https://*.net:8443"], "https://example.org https://*.net:8443"), ([], "'none'")],
)
def test_the_operator_says_who_may_frame_it(run: FakeRun, origins: list[str], policy: str) -> None:
    """`embed_on` in settings.yaml."""
    path = run.directory.path / "settings.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "embed_on": origins}))
    directory = type(run.directory).open(run.directory.path)
    with TestClient(create_app(WebState(directory, run.services))) as client:
        said = client.get("/embed/loss").headers["content-security-policy"]
    assert said.endswith(f"frame-ancestors {policy}")


def test_the_card_is_a_picture_of_the_run(client: TestClient, run: FakeRun, clock: Clock) -> None:
    """1200 x 630, drawn again when it is old and the run has gone on."""
    answer = client.get("/card.png")
    assert answer.headers["content-type"] == "image/png"
    with Image.open(BytesIO(answer.content)) as image:
        assert image.size == (1200, 630)
    assert len(answer.content) < 200_000
    assert client.get("/card.png").content == answer.content
    shelf = client.app.state.card  # type: ignore[attr-defined]
    assert shelf.step == 3
    run.add_step(4, 5.0)
    clock.now += CARD_S
    client.app.state.live._current = client.app.state.live._take(None)  # type: ignore[attr-defined]
    assert client.get("/card.png").content != answer.content
    assert shelf.step == 4


@pytest.mark.parametrize(
    "loss", [[], [(1.0, 9.0)], [(1.0, 5.0), (2.0, 5.0)], [(float(n), 9.0 / n) for n in range(1, 900)]]
)
def test_a_card_can_be_drawn_of_any_curve(loss: list[tuple[float, float]]) -> None:
    """None yet, a point, a flat line, and one that is longer than the picture is wide; the longest name fits."""
    content = draw_card(CardFacts("a" * 40, loss, len(loss), 10**9, 1))
    with Image.open(BytesIO(content)) as image:
        pixels = image.convert("RGB")
        assert {pixels.getpixel((x, y)) for x in range(1150, 1200) for y in range(100, 160)} == {(15, 23, 32)}
