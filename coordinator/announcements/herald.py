"""The herald: tells chats of the run's milestones, each once.

A process of its own beside the keeper, of low priority, so that nobody waits for other people's servers, and that there
is one. It knows the run by the database alone; it alone reads the webhooks' secrets. `run_herald` is its main function.

Discord and Slack are posted to a webhook's address, Matrix by `PUT /_matrix/client/v3/rooms/.../send`. A request goes
over HTTPS, without redirects, and waits 10 s for the connection and for each read. Its result is one of four
(`Result`), by which it is decided whether to try again.

apprise is not used. It tells only success or failure, so that a message that may have been shown would be repeated or
lost; it waits out a chat's limit itself, names Matrix messages by a counter of its own, and reads answers of any size.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
from sqlalchemy.orm import Session

from auth.errors import ConfigError
from auth.openid.provider import require_safe_url
from coordinator.checkpoints.validations import validations
from coordinator.ledger.reading import SETTLED_S, LedgerReader, StepRow
from coordinator.run.directory import RunDirectory
from coordinator.run.secrets import read_secret
from coordinator.run.webhook_settings import DiscordWebhook, MatrixWebhook, SlackWebhook, Webhook
from coordinator.statistics.milestones import Milestone, MilestoneKind, milestones
from coordinator.store.engine import Database, open_engine
from coordinator.store.service_models import MilestoneNotice
from peer.network.http import asking, beginning
from peer.runtime.processes import stop_at_sigterm

logger = logging.getLogger(__name__)
POLL_S = 5.0
MAX_ATTEMPTS = 8
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 3600.0
NEWS_S = 86_400.0  # what was reached longer ago is no news: a webhook that is new is not told the whole history
TIMEOUT_S = 10.0  # to connect, or for a step of the answer
MAX_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True)
class ChatRequest:
    """An HTTP request; its address and headers are secret."""

    method: str
    url: str = field(repr=False)
    content: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    repeatable: bool = False  # however often it arrives, it is shown once


def words(milestone: Milestone, run: str, address: str) -> str:
    """Announce a milestone in one or two sentences of plain text, which name no member."""
    value, step, record = milestone.value, f"{milestone.step:,}", f"A record of the run {run}"
    told = {
        MilestoneKind.FIRST_STEP: f"The run {run} has taken its first global step.",
        MilestoneKind.SAMPLES: f"The run {run} has trained on {value:,.0f} samples, with global step {step}.",
        MilestoneKind.DEVICES: f"{record}: {value:,.0f} devices or more in one global step, number {step}.",
        MilestoneKind.LOSS: f"{record}: loss on held-out text below {value:.1f}, at global step {step}.",
    }
    return f"{told[milestone.kind]} {address}"


def chat_request(webhook: Webhook, secret: str, text: str, identity: str) -> ChatRequest:
    """The request that shows the text; `identity` is the same for the same text at the same place."""
    if isinstance(webhook, DiscordWebhook):  # with `wait` it answers when the message is there
        content = {"content": text, "allowed_mentions": {"parse": []}}
        return ChatRequest("POST", f"{secret}?wait=true", content)
    if isinstance(webhook, SlackWebhook):
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return ChatRequest("POST", secret, {"text": escaped})
    assert isinstance(webhook, MatrixWebhook)
    room = f"{webhook.server.rstrip('/')}/_matrix/client/v3/rooms/{quote(webhook.room, safe='')}"
    return ChatRequest(
        "PUT",
        f"{room}/send/m.room.message/{identity}",
        {"msgtype": "m.notice", "body": text},
        {"Authorization": f"Bearer {secret}"},
        repeatable=True,
    )


class Result(Enum):
    """The outcome of a request to a chat."""

    SHOWN = "shown"
    LATER = "later"  # it was not shown; another attempt may succeed
    REFUSED = "refused"  # nor will another
    UNKNOWN = "unknown"  # it may have been shown


@dataclass(frozen=True)
class Reply:
    """The result, why, and for how long the chat asks to be left alone."""

    result: Result
    reason: str = ""
    wait_s: float | None = None


def send(request: ChatRequest) -> Reply:
    """Ask once; no reason repeats an address, which may be a secret."""
    try:
        with asking(
            request.method, request.url, timeout_s=TIMEOUT_S, json=dict(request.content), headers=dict(request.headers)
        ) as answer:
            content = beginning(answer, MAX_ANSWER_BYTES)
            return judge(answer.status_code, answer.headers.get("retry-after"), content)
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol) as error:
        return Reply(Result.LATER, f"it cannot be reached ({type(error).__name__})")
    except httpx2.InvalidURL:
        return Reply(Result.REFUSED, "its address is none")
    except httpx2.HTTPError as error:  # the text was under way
        return Reply(Result.UNKNOWN, f"no answer came ({type(error).__name__})")


def judge(status: int, retry_after: str | None, content: bytes) -> Reply:
    """The reply that an HTTP answer means: errors of the server or its load pass, errors in our request do not."""
    if 200 <= status < 300:
        return Reply(Result.SHOWN)
    reason = f"it answers with the status {status}"
    if status == 429 or status >= 500:
        return Reply(Result.LATER, reason, _wait_s(retry_after, content))
    return Reply(Result.REFUSED, reason)


def _wait_s(retry_after: str | None, content: bytes) -> float | None:
    """Seconds, by the header or by what Discord (`retry_after`) and Matrix (`retry_after_ms`) write beside it."""
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        said = {}
    said = said if isinstance(said, dict) else {}
    milliseconds = said.get("retry_after_ms")
    candidates = (retry_after, said.get("retry_after"), milliseconds / 1000 if isinstance(milliseconds, int) else None)
    for value in candidates:
        try:
            seconds = float(value)  # type: ignore[arg-type]  # whatever they wrote
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    return None


class DeliveryOutcome(str, Enum):
    """The final outcome of a delivery; a delivery that has one is not tried again."""

    TOLD = "told"
    REFUSED = "refused"  # by the chat: its address or token is wrong
    UNKNOWN = "unknown"  # it may have arrived
    GIVEN_UP = "given up"  # after so many attempts
    LEFT_OUT = "left out"  # no news any more


class Todo(Enum):
    """The next action for a milestone at a webhook."""

    TELL = "tell"
    WAIT = "wait"
    NOTHING = "nothing"
    LEAVE_OUT = "leave out"
    CALL_UNKNOWN = "call unknown"


@dataclass(frozen=True)
class NoticeRow:
    """The progress of one milestone's delivery to one webhook; times in Unix seconds."""

    attempts: int
    begun_at: float | None  # an attempt whose outcome is not known
    next_at: float  # not before
    ended: str
    error: str


def decide(row: NoticeRow | None, reached_at: float, *, repeatable: bool, now: float) -> Todo:
    """Choose the next action for a milestone that was reached at `reached_at`. Pure."""
    if row is not None and row.ended:
        return Todo.NOTHING
    if row is not None and row.begun_at is not None and not repeatable:
        return Todo.CALL_UNKNOWN
    if row is None and reached_at < now - NEWS_S:
        return Todo.LEAVE_OUT
    if row is not None and now < row.next_at <= now + LONGEST_PAUSE_S:  # else a clock was set back
        return Todo.WAIT
    return Todo.TELL


def pause_s(attempts: int, asked_s: float | None) -> float:
    """Return the pause after so many failed attempts: at least as long as the chat asks for, an hour at most."""
    own = FIRST_PAUSE_S * 2.0 ** (attempts - 1)
    return min(LONGEST_PAUSE_S, max(own, asked_s or 0.0))


def find_notice(database: Database, milestone: str, webhook: str) -> NoticeRow | None:
    """Find the progress of a milestone's delivery to a webhook; None if it has never been tried."""
    with database() as session:
        row = session.get(MilestoneNotice, (milestone, webhook))
        return None if row is None else NoticeRow(row.attempts, row.begun_at, row.next_at, row.ended, row.error)


def begin_attempt(database: Database, milestone: str, webhook: str, now: float) -> int:
    """Record that an attempt begins, and return the number of attempts with this one."""

    def enter(session: Session) -> int:
        row = _get_or_add(session, milestone, webhook)
        row.attempts, row.begun_at = row.attempts + 1, now
        return row.attempts

    return database.transact(enter)


def end_attempt(database: Database, milestone: str, webhook: str, outcome: DeliveryOutcome, error: str = "") -> None:
    """Record the final outcome of a delivery."""

    def enter(session: Session) -> None:
        row = _get_or_add(session, milestone, webhook)
        row.begun_at, row.ended, row.error = None, outcome.value, error

    database.transact(enter)


def put_off(database: Database, milestone: str, webhook: str, error: str, next_at: float) -> None:
    """Record a failed attempt, after which the delivery is tried again at `next_at`."""

    def enter(session: Session) -> None:
        row = _get_or_add(session, milestone, webhook)
        row.begun_at, row.error, row.next_at = None, error, next_at

    database.transact(enter)


def _get_or_add(session: Session, milestone: str, webhook: str) -> MilestoneNotice:
    row = session.get(MilestoneNotice, (milestone, webhook))
    if row is None:
        row = MilestoneNotice(milestone=milestone, webhook=webhook, attempts=0, next_at=0.0, ended="", error="")
        session.add(row)
    return row


@dataclass
class Herald:
    """The herald's parts; `run` is its loop."""

    directory: RunDirectory
    database: Database
    clock: Callable[[], float] = time.time
    era: int = -1
    steps: list[StepRow] = field(default_factory=list)  # of that era, settled

    def run(self, stop: threading.Event) -> None:
        """Tell milestones as they are reached, until told to stop."""
        while not stop.is_set():
            self.tell_all()
            stop.wait(POLL_S)

    def tell_all(self) -> None:
        """Tell each webhook what is due there, in order: what waits holds up what comes after it."""
        reached = self.reached()
        for name, webhook in self.directory.settings.webhooks.items():
            for milestone in reached:
                if not self._settle(name, webhook, milestone):
                    break

    def reached(self) -> list[Milestone]:
        """The run's milestones so far, of steps whose reports are in."""
        ledger = LedgerReader(self.database, self.clock)
        era = ledger.current_era()
        if era != self.era:
            self.era, self.steps = era, []
        known = self.steps[-1].step if self.steps else 0
        settled_at = self.clock() - SETTLED_S
        self.steps.extend(takewhile(lambda row: row.completed_at <= settled_at, ledger.steps(after=known)))
        return milestones(self.steps, validations(self.database))

    def _settle(self, name: str, webhook: Webhook, milestone: Milestone) -> bool:
        """Do what is to be done about one milestone; whether nothing is left to do."""
        row = find_notice(self.database, milestone.key, name)
        repeatable = isinstance(webhook, MatrixWebhook)
        todo = decide(row, milestone.at, repeatable=repeatable, now=self.clock())
        if todo is Todo.LEAVE_OUT:
            end_attempt(self.database, milestone.key, name, DeliveryOutcome.LEFT_OUT)
        elif todo is Todo.CALL_UNKNOWN:
            end_attempt(
                self.database, milestone.key, name, DeliveryOutcome.UNKNOWN, "the process ended while it was told"
            )
        elif todo is Todo.TELL:
            return self._tell(name, webhook, milestone)
        return todo is not Todo.WAIT

    def _tell(self, name: str, webhook: Webhook, milestone: Milestone) -> bool:
        """Try once; whether nothing is left to do."""
        run = self.directory.config.run.name
        text = words(milestone, run, f"{self.directory.settings.web_address}/")
        identity = hashlib.sha256(f"{self.directory.join_link}\n{milestone.key}".encode()).hexdigest()[:32]
        secret = webhook_secret(self.directory, name, webhook)
        request = chat_request(webhook, secret, text, identity)
        attempts = begin_attempt(self.database, milestone.key, name, self.clock())
        reply = send(request)
        outcome = outcome_of(reply, attempts, repeatable=request.repeatable)
        if outcome is None:
            wait_s = pause_s(attempts, reply.wait_s)
            put_off(self.database, milestone.key, name, reply.reason, self.clock() + wait_s)
            logger.warning(
                "webhook `%s` is not told of %s, again in %g s: %s", name, milestone.key, wait_s, reply.reason
            )
            return False
        end_attempt(self.database, milestone.key, name, outcome, reply.reason)
        level = logging.INFO if outcome is DeliveryOutcome.TOLD else logging.ERROR
        logger.log(level, "webhook `%s`, %s: %s %s", name, milestone.key, outcome.value, reply.reason)
        return True


def outcome_of(reply: Reply, attempts: int, *, repeatable: bool) -> DeliveryOutcome | None:
    """Return the final outcome that a reply means; None if the delivery is tried again."""
    if reply.result is Result.SHOWN:
        return DeliveryOutcome.TOLD
    if reply.result is Result.REFUSED:
        return DeliveryOutcome.REFUSED
    if reply.result is Result.UNKNOWN and not repeatable:
        return DeliveryOutcome.UNKNOWN
    return DeliveryOutcome.GIVEN_UP if attempts >= MAX_ATTEMPTS else None


def webhook_secret(directory: RunDirectory, name: str, webhook: Webhook) -> str:
    """The webhook's address or token; raises `ConfigError` for one that is missing, not private or no safe address."""
    if isinstance(webhook, MatrixWebhook):
        return read_secret(directory.path / webhook.token_file, f"webhooks.{name}.token_file")
    address = read_secret(directory.path / webhook.url_file, f"webhooks.{name}.url_file")
    try:
        require_safe_url(address)
    except ValueError as error:  # its message may repeat the address
        raise ConfigError(f"`webhooks.{name}.url_file` holds no address that begins with https://.") from error
    return address


def open_herald(run_dir: Path, clock: Callable[[], float] = time.time) -> Herald:
    """The herald of a run; raises `ConfigError` for a secret that is missing or not private."""
    directory = RunDirectory.open(run_dir)
    for name, webhook in directory.settings.webhooks.items():
        webhook_secret(directory, name, webhook)
    return Herald(directory, Database(open_engine(directory.database_url)), clock)


def run_herald(run_dir: Path) -> None:
    """Main function of the herald's process; ends on SIGTERM, at the latest when an attempt has timed out."""
    open_herald(run_dir).run(stop_at_sigterm())
