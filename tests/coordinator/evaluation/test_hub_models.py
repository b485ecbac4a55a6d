"""A checkpoint that is no folder is asked for at the hub, once and briefly."""

from __future__ import annotations

import pytest
from huggingface_hub import constants

from auth.errors import ConfigError, UnreachableError
from coordinator.evaluation.hub_models import require_model
from tests.support.local_hub import FIRST, TOKEN, Hub
from tests.support.ports import free_ports


@pytest.fixture
def dead_hub(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a hub that nobody serves."""
    [port] = free_ports("127.0.0.1", 1)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    return f"http://127.0.0.1:{port}"


def test_a_hub_that_does_not_answer_is_one_sentence(dead_hub: str) -> None:
    """The sentence says that there is no such folder, too: the name may be misspelt."""
    with pytest.raises(UnreachableError, match=rf"no folder some/model, and the hub .*{dead_hub} does not answer"):
        require_model("some/model")


@pytest.mark.usefixtures("dead_hub")
def test_offline_the_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache may have the model."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    require_model("some/model")


@pytest.mark.usefixtures("dead_hub")
@pytest.mark.parametrize("name", ["./model", "/tmp/model", "a/b/c"])
def test_a_path_is_no_name_of_a_model(name: str) -> None:
    """Nobody is asked for it."""
    with pytest.raises(ConfigError, match=f"There is no folder {name}, and the hub has no model of that name"):
        require_model(name)


def test_the_hub_says_which_models_it_has(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model passes; one that is not there, or that others keep private, does not."""
    hub.repositories["some/model"] = [(FIRST, {})]
    with pytest.raises(ConfigError, match="There is no folder some/model, and the hub has no model of that name"):
        require_model("some/model")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    require_model("some/model")
    hub.faults["info"].append(503)
    require_model("some/model")
