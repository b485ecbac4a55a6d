"""The login prompt: parsed from the coordinator's message, and shown as text, JSON or HTML.

The message comes from the network, so texts must be short and printable, and links HTTP(S).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from html import escape

from auth.errors import ConfigError, RequestError
from peer.protocol import control_pb2

MAX_PROVIDERS = 16
MAX_TEXT_CHARS = 64
MAX_ADDRESS_CHARS = 2000


@dataclass(frozen=True)
class LoginProvider:
    """An identity provider for logging in."""

    name: str
    title: str


@dataclass(frozen=True)
class LoginPrompt:
    """The web addresses for a login, and the code to enter or compare there."""

    title: str
    user_code: str
    address: str
    complete_address: str
    expires_in_s: float

    @property
    def text(self) -> str:
        """The prompt as text for a terminal."""
        minutes = max(1, round(self.expires_in_s / 60))
        return (
            f"To take part, log in with {self.title}: open {self.complete_address}\n"
            f"and make sure that the code there is {self.user_code}. ({self.address} asks for it.)\n"
            f"Waiting for up to {minutes} minutes ..."
        )

    @property
    def html(self) -> str:
        """The prompt as HTML for a notebook."""
        return (
            f'<div>To take part, <a href="{escape(self.complete_address)}" target="_blank" rel="noopener noreferrer">'
            f"log in with {escape(self.title)}</a>, and make sure that the code there is "
            f"<strong>{escape(self.user_code)}</strong>. Waiting ...</div>"
        )


def login_providers(greeting: control_pb2.ChallengeReply) -> tuple[LoginProvider, ...]:
    """Return the identity providers listed by the coordinator."""
    named = list(greeting.login_providers)[:MAX_PROVIDERS]
    return tuple(LoginProvider(_text("provider", each.name), _text("title", each.title)) for each in named)


def choose_provider(providers: tuple[LoginProvider, ...], wanted: str) -> str:
    """Return the requested provider, or the only one. Raises `ConfigError` if neither exists."""
    names = [provider.name for provider in providers]
    if wanted in names:
        return wanted
    if not names:
        raise ConfigError("This run has no login with an identity provider: ask its operator for an invite code.")
    if wanted:
        raise ConfigError(f"`--login` ({wanted:.40}) must be one of {', '.join(names)}.")
    if len(names) > 1:
        raise ConfigError(f"This run has several logins: choose one with --login, of {', '.join(names)}.")
    return names[0]


def read_prompt(prompt: control_pb2.LoginPrompt) -> LoginPrompt:
    """Parse the coordinator's prompt. Raises `RequestError` if a text is unsafe to show."""
    return LoginPrompt(
        title=_text("title", prompt.title),
        user_code=_text("user_code", prompt.user_code),
        address=_address("address", prompt.address),
        complete_address=_address("complete_address", prompt.complete_address),
        expires_in_s=min(max(prompt.expires_in_s, 0.0), 86_400.0),
    )


def _text(name: str, text: str, limit: int = MAX_TEXT_CHARS) -> str:
    if not 1 <= len(text) <= limit or not text.isprintable():
        raise RequestError(f"The coordinator's login has an unusable `{name}` ({text!r:.80}).")
    return text


def _address(name: str, text: str) -> str:
    if not text.startswith(("https://", "http://")) or not text.isascii() or " " in text:
        raise RequestError(f"The coordinator's login has an unusable `{name}` ({text!r:.80}).")
    return _text(name, text, MAX_ADDRESS_CHARS)


def show_as_text(prompt: LoginPrompt) -> None:
    """Show the prompt as text."""
    sys.stdout.write(f"{prompt.text}\n")
    sys.stdout.flush()


def show_as_json(prompt: LoginPrompt) -> None:
    """Show the prompt as a JSON object on one line, like other JSON events."""
    sys.stdout.write(json.dumps({"event": "LoginPrompt"} | asdict(prompt)) + "\n")
    sys.stdout.flush()


def show_in_notebook(prompt: LoginPrompt) -> None:
    """Show the prompt in the panel's place, until `peer.agent.notebook` draws the first panel."""
    sys.stdout.write(json.dumps({"panel": {"text/html": prompt.html, "text/plain": prompt.text}}) + "\n")
    sys.stdout.flush()
