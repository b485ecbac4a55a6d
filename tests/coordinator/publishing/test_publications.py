"""The table of publications: what waits, when it is tried again, and who is shown what of it."""

from __future__ import annotations

import json

from starlette.testclient import TestClient

from coordinator.ledger.recorded_checkpoints import CheckpointRow, record_checkpoint
from coordinator.publishing.publications import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    PublicationRow,
    is_due,
    newest_at,
    pause_s,
    record_failure,
    record_published,
)
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database
from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from tests.support.operator_commands import call
from tests.support.served_page import FakeRun
from tests.support.sound_checkpoints import publish_to

PLACE = "s3://models/ours"
HIDDEN = ({"to": "file:///home/op"}, {"to": "hf://us/model", "private": True})


def checkpoint(database: Database, step: int, withheld: str = "") -> CheckpointRow:
    """A recorded checkpoint of this step."""
    row = CheckpointRow(step, 1, f"{step:064d}", 0.0, withheld)
    record_checkpoint(
        database,
        step=step,
        size_bytes=1,
        manifest_sha256=row.manifest_sha256,
        now=0.0,
        withheld=withheld,
    )
    return row


def test_pauses_grow_to_an_hour() -> None:
    """Twice as long each time; a clock that was set back holds nothing up."""
    assert [pause_s(attempts) for attempts in (1, 2, 3)] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pause_s(1000) == LONGEST_PAUSE_S
    failed = PublicationRow(PLACE, "0", 5, "", 2, "away", None, 100.0)
    assert [is_due(failed, now) for now in (100.0, 109.0, 110.0, 99.0)] == [False, False, True, True]
    assert is_due(None, 0.0)


def test_the_operator_sees_the_reason_and_the_public_the_place(run: FakeRun) -> None:
    """`coordinator status` tells what was last at each place; the API what can be fetched, and of no private place."""
    database = run.services.database
    record_published(database, PLACE, checkpoint(database, 5), f"{PLACE}/5", 2.0)
    record_failure(database, PLACE, checkpoint(database, 6), "away", 3.0)
    for hidden in HIDDEN:
        record_published(database, str(hidden["to"]), checkpoint(database, 5), "/home/op/5", 2.0)
    publish_to(run.directory.path, {"to": PLACE}, *HIDDEN)
    assert [row.step for row in newest_at(database, [PLACE])] == [6]
    status = json.loads(call("status", run.directory.path, "--json").stdout)
    said = {row["place"]: (row["step"], row["error"]) for row in status["publications"]}
    assert said == {PLACE: (6, "away"), **{each["to"]: (5, "") for each in HIDDEN}}
    assert "away" in call("status", run.directory.path).stdout
    with TestClient(create_app(WebState(RunDirectory(run.directory.path), run.services))) as client:
        listed = client.get("/api/v1/publications").json()["publications"]
    assert [(row["step"], row["location"]) for row in listed] == [(5, f"{PLACE}/5")]
    assert "away" not in json.dumps(listed)
