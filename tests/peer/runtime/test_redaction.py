"""What is taken out of texts before they leave the machine."""

from __future__ import annotations

import pytest

from peer.runtime.redaction import make_redactor

redact = make_redactor("/home/ada", "ada", "ada-laptop")
JWT = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"token {JWT} expired", "token <token> expired"),
        ("--invite NJA6J-G2MZA-NPN90-YTCDD used", "--invite <invite code> used"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nmore", "<key>\nmore"),
        ("-----BEGIN RSA PRIVATE KEY-----\ncut off", "<key>"),
        ("postgresql://ada:secret@db/run", "postgresql://<password>@db/run"),
        ("hf_abcdefghijklmnopqrstuvwx", "<secret>"),
        ("mail ada.l@example.org now", "mail <e-mail> now"),
        ("cannot read /home/ada/data/worker.log", "cannot read ~/data/worker.log"),
        ("Ada on ada-laptop", "<user> on <host>"),
        ("Canada, adapter, step 12: loss 8.3", "Canada, adapter, step 12: loss 8.3"),
    ],
)
def test_secrets_and_names_become_words(text: str, expected: str) -> None:
    """By their form or because they are this machine's; what only looks alike stays."""
    assert redact(text) == expected


def test_short_names_stay() -> None:
    """A user called `al` would take half of the log along; an empty home is no home."""
    assert make_redactor("/", "al", "")("al / all") == "al / all"
