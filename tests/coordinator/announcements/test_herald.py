"""The herald against a real HTTP server: what chats are asked, and that each hears of each milestone once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from auth.errors import ConfigError
from coordinator.announcements import herald as module
from coordinator.announcements.herald import (
    LONGEST_PAUSE_S,
    MAX_ATTEMPTS,
    NEWS_S,
    DeliveryOutcome,
    Herald,
    Reply,
    find_notice,
    judge,
    open_herald,
    outcome_of,
    pause_s,
)
from coordinator.ledger.reading import SETTLED_S
from coordinator.run.directory import RunDirectory
from coordinator.service.parts import HERALD, PartProcess
from tests.support.chat_server import ChatServer, chat_server
from tests.support.clocks import Clock
from tests.support.served_page import FakeRun, fake_run
from tests.support.waiting import wait_until

FIRST = "first-step:1"


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    """Somebody's chat."""
    with chat_server() as made:
        yield made


@pytest.fixture
def run(run: FakeRun, clock: Clock) -> FakeRun:
    """A run that has taken its first step."""
    run.add_member("ada")
    run.add_step(1, 9.0)
    clock.now += SETTLED_S + 1
    return run


def set_webhooks(run: FakeRun, chat: ChatServer, *kinds: str) -> None:
    """Have milestones told in chats of these kinds, each called as its kind."""
    path = run.directory.path
    secrets = {"discord": f"{chat.address}/api/webhooks/1/s3cret", "slack": f"{chat.address}/services/T/B/s3cret"}
    webhooks: dict[str, dict[str, str]] = {}
    for kind in kinds:
        file = path / "keys" / f"{kind}.secret"
        file.write_text(secrets.get(kind, "t0ken"))
        file.chmod(0o600)
        key = "token_file" if kind == "matrix" else "url_file"
        place = {"server": chat.address, "room": "!abc:example.org"} if kind == "matrix" else {}
        webhooks[kind] = {"kind": kind, key: f"keys/{kind}.secret", **place}
    settings = path / "settings.yaml"
    settings.write_text(yaml.safe_dump({**yaml.safe_load(settings.read_text()), "webhooks": webhooks}, sort_keys=False))


@pytest.fixture
def herald_of(run: FakeRun, chat: ChatServer, clock: Clock) -> Callable[..., Herald]:
    """Makes the herald of the run, with webhooks of these kinds."""

    def make(*kinds: str) -> Herald:
        set_webhooks(run, chat, *kinds)
        return open_herald(run.directory.path, clock)

    return make


def ended(herald: Herald, webhook: str, milestone: str = FIRST) -> str:
    """How it ended, if it did."""
    return find_notice(herald.database, milestone, webhook).ended


def test_each_chat_is_asked_in_its_own_way(herald_of: Callable[..., Herald], chat: ChatServer) -> None:
    """Discord pings nobody, Slack reads no markup, Matrix knows a text again; none of it names a member."""
    herald = herald_of("discord", "slack", "matrix")
    herald.tell_all()
    address = herald.directory.settings.web_address
    text = f"The run test-run has taken its first global step. {address}/"
    discord, slack, matrix = chat.asked
    assert (discord.method, discord.path) == ("POST", "/api/webhooks/1/s3cret?wait=true")
    assert discord.content == {"content": text, "allowed_mentions": {"parse": []}}
    assert (slack.method, slack.path, slack.content) == ("POST", "/services/T/B/s3cret", {"text": text})
    assert matrix.method == "PUT"
    assert matrix.path.startswith("/_matrix/client/v3/rooms/%21abc%3Aexample.org/send/m.room.message/")
    assert matrix.content == {"msgtype": "m.notice", "body": text}
    assert matrix.headers["authorization"] == "Bearer t0ken"
    assert [ended(herald, name) for name in ("discord", "slack", "matrix")] == [DeliveryOutcome.TOLD] * 3


def test_nothing_is_told_twice(herald_of: Callable[..., Herald], run: FakeRun, chat: ChatServer, clock: Clock) -> None:
    """Not by the same herald, not by the next one, not when a step that was undone is taken again."""
    herald = herald_of("discord")
    herald.tell_all()
    herald.tell_all()
    open_herald(run.directory.path, clock).tell_all()
    run.services.ledger.roll_back(0)
    clock.now += 1
    herald.tell_all()
    run.add_step(2, 8.0)
    clock.now += SETTLED_S + 1
    herald.tell_all()
    assert len(chat.asked) == 1


def test_a_step_is_waited_for_until_its_reports_are_in(run: FakeRun, chat: ChatServer, clock: Clock) -> None:
    """Else a milestone might be told that a late report moves."""
    clock.now -= 10
    set_webhooks(run, chat, "discord")
    herald = open_herald(run.directory.path, clock)
    herald.tell_all()
    assert chat.asked == []
    clock.now += 10
    herald.tell_all()
    assert len(chat.asked) == 1


def test_what_fails_is_tried_again_later_and_later(
    herald_of: Callable[..., Herald], run: FakeRun, chat: ChatServer, clock: Clock
) -> None:
    """In order: what came after waits for it. The pause doubles, and is as long as the chat asks for."""
    herald = herald_of("slack")
    for step, loss in ((2, 7.0), (3, 5.1)):
        run.add_validation(step, loss, sop_loss=None, evaluated_at=clock.now)
    chat.answers = [503, 502, 429]
    pauses = [5.0, 10.0, 1200.0]
    for number, pause in enumerate(pauses, 1):
        chat.headers = {"Retry-After": "1200"} if number == 3 else {}
        herald.tell_all()
        assert len(chat.asked) == number
        clock.now += pause - 1
        herald.tell_all()
        assert len(chat.asked) == number
        clock.now += 1
    herald.tell_all()
    assert [ended(herald, "slack", key) for key in (FIRST, "loss:5.5")] == [DeliveryOutcome.TOLD, DeliveryOutcome.TOLD]
    assert len(chat.asked) == 5
    assert "below 5.5" in chat.asked[-1].content["text"]


def test_attempts_are_bounded(herald_of: Callable[..., Herald], chat: ChatServer, clock: Clock) -> None:
    """A chat that never comes back is left alone in the end."""
    herald = herald_of("discord")
    chat.answers = [503] * 100
    for _ in range(2 * MAX_ATTEMPTS):
        herald.tell_all()
        clock.now += LONGEST_PAUSE_S
    assert len(chat.asked) == MAX_ATTEMPTS
    assert ended(herald, "discord") == DeliveryOutcome.GIVEN_UP


def test_a_refusal_is_final_and_logged(
    herald_of: Callable[..., Herald], chat: ChatServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong address or token does not become right by asking again; the log never repeats it."""
    herald = herald_of("discord")
    chat.answers = [404]
    herald.tell_all()
    clock.now += LONGEST_PAUSE_S
    herald.tell_all()
    assert (len(chat.asked), ended(herald, "discord")) == (1, DeliveryOutcome.REFUSED)
    assert "404" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(("kind", "asked"), [("discord", 1), ("matrix", 2)])
def test_what_may_have_arrived_is_only_repeated_where_it_is_known_again(
    herald_of: Callable[..., Herald], chat: ChatServer, clock: Clock, kind: str, asked: int
) -> None:
    """The connection ends without an answer: Matrix gets the same text by the same name, Discord nothing."""
    herald = herald_of(kind)
    chat.answers = [0]
    herald.tell_all()
    clock.now += LONGEST_PAUSE_S
    herald.tell_all()
    assert len(chat.asked) == asked
    assert len({each.path for each in chat.asked}) == 1
    assert ended(herald, kind) == (DeliveryOutcome.TOLD if kind == "matrix" else DeliveryOutcome.UNKNOWN)


@pytest.mark.parametrize(("kind", "asked"), [("slack", 0), ("matrix", 1)])
def test_killed_while_it_told(
    herald_of: Callable[..., Herald],
    chat: ChatServer,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    asked: int,
) -> None:
    """The attempt stands in the table before it is made: the next herald knows that the word may have arrived."""
    herald = herald_of(kind)

    def dies(*_request: object) -> Reply:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "send", dies)
        with pytest.raises(KeyboardInterrupt):
            herald.tell_all()
    open_herald(herald.directory.path, clock).tell_all()
    assert len(chat.asked) == asked


def test_a_new_webhook_is_not_told_the_whole_history(
    herald_of: Callable[..., Herald], chat: ChatServer, clock: Clock
) -> None:
    """What was reached more than a day ago is no news."""
    clock.now += NEWS_S + 1
    herald = herald_of("discord")
    herald.tell_all()
    assert (chat.asked, ended(herald, "discord")) == ([], DeliveryOutcome.LEFT_OUT)


def test_nobody_there_is_tried_again(herald_of: Callable[..., Herald], chat: ChatServer) -> None:
    """A refused connection has certainly delivered nothing."""
    herald = herald_of("discord")
    (herald.directory.path / "keys" / "discord.secret").write_text("http://127.0.0.1:9/api/webhooks/1/s3cret")
    herald.tell_all()
    row = find_notice(herald.database, FIRST, "discord")
    assert (row.ended, row.attempts, row.begun_at) == ("", 1, None)
    assert "ConnectError" in row.error


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.chmod(0o644), "can be read by others"),
        (lambda file: file.unlink(), "cannot be read"),
        (lambda file: file.write_text("ftp://example.org/s3cret"), "no address that begins with https"),
        (lambda file: file.write_text("http://example.org/s3cret"), "no address that begins with https"),
    ],
)
def test_a_secret_must_be_one(run: FakeRun, chat: ChatServer, spoil: Callable[[Path], Any], says: str) -> None:
    """Private, there, and an address where it has to be; the sentence names the setting and not the secret."""
    set_webhooks(run, chat, "discord")
    spoil(run.directory.path / "keys" / "discord.secret")
    with pytest.raises(ConfigError, match=says) as caught:
        open_herald(run.directory.path)
    assert "webhooks.discord.url_file" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "webhook",
    [
        {"kind": "irc", "url_file": "x"},
        {"kind": "discord", "url": "https://example.org/hook"},
        {"kind": "matrix", "server": "http://example.org", "room": "!a:b", "token_file": "x"},
        {"kind": "matrix", "server": "https://example.org", "room": "#alias:b", "token_file": "x"},
    ],
)
def test_a_webhook_that_cannot_be_is_refused(run: FakeRun, webhook: dict[str, str]) -> None:
    """When the settings are read, with the key."""
    settings = run.directory.path / "settings.yaml"
    settings.write_text(yaml.safe_dump({**yaml.safe_load(settings.read_text()), "webhooks": {"chat": webhook}}))
    with pytest.raises(ConfigError, match="webhooks"):
        _ = RunDirectory.open(run.directory.path).settings


@pytest.mark.parametrize(
    ("status", "header", "reply"),
    [
        (204, None, Reply(DeliveryOutcome.TOLD)),
        (429, "2.5", Reply(None, "it answers with the status 429", 2.5)),
        (429, None, Reply(None, "it answers with the status 429")),
        (500, "Wed, 21 Oct 2026 07:28:00 GMT", Reply(None, "it answers with the status 500")),
        (429, "-1", Reply(None, "it answers with the status 429")),
        (429, "nan", Reply(None, "it answers with the status 429")),
        (302, None, Reply(DeliveryOutcome.REFUSED, "it answers with the status 302")),
    ],
)
def test_what_an_answer_means(status: int, header: str | None, reply: Reply) -> None:
    """By its status; how long to wait by its header."""
    assert judge(status, header) == reply


def test_pauses_are_bounded() -> None:
    """However long a chat asks to be left alone, and however often it has failed."""
    assert [pause_s(1, None), pause_s(3, 1.0), pause_s(2, 1e9), pause_s(500, None)] == [5.0, 20.0, 3600.0, 3600.0]
    assert outcome_of(Reply(DeliveryOutcome.UNKNOWN), MAX_ATTEMPTS, repeatable=True) is DeliveryOutcome.GIVEN_UP


def test_the_process_tells_and_stops_when_told(
    tmp_path: Path, chat: ChatServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the supervisor runs it, of a step that was taken a minute ago; its log does not repeat the secret address."""
    with fake_run(tmp_path, lambda: time.time() - 60) as run:
        run.add_member("ada")
        run.add_step(1, 9.0)
        set_webhooks(run, chat, "discord")
        process = PartProcess(HERALD, run.directory.path)
        process.start()
        try:
            wait_until("the herald has asked the chat or has ended", lambda: chat.asked or process.has_ended())
            process.ask_to_stop()
            wait_until("the herald has ended", process.has_ended)
        finally:
            assert process.end() == 0
        assert len(chat.asked) == 1
    assert "s3cret" not in "".join(capfd.readouterr())
