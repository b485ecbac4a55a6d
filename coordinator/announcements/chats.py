"""Messages to chats about milestones: the words, the request for each kind of chat, and sending it once.

Discord and Slack are posted to a webhook's address, Matrix by `PUT /_matrix/client/v3/rooms/.../send`. A request goes
over HTTPS, without redirects, and waits 10 s for the connection and for each read. Its result is one of four
(`Result`), by which `coordinator.announcements.herald` decides whether to try again.

apprise is not used. It tells only success or failure, so that a message that may have been shown would be repeated or
lost; it waits out a chat's limit itself, names Matrix messages by a counter of its own, and reads answers of any size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import quote

import httpx2

from coordinator.run.webhook_settings import DiscordWebhook, MatrixWebhook, SlackWebhook, Webhook
from coordinator.statistics.milestones import Milestone, MilestoneKind
from peer.network.http import asking, beginning

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
