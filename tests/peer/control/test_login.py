"""What a coordinator sends of a login is shown safely, and a choice is asked for where there is one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from auth.errors import ConfigError, RequestError
from peer.control.login import (
    LoginProvider,
    choose_provider,
    login_providers,
    read_prompt,
    show_as_json,
    show_as_text,
    show_in_notebook,
)
from peer.protocol import control_pb2

HF, GITLAB = LoginProvider("hf", "Hugging Face"), LoginProvider("gitlab", "GitLab")


def sent(**changes: Any) -> control_pb2.LoginPrompt:
    """A coordinator's message."""
    right = {
        "title": "Hugging Face",
        "user_code": "ABCD-EFGH",
        "address": "https://hf.test/device",
        "complete_address": "https://hf.test/device?user_code=ABCD-EFGH&a='b'",
        "expires_in_s": 900.0,
    }
    return control_pb2.LoginPrompt(**(right | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "javascript:alert(1)"},
        {"complete_address": "https://hf.test/\x1b[2J"},
        {"complete_address": "https://hf.test/ two"},
        {"address": "https://hf.test/" + "x" * 2000},
        {"user_code": "AB\nCD"},
        {"user_code": ""},
        {"title": "T" * 65},
        {"title": "\x1b]0;owned\x07"},
    ],
)
def test_what_should_not_be_shown_is_refused(changes: dict[str, Any]) -> None:
    """Neither control characters, nor endless texts, nor addresses that are no web page's."""
    with pytest.raises(RequestError, match="unusable"):
        read_prompt(sent(**changes))


def test_terminal_shows_code_and_address(capsys: pytest.CaptureFixture[str]) -> None:
    """In plain lines, or as one JSON object."""
    prompt = read_prompt(sent())
    show_as_text(prompt)
    text = capsys.readouterr().out
    for word in ("Hugging Face", "ABCD-EFGH", "https://hf.test/device", "15 minutes"):
        assert word in text
    show_as_json(prompt)
    assert json.loads(capsys.readouterr().out)["user_code"] == "ABCD-EFGH"


def test_notebook_shows_a_link(capsys: pytest.CaptureFixture[str]) -> None:
    """The address is a link, and nothing that was sent becomes markup."""
    show_in_notebook(read_prompt(sent(title="<b>x</b>")))
    html = json.loads(capsys.readouterr().out)["panel"]["text/html"]
    assert 'href="https://hf.test/device?user_code=ABCD-EFGH&amp;a=&#x27;b&#x27;"' in html
    assert "<b>" not in html


def test_providers_of_a_greeting_are_bounded() -> None:
    """A coordinator may name some, and none with control characters."""
    many = [control_pb2.LoginProvider(name=f"p{number}", title="P") for number in range(100)]
    assert len(login_providers(control_pb2.ChallengeReply(login_providers=many))) == 16
    with pytest.raises(RequestError):
        login_providers(
            control_pb2.ChallengeReply(login_providers=[control_pb2.LoginProvider(name="a", title="\x1b[2J")])
        )


def test_only_provider_is_the_default() -> None:
    """Of several the person must choose, and only of those there are."""
    assert choose_provider((HF,), "") == "hf"
    assert choose_provider((HF, GITLAB), "gitlab") == "gitlab"
    for providers, wanted, word in (((HF, GITLAB), "", "hf, gitlab"), ((HF,), "x", "hf"), ((), "hf", "invite code")):
        with pytest.raises(ConfigError, match=word):
            choose_provider(providers, wanted)
