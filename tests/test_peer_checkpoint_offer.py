"""What a peer makes of a coordinator's offer of a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from auth.errors import RequestError
from peer.checkpoint_offer import STATE_FILES, read_offer
from peer.protocol import control_pb2

MOST_BYTES = 1000


def reply(**changes: Any) -> control_pb2.CheckpointReply:
    """A good offer, but for the changes."""
    files = [control_pb2.RunFile(name=name, size_bytes=400, sha256=b"d" * 32) for name in STATE_FILES]
    fields = {"address": "https://run.example/api/v1/checkpoints/7", "step": 7, "swarm_step": 7, "files": files}
    return control_pb2.CheckpointReply(**{**fields, **changes})


def test_the_state_of_now_is_worth_fetching() -> None:
    """Whole, with its digests; a run without checkpoints, or one that has gone on, offers nothing to start from."""
    offer = read_offer(reply(), MOST_BYTES)
    assert offer is not None
    assert (offer.step, offer.host, offer.size_bytes) == (7, "run.example", 800)
    assert read_offer(reply(swarm_step=8), MOST_BYTES) is None
    assert read_offer(control_pb2.CheckpointReply(), MOST_BYTES) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"address": "file:///etc/passwd"}, "no web address"),
        ({"address": "https:///nowhere"}, "no web address"),
        ({"address": "https://a/" + "x" * 3000}, "no web address"),
        ({"files": []}, "without the files"),
        ({"files": [control_pb2.RunFile(name=name, size_bytes=4, sha256=b"d") for name in STATE_FILES]}, "without"),
        (
            {"files": [control_pb2.RunFile(name=name, size_bytes=501, sha256=b"d" * 32) for name in STATE_FILES]},
            "at most 1000",
        ),
        (
            {"files": [control_pb2.RunFile(name=name, size_bytes=4, sha256=b"d" * 32) for name in ("../x", "y.pkl")]},
            "without the files",
        ),
    ],
)
def test_strange_offers_are_refused(changes: dict[str, Any], words: str) -> None:
    """In one sentence that says what is strange about it."""
    with pytest.raises(RequestError, match=words):
        read_offer(reply(**changes), MOST_BYTES)
