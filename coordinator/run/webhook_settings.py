"""`webhooks` in settings.yaml: chats to notify of milestones, with secrets in private files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from auth.openid.provider import SafeUrl
from peer.config.base import Section, ShortName, WrittenAs

SecretFile = Annotated[str, Field(min_length=1, max_length=255)]  # path relative to the run's directory


class DiscordWebhook(Section):
    """A Discord channel's webhook; its URL is secret, because anyone who has it can post."""

    kind: Literal["discord"]
    """A channel's webhook."""
    url_file: SecretFile
    """File (mode 0600) with the webhook's secret address, relative to the run's directory."""


class SlackWebhook(Section):
    """An incoming Slack webhook; its URL is secret."""

    kind: Literal["slack"]
    """An incoming webhook."""
    url_file: SecretFile
    """File (mode 0600) with the webhook's secret address, relative to the run's directory."""


class MatrixWebhook(Section):
    """A Matrix room, with the access token of an account that has joined the room."""

    kind: Literal["matrix"]
    """A room that the account has joined."""
    server: SafeUrl
    """Address of the account's server."""
    room: Annotated[str, WrittenAs(r"![^\s/?#]{1,254}", "a room's identity, such as !abc:example.org")]
    """Identity of the room."""
    token_file: SecretFile
    """File (mode 0600) with the account's access token, relative to the run's directory."""


Webhook = Annotated[DiscordWebhook | SlackWebhook | MatrixWebhook, Field(discriminator="kind")]
Webhooks = Annotated[dict[ShortName, Webhook], Field(max_length=16)]
