"""What a milestone is called in a chat, and how each kind of chat is asked to show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from coordinator.milestones import Kind, Milestone
from coordinator.webhook_settings import DiscordWebhook, MatrixWebhook, SlackWebhook, Webhook


@dataclass(frozen=True)
class ChatRequest:
    """An HTTP request; its address and headers are secret."""

    method: str
    url: str = field(repr=False)
    content: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    repeatable: bool = False  # however often it arrives, it is shown once


def words(milestone: Milestone, run: str, address: str) -> str:
    """One or two sentences of plain text; they name no member."""
    value, step = milestone.value, f"{milestone.step:,}"
    told = {
        Kind.FIRST_STEP: f"The run {run} has taken its first global step.",
        Kind.SAMPLES: f"The run {run} has trained on {value:,.0f} samples, with global step {step}.",
        Kind.DEVICES: f"A record of the run {run}: {value:,.0f} devices or more in one global step, number {step}.",
        Kind.LOSS: f"A record of the run {run}: loss on held-out text below {value:.1f}, at global step {step}.",
    }
    return f"{told[milestone.kind]} {address}"


def chat_request(webhook: Webhook, secret: str, text: str, identity: str) -> ChatRequest:
    """How to show the text; `identity` is the same for the same text at the same place."""
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
