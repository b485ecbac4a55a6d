"""The herald, a process that announces each milestone of the run once in every configured chat.

The herald is a single low-priority process, so that no other process waits for third-party servers.
It reads the run from the database, and is the only process that reads the webhooks' secrets.
`run_herald` is the entry point.

Messages to Discord and Slack are posted to the webhook's URL; messages to Matrix are sent with `PUT
/_matrix/client/v3/rooms/.../send`. Requests use HTTPS without redirects. The timeout is 10 s each
for the connection and the response; only the status and headers of the response are read.

apprise is not used. It reports only success or failure, so a message that may have been delivered
would be repeated or lost. apprise also sleeps during rate limits, numbers Matrix messages with its
own counter, and reads responses of any size.
"""

from __future__ import annotations

import hashlib
import html
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2

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
from peer.network.http import asking
from peer.runtime.processes import stop_at_sigterm

logger = logging.getLogger(__name__)
POLL_S = 5.0
MAX_ATTEMPTS = 8
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 3600.0
NEWS_S = 86_400.0  # milestones older than this are skipped; otherwise, a new webhook would receive all of them
TIMEOUT_S = 10.0  # timeout each for connecting and for receiving the response's headers


class DeliveryOutcome(str, Enum):
    """The final outcome of a delivery that will not be retried."""

    TOLD = "told"
    REFUSED = "refused"  # rejected by the chat: wrong URL or token
    UNKNOWN = "unknown"  # the message may have arrived
    GIVEN_UP = "given up"  # `MAX_ATTEMPTS` attempts failed
    LEFT_OUT = "left out"  # the milestone was reached more than `NEWS_S` ago


class Reply(NamedTuple):
    """The outcome of a request to a chat, the reason for a failure, and the requested delay."""

    outcome: DeliveryOutcome | None  # None if not delivered, but a retry may succeed
    reason: str = ""
    wait_s: float | None = None


def words(milestone: Milestone, run: str, address: str) -> str:
    """Return a milestone's announcement: one or two plain-text sentences without member names."""
    value, step, record = milestone.value, f"{milestone.step:,}", f"A record of the run {run}"
    told = {
        MilestoneKind.FIRST_STEP: f"The run {run} has taken its first global step.",
        MilestoneKind.SAMPLES: f"The run {run} has trained on {value:,.0f} samples, with global step {step}.",
        MilestoneKind.DEVICES: f"{record}: {value:,.0f} devices or more in one global step, number {step}.",
        MilestoneKind.LOSS: f"{record}: loss on held-out text below {value:.1f}, at global step {step}.",
    }
    return f"{told[milestone.kind]} {address}"


def chat_request(webhook: Webhook, secret: str, text: str, identity: str) -> tuple[str, str, dict[str, Any]]:
    """Return the request's method, URL and httpx2 options; URL and options contain secrets.

    `identity` must be the same for all requests with the same text to the same chat.
    """
    if isinstance(webhook, DiscordWebhook):  # with `wait`, Discord responds after posting
        return "POST", f"{secret}?wait=true", {"json": {"content": text, "allowed_mentions": {"parse": []}}}
    if isinstance(webhook, SlackWebhook):
        return "POST", secret, {"json": {"text": html.escape(text, quote=False)}}
    room = f"{webhook.server.rstrip('/')}/_matrix/client/v3/rooms/{quote(webhook.room, safe='')}"
    message = {"json": {"msgtype": "m.notice", "body": text}, "headers": {"Authorization": f"Bearer {secret}"}}
    return "PUT", f"{room}/send/m.room.message/{identity}", message


def send(method: str, url: str, options: dict[str, Any]) -> Reply:
    """Send the request once; the reply's reason omits the URL, which may be a secret."""
    try:
        with asking(method, url, timeout_s=TIMEOUT_S, **options) as answer:
            return judge(answer.status_code, answer.headers.get("retry-after"))
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol) as error:
        return Reply(None, f"it cannot be reached ({type(error).__name__})")
    except httpx2.InvalidURL:
        return Reply(DeliveryOutcome.REFUSED, "its address is invalid")
    except httpx2.HTTPError as error:  # the message may have been sent
        return Reply(DeliveryOutcome.UNKNOWN, f"no answer came ({type(error).__name__})")


def judge(status: int, retry_after: str | None) -> Reply:
    """Interpret an HTTP status: server errors and rate limits are temporary, other errors are final."""
    if 200 <= status < 300:
        return Reply(DeliveryOutcome.TOLD)
    reason = f"it answers with the status {status}"
    if status == 429 or status >= 500:
        return Reply(None, reason, _wait_s(retry_after))
    return Reply(DeliveryOutcome.REFUSED, reason)


def _wait_s(retry_after: str | None) -> float | None:
    """Return the seconds in a `Retry-After` header, or None if it is missing, a date or invalid.

    Old Matrix servers state the delay in the body, which is not read; the default delay applies.
    """
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


class Todo(Enum):
    """The next action for the delivery of a milestone to a webhook."""

    TELL = "tell"
    WAIT = "wait"
    NOTHING = "nothing"


def decide(notice: MilestoneNotice, reached_at: float, *, repeatable: bool, now: float) -> Todo | DeliveryOutcome:
    """Return the next action for a milestone reached at `reached_at`, or the final outcome."""
    if notice.ended:
        return Todo.NOTHING
    if notice.begun_at is not None and not repeatable:
        return DeliveryOutcome.UNKNOWN
    if not notice.attempts and reached_at < now - NEWS_S:
        return DeliveryOutcome.LEFT_OUT
    if now < notice.next_at <= now + LONGEST_PAUSE_S:  # if `next_at` is even later, the clock was set back
        return Todo.WAIT
    return Todo.TELL


def outcome_of(reply: Reply, attempts: int, *, repeatable: bool) -> DeliveryOutcome | None:
    """Return the final outcome after this number of attempts, or None to retry the delivery."""
    if reply.outcome is None or (reply.outcome is DeliveryOutcome.UNKNOWN and repeatable):
        return DeliveryOutcome.GIVEN_UP if attempts >= MAX_ATTEMPTS else None
    return reply.outcome


def pause_s(attempts: int, asked_s: float | None) -> float:
    """Return the delay of the next attempt: exponential, at least `asked_s`, at most an hour."""
    own = FIRST_PAUSE_S * 2.0 ** (attempts - 1)
    return min(LONGEST_PAUSE_S, max(own, asked_s or 0.0))


def find_notice(database: Database, milestone: str, webhook: str) -> MilestoneNotice:
    """Return the stored record of a milestone's delivery to a webhook, or a new record."""
    with database() as session:
        return session.get(MilestoneNotice, (milestone, webhook)) or MilestoneNotice(
            milestone=milestone, webhook=webhook, attempts=0, next_at=0.0, ended="", error=""
        )


@dataclass
class Herald:
    """A loop that announces milestones."""

    directory: RunDirectory
    database: Database
    clock: Callable[[], float] = time.time
    era: int = -1
    steps: list[StepRow] = field(default_factory=list)  # steps of this era whose reports have arrived

    def run(self, stop: threading.Event) -> None:
        """Announce each milestone soon after it is reached, until `stop` is set."""
        while not stop.is_set():
            self.tell_all()
            stop.wait(POLL_S)

    def tell_all(self) -> None:
        """Announce due milestones to each webhook in order; a failed delivery delays the rest."""
        reached = self.reached()
        for name, webhook in self.directory.settings.webhooks.items():
            for milestone in reached:
                if not self._settle(name, webhook, milestone):
                    break

    def reached(self) -> list[Milestone]:
        """Return the milestones reached by steps whose reports have arrived."""
        ledger = LedgerReader(self.database, self.clock)
        era = ledger.current_era()
        if era != self.era:
            self.era, self.steps = era, []
        known = self.steps[-1].step if self.steps else 0
        settled_at = self.clock() - SETTLED_S
        self.steps.extend(takewhile(lambda row: row.completed_at <= settled_at, ledger.steps(after=known)))
        return milestones(self.steps, validations(self.database))

    def _settle(self, name: str, webhook: Webhook, milestone: Milestone) -> bool:
        """Deliver a milestone if it is due; return False if it must be tried again later."""
        notice = find_notice(self.database, milestone.key, name)
        todo = decide(notice, milestone.at, repeatable=isinstance(webhook, MatrixWebhook), now=self.clock())
        if todo is Todo.TELL:
            return self._tell(name, webhook, milestone, notice)
        if isinstance(todo, DeliveryOutcome):
            notice.error = "the process ended during the delivery" if notice.begun_at is not None else ""
            notice.ended, notice.begun_at = todo.value, None
            self._save(notice)
        return todo is not Todo.WAIT

    def _tell(self, name: str, webhook: Webhook, milestone: Milestone, notice: MilestoneNotice) -> bool:
        """Try once to deliver a milestone; return False if it must be tried again later."""
        text = words(milestone, self.directory.config.run.name, f"{self.directory.settings.web_address}/")
        identity = hashlib.sha256(f"{self.directory.join_link}\n{milestone.key}".encode()).hexdigest()[:32]
        request = chat_request(webhook, webhook_secret(self.directory, name, webhook), text, identity)
        notice.attempts, notice.begun_at = notice.attempts + 1, self.clock()
        self._save(notice)
        reply = send(*request)
        outcome = outcome_of(reply, notice.attempts, repeatable=isinstance(webhook, MatrixWebhook))
        notice.begun_at, notice.error = None, reply.reason
        if outcome is None:
            wait_s = pause_s(notice.attempts, reply.wait_s)
            notice.next_at = self.clock() + wait_s
            logger.warning(
                "webhook `%s` did not receive %s, again in %g s: %s", name, notice.milestone, wait_s, reply.reason
            )
        else:
            notice.ended = outcome.value
            level = logging.INFO if outcome is DeliveryOutcome.TOLD else logging.ERROR
            logger.log(level, "webhook `%s`, %s: %s %s", name, notice.milestone, outcome.value, reply.reason)
        self._save(notice)
        return outcome is not None

    def _save(self, notice: MilestoneNotice) -> None:
        self.database.transact(lambda session: session.merge(notice))


def webhook_secret(directory: RunDirectory, name: str, webhook: Webhook) -> str:
    """Read a webhook's URL or token; raises `ConfigError` if missing, not private or unsafe."""
    if isinstance(webhook, MatrixWebhook):
        return read_secret(directory.path / webhook.token_file, f"webhooks.{name}.token_file")
    address = read_secret(directory.path / webhook.url_file, f"webhooks.{name}.url_file")
    try:
        require_safe_url(address)
    except ValueError as error:  # do not quote the error, which may contain the URL
        raise ConfigError(f"`webhooks.{name}.url_file` holds no address that begins with https://.") from error
    return address


def open_herald(run_dir: Path, clock: Callable[[], float] = time.time) -> Herald:
    """Open a run's herald; raises `ConfigError` if a secret is missing or not private."""
    directory = RunDirectory.open(run_dir)
    for name, webhook in directory.settings.webhooks.items():
        webhook_secret(directory, name, webhook)
    return Herald(directory, Database(open_engine(directory.database_url)), clock)


def run_herald(run_dir: Path) -> None:
    """Run the herald until SIGTERM; a request in progress is finished first, or times out."""
    open_herald(run_dir).run(stop_at_sigterm())
