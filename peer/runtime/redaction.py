"""Redaction of secrets, home folder, user and host in texts from a volunteer to the operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

# Patterns by kind of secret.
FORMS = {
    "key": re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL),
    "token": re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"),  # a JWT
    "invite code": re.compile(r"\b(?:[0-9A-Z]{5}-){3}[0-9A-Z]{5}\b"),
    "password": re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # user:password@ in a URL
    "secret": re.compile(r"\b(?:hf|ghp|gho|glpat|sk)[_-][\w-]{16,}"),  # tokens of model hubs and code hosting sites
    "e-mail": re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),  # the look-behind speeds up the search
}
SHORTEST_NAME = 3  # shorter user and host names are kept, because they may be ordinary words


def make_redactor(home: str, user: str, host: str) -> Callable[[str], str]:
    """Return a function that replaces secrets, home folder, user and host with placeholders."""
    names: Mapping[str, str] = {user: "<user>", host: "<host>"}
    patterns = [(form, f"<{kind}>") for kind, form in FORMS.items()]
    patterns += [(re.compile(re.escape(home.rstrip("/"))), "~")] if len(home) > 1 else []
    patterns += [
        (re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", re.IGNORECASE), word)
        for name, word in names.items()
        if len(name) >= SHORTEST_NAME
    ]

    def redact(text: str) -> str:
        for pattern, replacement in patterns:
            text = pattern.sub(replacement, text)
        return text

    return redact
