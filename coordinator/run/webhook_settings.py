"""`webhooks` in settings.yaml: the chats that are told of milestones. Each secret has its own file, of mode 0600."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from auth.openid.provider import SafeUrl

WebhookName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
SecretFile = Annotated[str, Field(min_length=1, max_length=255)]  # relative to the run's directory; mode 0600


class _Webhook(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DiscordWebhook(_Webhook):
    """A channel's webhook; who knows its address may write there, so the address is the secret."""

    kind: Literal["discord"]
    url_file: SecretFile


class SlackWebhook(_Webhook):
    """An incoming webhook; its address is the secret."""

    kind: Literal["slack"]
    url_file: SecretFile


class MatrixWebhook(_Webhook):
    """A room, by an account that has joined it and its access token."""

    kind: Literal["matrix"]
    server: SafeUrl
    room: Annotated[str, Field(max_length=255, pattern=r"^![^\s/?#]+$")]
    token_file: SecretFile


Webhook = Annotated[DiscordWebhook | SlackWebhook | MatrixWebhook, Field(discriminator="kind")]
Webhooks = Annotated[dict[WebhookName, Webhook], Field(max_length=16)]
