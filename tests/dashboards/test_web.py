"""The overview in a real browser: it is live, honest about what it does not know, and safe from what peers write."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from benchmarks.coordinator.recorded_run import HOSTILE_NAME, QUICK, LiveRun, record
from coordinator.context.services import open_run_services
from coordinator.keeper.alarm_watch import AlarmWatch
from coordinator.ledger.reading import SETTLED_S
from coordinator.statistics.alarms import MODEL_KINDS, Alarm, write_alarms
from dashboards import catalogs
from peer.runtime.software import install_commands
from tests.support.browser import SCREENS, barriers, fresh_page, keep_screenshot, moving
from tests.support.served_page import FakeRun, PageServer, fake_run
from tests.support.waiting import PATIENCE_S

MUTED = "rgb(91, 101, 116)"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    """An empty run."""
    with fake_run(tmp_path, fresh_for_s=PATIENCE_S) as made:
        yield made


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRun]:
    """A recorded run of some hundred steps."""
    directory = record(tmp_path_factory.mktemp("recorded") / "run", QUICK, time.time())
    with open_run_services(directory, time.time) as services:
        yield FakeRun(directory, services, {})


@pytest.fixture(scope="module")
def recorded_server(recorded: FakeRun) -> Iterator[PageServer]:
    """The recorded run's dashboard."""
    made = PageServer(recorded)
    yield made
    made.close()


def fill(run: FakeRun, steps: int) -> None:
    """Two members, one with a hostile name, and some steps."""
    run.add_member("ada")
    run.add_member(HOSTILE_NAME)
    run.add_steps([9.0 - 0.1 * step for step in range(1, steps + 1)])
    run.add_checkpoint(steps)


def test_empty_run_waits(page: Page, server: PageServer, run: FakeRun, complaints: list[str]) -> None:
    """Without data the page says what it waits for instead of showing empty charts."""
    run.keeper_says(0, samples=0)
    page.goto(server.url)
    expect(page.locator("#state")).to_have_text("waiting for step 1")
    for name in ("contributions", "checkpoint", "validation", "averaging", "donated"):
        expect(page.locator(f"#no-{name}")).to_be_visible()
    expect(page.locator("#chart .loss-curve")).to_contain_text("Waiting for the first global step")
    expect(page.locator("#loss")).to_have_text("no step yet")
    assert complaints == []


def test_numbers_and_curve_are_live(page: Page, server: PageServer, run: FakeRun, complaints: list[str]) -> None:
    """Plotly draws every step, and a step that completes later arrives by itself."""
    fill(run, 12)
    page.goto(server.url)
    chart = page.locator("#chart")
    expect(chart).to_have_attribute("data-steps", "12")
    expect(chart.locator(".legend .legendtext")).to_have_text(["training", "checkpoint", "milestone"])
    expect(page.locator("#state")).to_have_text("live")
    expect(page.locator("#loss")).to_have_text("7.800")
    expect(page.locator("#batch-samples")).to_have_text("40 samples")
    expect(page.locator("#checkpoint-step")).to_have_text("12")
    run.add_step(13, 7.5)
    expect(chart).to_have_attribute("data-steps", "13")
    expect(page.locator("#loss")).to_have_text("7.500")
    expect(page.locator("#next-step")).to_have_text("14")
    assert complaints == []


def test_held_out_text_is_shown_beside_training(
    page: Page, server: PageServer, run: FakeRun, complaints: list[str]
) -> None:
    """A second line with a legend, and the newest checkpoint's numbers; one more arrives by itself."""
    fill(run, 12)
    page.goto(server.url)
    chart = page.locator("#chart")
    expect(chart).to_have_attribute("data-validations", "0")
    expect(page.locator("#no-validation")).to_be_visible()
    for step in (5, 10):
        run.add_validation(step, 8.0 - step / 10)
    expect(chart).to_have_attribute("data-validations", "2")
    names = ["training", "checkpoint", "held-out text", "milestone"]
    expect(chart.locator(".legend .legendtext")).to_have_text(names)
    expect(page.locator("#validation-step")).to_have_text("10")
    expect(page.locator("#validation-loss")).to_have_text("7.500")
    expect(page.locator("#validation-perplexity")).to_have_text("1,100")
    expect(page.locator("#validation-accuracy")).to_have_text("12.5%")
    expect(page.locator("#validation-order")).to_have_text("75%")
    run.add_validation(12, None, sop_accuracy=None)
    expect(page.locator("#validation-loss")).to_have_text("not a finite number")
    expect(page.locator("#validation-order")).to_have_text("not measured")
    assert complaints == []


def test_a_phase_is_marked_where_it_begins(page: Page, tmp_path: Path, complaints: list[str]) -> None:
    """The chart has a line and a name at the boundary that is passed, none at one to come; the batch tells which."""
    phases = [{"from_step": 4, "sequence_length": 256}, {"from_step": 100, "optimizer": "fresh"}]
    with fake_run(tmp_path / "phased", phases=phases, fresh_for_s=PATIENCE_S) as run:
        fill(run, 8)
        server = PageServer(run)
        page.goto(server.url)
        chart = page.locator("#chart")
        expect(chart).to_have_attribute("data-steps", "8")
        expect(chart.locator(".shapelayer path")).to_have_count(1)
        expect(chart.locator(".annotation")).to_have_text("phase 2")
        expect(page.locator("#phase")).to_have_text("phase 2 of 3: 256 tokens, 100 samples a step")
        server.close()
    assert complaints == []


def test_milestones_are_marked_and_say_what_they_are(
    page: Page, server: PageServer, run: FakeRun, complaints: list[str]
) -> None:
    """Close ones share a star below the curve; pointed at, it tells all; the next one arrives by itself."""
    run.add_member("ada")
    run.add_steps([9.0 - 0.01 * step for step in range(1, 99)])
    page.goto(server.url)
    chart = page.locator("#chart")
    expect(chart).to_have_attribute("data-steps", "98")
    expect(chart).to_have_attribute("data-milestones", "2")
    stars = chart.locator(".xy2 .points path")
    expect(stars).to_have_count(2)
    stars.nth(1).hover(force=True)
    expect(chart.locator(".hoverlayer .hovertext")).to_have_text("1,000 samples · step 10")
    page.locator("#chart-choices [name=x]").select_option("samples_total")
    expect(stars).to_have_count(2)
    run.add_steps([7.0, 7.0], first=99)
    run.add_validation(50, 6.2)
    run.add_validation(99, 5.8)
    expect(chart).to_have_attribute("data-milestones", "3")
    stars.nth(2).hover(force=True)
    texts = ["10,000 samples · step 100", "Record: loss on held-out text below 6.5 · step 99"]
    for text in texts:
        expect(chart.locator(".hoverlayer .hovertext")).to_contain_text(text)
    assert complaints == []


def test_close_milestones_share_a_mark_with_few_words(page: Page, server: PageServer) -> None:
    """A long row of close ones is more than one mark; of very many in one the first are told."""
    page.goto(server.url)
    script = """async ([url, at]) => {
        const marks = await import(url);
        const groups = marks.grouped(at.map((at) => ({ at, step: at, kind: "samples", value: 1000 })), 10);
        return [groups.map((group) => group.length), marks.groupText(groups[0]).split("<br>")];
    }"""
    url = f"{server.url}static/milestone_marks.js"
    assert page.evaluate(script, [url, [1, 1, 4, 10, 13, 16, 19, 22]])[0] == [4, 4]
    lengths, lines = page.evaluate(script, [url, [1, *[2] * 11]])
    assert lengths == [12]
    assert lines == ["1,000 samples · step 1", *["1,000 samples · step 2"] * 7, "…"]
    reached = "async (url) => { const m = await import(url); return [1, 999, 1000, 9999, 10 ** 9].map(m.reached); }"
    assert page.evaluate(reached, url) == [1, 1, 1000, 1000, 10**9]


def test_hostile_name_stays_text(page: Page, server: PageServer, run: FakeRun, complaints: list[str]) -> None:
    """A member named like markup is shown as it is spelt; nothing of it is run or loaded."""
    fill(run, 2)
    page.goto(server.url)
    expect(page.get_by_text(HOSTILE_NAME, exact=True)).to_be_visible()
    assert page.locator("#contributions img").count() == 0
    assert complaints == []


def test_lost_connection_is_visible_and_heals(page: Page, server: PageServer, run: FakeRun) -> None:
    """While the coordinator is away the page says that it reconnects; afterwards it is live again."""
    fill(run, 3)
    page.goto(server.url)
    expect(page.locator("#state")).to_have_text("live")
    server.close()
    expect(page.locator("#banner")).to_contain_text("tries to connect again")
    expect(page.locator("#state")).to_have_attribute("data-state", "disconnected")
    expect(page.locator(".tiles [data-age]")).to_have_count(7)
    expect(page.locator("#verdict[data-age]")).to_have_css("color", MUTED)
    assert barriers(page) == []
    run.add_step(4, 5.0)
    server.start()
    expect(page.locator("#state")).to_have_text("live")
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#loss")).to_have_text("5.000")


def test_the_verdict_stands_on_top(page: Page, server: PageServer, run: FakeRun, complaints: list[str]) -> None:
    """One sentence says how the run does, beside its progress and the two ways on; it follows the run."""
    run.keeper_says(0, samples=0)
    page.goto(server.url)
    verdict = page.locator("#verdict")
    expect(verdict).to_contain_text("Waiting nobody trains at the moment")
    fill(run, 12)
    expect(verdict).to_have_attribute("data-state", "healthy")
    expect(page.locator("#verdict-text")).to_contain_text("2 peers, a step every")
    expect(page.locator("#whole-step")).to_have_text("Step 12 of 125,000 (0%)")
    expect(page.locator("#whole-ends")).to_contain_text("Expected to end on")
    expect(verdict.get_by_role("link")).to_have_text(["Join", "Try the model"])
    alarm = Alarm("loss_diverges", 9, "the loss is 9, and was 4")
    now = run.services.clock()
    run.services.database.transact(lambda session: write_alarms(session, MODEL_KINDS, [alarm], now))
    run.keeper_says(12)
    expect(verdict).to_contain_text("Needs attention the loss rises")
    assert complaints == []


def test_a_visitor_without_an_installation_takes_part_by_one_line(
    page: Page, server: PageServer, run: FakeRun, complaints: list[str]
) -> None:
    """The line fetches, checks and installs the run's software before it joins; other ways are behind a link."""
    fill(run, 2)
    page.goto(server.url)
    card = page.get_by_role("region", name="Take part")
    steps = [
        *install_commands(run.services.software_address),
        f"manyhands/bin/manyhands join '{run.directory.join_link}'",
    ]
    expect(card.locator("code")).to_have_text(" && ".join(steps))
    expect(card.get_by_role("button")).to_have_text("Copy")
    expect(card.get_by_role("link", name="Ways to join")).to_have_attribute("href", "join")
    card.get_by_role("button").click()
    expect(card.get_by_role("button")).to_have_text(re.compile("Copied|Selected"))
    assert barriers(page) == []
    assert complaints == []
    keep_screenshot(page, "take-part")


def test_a_loss_that_leaves_its_course_is_told_with_the_way_back(
    page: Page, server: PageServer, run: FakeRun, complaints: list[str]
) -> None:
    """First as a rise from its best, although the loss is far below its beginning; then as an alarm, with a command."""
    run.add_member("ada")
    losses = [*(9.0 - 0.03 * step for step in range(1, 94)), *(6.21 + 0.008 * step for step in range(1, 60))]
    run.add_steps(losses[:125])
    run.add_checkpoint(90)
    run.add_checkpoint(120)
    page.goto(server.url)
    verdict = page.locator("#verdict")
    expect(verdict).to_have_attribute("data-state", "healthy")
    expect(page.locator("#verdict-text")).to_contain_text("from its best at step 9")
    expect(page.locator("#alarms")).to_be_hidden()
    run.add_steps(losses[125:], first=126)
    later = run.services.clock() + SETTLED_S + 1
    AlarmWatch(run.services.database, run.directory, run.services.ledger, lambda: later).step_taken(0, 152, (1.0,))
    run.keeper_says(152)
    expect(verdict).to_contain_text("Needs attention the loss rises")
    told = "the loss rises. Operators can return to the checkpoint of step 90: manyhands coordinator rewind DIR 90"
    expect(page.locator("#alarms li")).to_contain_text(told)
    assert barriers(page) == []
    assert complaints == []
    keep_screenshot(page, "alarm")


def test_silent_keeper_is_visible(page: Page, server: PageServer, run: FakeRun) -> None:
    """When the keeper says nothing, its figures are grey with their age, and the ledger's are not."""
    fill(run, 2)
    run.keeper_says(2, now=time.time() - 600)
    page.goto(server.url)
    expect(page.locator("#state")).to_have_text("figures are old")
    expect(page.locator("#banner")).to_contain_text("The training itself usually goes on")
    expect(page.locator("#verdict-text")).to_contain_text("the run's keeper has sent no news for")
    expect(page.locator(".tiles [data-age]")).to_have_count(3)
    expect(page.locator("#time-left")).to_have_text("no news from the keeper")
    peers = page.locator("[data-from]", has=page.locator("#peers"))
    expect(peers).to_have_attribute("data-age", re.compile("min. ago"))
    run.keeper_says(2)
    expect(page.locator("[data-age]")).to_have_count(0)


def test_the_curve_as_the_reader_wants_it(
    page: Page, recorded_server: PageServer, recorded: FakeRun, complaints: list[str]
) -> None:
    """Against samples or time, smoothed, logarithmic; of a long curve as many points as a chart can show."""
    page.goto(recorded_server.url)
    chart = page.locator("#chart")
    expect(chart).to_have_attribute("data-steps", str(recorded.services.ledger.last_step()))
    page.select_option("[name=x]", "samples_total")
    expect(chart.locator(".xtitle")).to_have_text("samples seen")
    page.select_option("[name=x]", "completed_at")
    expect(chart.locator(".xtitle")).to_have_text("time")
    page.select_option("[name=smoothing]", "100")
    expect(chart.locator(".legend .legendtext").nth(1)).to_have_text("smoothing: 100 steps")
    page.check("[name=log]")
    assert page.evaluate("document.getElementById('chart').layout.yaxis.type") == "log"
    assert complaints == []


def test_a_long_curve_begins_smoothed_and_without_its_first_drop(page: Page, recorded_server: PageServer) -> None:
    """A checkbox or a double click shows all of it, and the select takes the smoothing away."""
    page.goto(recorded_server.url)
    chart = page.locator("#chart")
    expect(chart.locator(".legend .legendtext").nth(1)).to_have_text("smoothing: 20 steps")
    highest = "() => document.getElementById('chart')._fullLayout.yaxis.range[1]"
    first = page.evaluate("document.getElementById('chart').data[0].y[0]")
    assert page.evaluate(highest) < first
    chart.locator(".nsewdrag").first.dblclick()
    page.wait_for_function(f"({highest})() > {first}")
    page.check("[name=whole]")
    page.check("[name=log]")
    page.wait_for_function(f"10 ** ({highest})() > {first}")
    page.uncheck("[name=whole]")
    page.wait_for_function(f"10 ** ({highest})() < {first}")
    page.select_option("[name=smoothing]", "0")
    expect(chart.locator(".legend .legendtext").nth(1)).not_to_contain_text("smoothing")


def test_the_usual_range_takes_in_what_follows(page: Page, server: PageServer) -> None:
    """An axis of a short curve has none; on a logarithmic axis it is in powers of ten, never of zero."""
    page.goto(server.url)
    script = """async (url) => {
        const data = await import(url);
        const columns = { step: [1], loss: [9], samples: [1], samples_total: [1], completed_at: [1] };
        const recent = { step: [2], loss: [0], samples: [1], samples_total: [2], completed_at: [2] };
        const next = data.continued({ ...columns, smoothed: null, smoothing: 0, usual: [1, 100] }, recent);
        const ranges = [[next, false, false], [next, false, true], [next, true, false], [{ usual: null }, false, true]];
        return ranges.map((asked) => data.lossRange(...asked) ?? null);
    }"""
    found = page.evaluate(script, f"{server.url}static/curve_data.js")
    assert found == [[0, 100], [-3, 2], None, None]


def test_a_recorded_run_goes_on(page: Page, recorded_server: PageServer, recorded: FakeRun) -> None:
    """New steps of a long run lengthen the curve without its being fetched again."""
    page.goto(recorded_server.url)
    step = recorded.services.ledger.last_step()
    expect(page.locator("#chart")).to_have_attribute("data-steps", str(step))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    live = LiveRun(recorded.services.database, random.Random(0))
    live.complete_step(time.time())
    live.say(0.5, 30.0, time.time() + PATIENCE_S)
    expect(page.locator("#chart")).to_have_attribute("data-steps", str(step + 1))
    expect(page.locator("#eta")).to_have_text("about 30 seconds left")
    assert asked == []


def test_what_does_not_load_is_said(page: Page, server: PageServer, run: FakeRun) -> None:
    """Without the charts' library the server's drawing stays, and the page says why; it tries again."""
    fill(run, 5)
    page.route("**/plotly.min.js*", lambda route: route.abort())
    page.goto(server.url)
    expect(page.locator("#chart-note")).to_contain_text("the charts' library did not load")
    expect(page.locator("#chart .loss-curve")).to_be_visible()
    page.unroute("**/plotly.min.js*")
    run.add_step(6, 4.0)
    expect(page.locator("#chart")).to_have_attribute("data-steps", "6")
    expect(page.locator("#chart-note")).to_have_text("")


def test_languages(browser: Browser, server: PageServer, run: FakeRun, complaints: list[str]) -> None:
    """The browser's language at first; then the one that was chosen, texts and numbers alike."""
    fill(run, 12)
    with fresh_page(browser, complaints, locale="es-MX") as page:
        page.goto(server.url)
        expect(page.locator("html")).to_have_attribute("lang", "es")
        expect(page.locator("#state")).to_have_text("en vivo")
        page.get_by_role("link", name="বাংলা").click()
        expect(page.locator("html")).to_have_attribute("lang", "bn")
        expect(page.locator("#next-step")).to_have_text("১৩")
        page.goto(server.url)
        expect(page.locator("html")).to_have_attribute("lang", "bn")
        large = "async (url) => (await import(url)).large(760000)"
        assert page.evaluate(large, f"{server.url}static/format.js") == "৭.৬ লাখ"
    assert complaints == []


@pytest.mark.parametrize("screen", SCREENS)
def test_everybody_can_use_it(browser: Browser, recorded_server: PageServer, recorded: FakeRun, screen: str) -> None:
    """On each screen nothing scrolls sideways and axe-core finds no barrier; a picture of it is kept."""
    live = LiveRun(recorded.services.database, random.Random(0))
    with fresh_page(browser, **SCREENS[screen]) as page:
        page.goto(recorded_server.url)
        live.say(0.4, 40.0, time.time() + PATIENCE_S)
        expect(page.locator("#chart[data-steps]")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen]["viewport"]["width"]
        live.say(0.5, 30.0, time.time() + PATIENCE_S)
        expect(page.locator("#state")).to_have_text("live")
        keep_screenshot(page, f"overview-{screen}")
        assert barriers(page) == []


def test_nothing_moves_for_a_reader_who_wants_no_motion(browser: Browser, recorded_server: PageServer) -> None:
    """No view is animated, not even while it loads, and dragging over the chart brings no fading tip."""
    with fresh_page(browser, reduced_motion="reduce") as page:
        page.route("**/api/v1/participants/1", lambda _route: None)  # so that the member's page keeps loading
        for path in ("participants", "member?number=1", "model", "history", "join#invite=AAAAA-AAAAA-AAAAA-AAAAA", ""):
            page.goto(f"{recorded_server.url}{path}")
            assert moving(page) == [], path
        expect(page.locator("#chart[data-steps]")).to_be_visible()
        box = page.locator("#chart .nsewdrag").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 100, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 300, box["y"] + 150, steps=5)
        page.mouse.up()
        page.wait_for_function("!document.getElementById('chart')._fullLayout.xaxis.autorange")
        expect(page.locator(".plotly-notifier")).to_have_count(0)
        assert moving(page) == []


@pytest.mark.parametrize("width", [360, 390, 768, 1024, 1280])
def test_the_state_takes_no_room_from_the_navigation(browser: Browser, server: PageServer, width: int) -> None:
    """Whatever it says, in any language and beside a long name: the page below stays where it is."""
    with fresh_page(browser, viewport={"width": width, "height": 900}) as page:
        for language, texts in catalogs().items():
            page.goto(f"{server.url}history?lang={language}")
            page.evaluate("document.querySelector('.run-name').textContent = 'a-long-name-of-'.repeat(4)")
            say = "(text) => { document.getElementById('state').textContent = text; }"
            places = []
            for state in ("live", "connecting", "waiting", "stale", "disconnected", "archived"):
                page.evaluate(say, texts["frame"][state])
                places.append(page.evaluate("document.getElementById('content').offsetTop"))
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (language, state)
            assert places == places[:1] * len(places), language


def test_right_to_left(page: Page, recorded_server: PageServer) -> None:
    """Turned round, the page still fits."""
    page.goto(recorded_server.url)
    expect(page.locator("#chart[data-steps]")).to_be_visible()
    page.evaluate("document.documentElement.dir = 'rtl'")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    title, state = page.locator(".brand").bounding_box(), page.locator("#state").bounding_box()
    assert title is not None
    assert state is not None
    assert title["x"] > state["x"]


def test_keyboard_reaches_everything(page: Page, server: PageServer, run: FakeRun) -> None:
    """The first Tab offers to skip to the content, and the choices can be changed by keys."""
    fill(run, 30)
    page.goto(server.url)
    expect(page.locator("#chart[data-steps]")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    page.locator("[name=smoothing]").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#chart .legend .legendtext").nth(1)).to_have_text("smoothing: 20 steps")


def test_an_earlier_choices_late_answer_is_not_shown(page: Page, server: PageServer, run: FakeRun) -> None:
    """The curve without smoothing comes after the one that was chosen later."""
    fill(run, 30)
    page.goto(server.url)
    expect(page.locator("#chart[data-steps]")).to_be_visible()
    held: list[Route] = []
    page.route(re.compile(r"smoothing=0\b"), lambda route: held.append(route))
    page.locator("[name=smoothing]").select_option("0")
    page.locator("[name=smoothing]").select_option("20")
    smoothed = page.locator("#chart .legend .legendtext").nth(1)
    expect(smoothed).to_have_text("smoothing: 20 steps")
    with page.expect_response(re.compile(r"smoothing=0\b")) as late:
        held[0].continue_()
    late.value.finished()
    page.locator("#chart-choices [name=log]").check()  # draws what the chart has
    page.wait_for_function("document.getElementById('chart').layout.yaxis.type === 'log'")
    expect(smoothed).to_have_text("smoothing: 20 steps")


def test_keys_move_and_zoom_the_chart(page: Page, recorded_server: PageServer, complaints: list[str]) -> None:
    """The part that is seen is told in words, and stays while the chart is drawn anew; Home shows the whole."""
    page.goto(recorded_server.url)
    chart, keys = page.locator("#chart"), page.locator("#chart-keys")
    expect(chart).to_have_attribute("aria-label", re.compile(r"^Loss fell from \d.*at step 1 to \d"))
    expect(keys).to_be_hidden()
    page.locator("#chart-choices [name=log]").focus()
    page.keyboard.press("Tab")
    expect(chart).to_be_focused()
    expect(keys).to_be_visible()
    told = page.locator("#chart-told")

    def press(key: str) -> tuple[float, float]:
        before = told.inner_text()
        page.keyboard.press(key)
        expect(told).not_to_have_text(before)
        return seen()

    def seen() -> tuple[float, float]:
        low, high = page.evaluate("document.getElementById('chart')._fullLayout.xaxis.range")
        return low, high

    whole = seen()
    press("+")
    near = press("+")
    assert near[1] - near[0] < (whole[1] - whole[0]) / 3
    moved = press("ArrowRight")
    assert moved[0] > near[0]
    page.select_option("[name=smoothing]", "100")
    expect(chart.locator(".legend .legendtext").nth(1)).to_have_text("smoothing: 100 steps")
    assert seen() == moved
    chart.focus()
    assert press("Home") == whole
    assert complaints == []


def test_keys_stay_within_the_run(page: Page, server: PageServer) -> None:
    """Neither end is passed, there is a closest look, and other keys are the page's."""
    page.goto(server.url)
    script = """async ([url, asked]) => {
        const { afterKey } = await import(url);
        return asked.map(([key, seen]) => afterKey(key, seen, [0, 100]) ?? String(afterKey(key, seen, [0, 100])));
    }"""
    asked = [
        ("+", [0, 100]),
        ("-", [25, 75]),
        ("ArrowLeft", [5, 55]),
        ("ArrowRight", [40, 60]),
        ("ArrowRight", [80, 100]),
    ]
    asked += [("+", [50, 51]), ("Home", [1, 2]), ("ArrowUp", [1, 2]), ("ArrowRight", [-5, 105])]
    found = page.evaluate(script, [f"{server.url}static/chart_keys.js", asked])
    assert found == [[25, 75], "null", [0, 50], [44, 64], [80, 100], [50, 51], "null", "undefined", "null"]


def test_the_curve_is_also_a_table(page: Page, server: PageServer, run: FakeRun, complaints: list[str]) -> None:
    """Of the part that is seen, thinned out; a sentence says how the loss changed."""
    fill(run, 60)
    page.goto(server.url)
    expect(page.locator("#chart")).to_have_attribute(
        "aria-label", "Loss fell from 8.900 at step 1 to 3.000 at step 60."
    )
    page.get_by_text("The curve as a table").click()
    rows = page.locator("#chart-details tbody tr")
    expect(rows).to_have_count(30)
    expect(rows.first.locator("th, td")).to_have_text(["1", "8.900", "102"])
    expect(rows.last.locator("th, td")).to_have_text(["60", "3.000", "102"])
    expect(page.locator("#chart-details [data-column=smoothed]")).to_be_hidden()
    page.locator("#chart").focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    expect(rows).to_have_count(14)
    expect(page.locator("#chart-told")).to_have_text("Loss fell from 6.600 at step 24 to 5.300 at step 37.")
    page.locator("[name=smoothing]").select_option("20")
    expect(rows.first.locator("td")).to_have_count(3)
    assert barriers(page) == []
    assert complaints == []
