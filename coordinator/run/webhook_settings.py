"""`webhooks` in settings.yaml: the chats that are told of milestones. Each secret has its own file, of mode 0600."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from auth.openid.provider import SafeUrl
from peer.config.base import Section, ShortName, written_as

SecretFile = Annotated[str, Field(min_length=1, max_length=255)]  # relative to the run's directory; mode 0600


class DiscordWebhook(Section):
    """A channel's webhook; who knows its address may write there, so the address is the secret."""

    kind: Literal["discord"]
    url_file: SecretFile


class SlackWebhook(Section):
    """An incoming webhook; its address is the secret."""

    kind: Literal["slack"]
    url_file: SecretFile


class MatrixWebhook(Section):
    """A room, by an account that has joined it and its access token."""

    kind: Literal["matrix"]
    server: SafeUrl
    room: Annotated[str, written_as(r"![^\s/?#]{1,254}", "a room's identity, such as !abc:example.org")]
    token_file: SecretFile


Webhook = Annotated[DiscordWebhook | SlackWebhook | MatrixWebhook, Field(discriminator="kind")]
Webhooks = Annotated[dict[ShortName, Webhook], Field(max_length=16)]
