"""`manyhands verify` recomputes the leaderboard from a dashboard's public receipts and names each error in it.

A claim counts as far as others received it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from auth.errors import ConfigError, ManyhandsError, RequestError, StorageError, UnreachableError, UnverifiedError
from coordinator.members.names import set_display_name
from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from peer.cli.verify import app
from peer.network.http import fetch
from peer.verification.published import Published, download, read_published
from peer.verification.receipts import Confirmation, credited, verify
from tests.support.receipts import pseudonym_of
from tests.support.served_page import FakeRun, fake_run

STEPS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRun]:
    """A run with two members, one under a pseudonym, and some steps that the keeper confirms."""
    with fake_run(tmp_path_factory.mktemp("run")) as made:
        for name in ("ada", "grace"):
            made.add_member(name)
        set_display_name(made.services.database, "grace", "Night Owl")
        for step in range(1, STEPS + 1):
            made.add_step(step, 9.0 - step)
        yield made


@pytest.fixture(scope="module")
def client(run: FakeRun) -> Iterator[TestClient]:
    with TestClient(create_app(WebState(run.directory, run.services))) as made:
        yield made


@pytest.fixture(scope="module")
def published(client: TestClient) -> Published:
    """What was downloaded from the dashboard."""

    def get(url: str) -> bytes:
        parts = urlsplit(url)
        return client.get(f"{parts.path}?{parts.query}{'&' if parts.query else ''}limit=2").content

    return download("http://dashboard", get, lambda _: time.sleep(0.1))


def saved(published: Published) -> dict[str, Any]:
    """As it lies in a file."""
    content: dict[str, Any] = json.loads(published.model_dump_json())
    return content


def test_the_leaderboard_follows_from_the_receipts(published: Published, run: FakeRun) -> None:
    """Page after page, every signature is right, and everybody stands there under the name that the public knows."""
    found = verify(published)
    assert found.problems == []
    assert (found.steps, found.receipts, len(published.pages)) == (STEPS, STEPS, 2)
    contributions = run.services.ledger.contributions()
    assert sorted(found.samples.values()) == sorted(row.samples for row in contributions)
    assert set(found.samples) == {"ada", "Night Owl"}
    assert "grace" not in published.model_dump_json()


Tamper = Callable[[dict[str, Any]], None]


def more_samples(content: dict[str, Any]) -> None:
    for overview in ("before", "after"):
        content[overview]["contributions"][0]["samples"] += 1


def no_row(content: dict[str, Any]) -> None:
    for overview in ("before", "after"):
        del content[overview]["contributions"][0]


def more_counted(content: dict[str, Any]) -> None:
    content["pages"][0]["steps"][0]["claims"][0]["counted"] += 1


def more_received(content: dict[str, Any]) -> None:
    receipt = content["pages"][0]["steps"][0]["receipts"][0]
    receipt["body"] = receipt["body"].replace('"step":1', '"step":2')


def no_receipt(content: dict[str, Any]) -> None:
    content["pages"][0]["steps"][0]["claims"][0]["counted"] = None


def another_signer(content: dict[str, Any]) -> None:
    page = content["pages"][0]
    stranger = pseudonym_of("stranger", "test-run")
    page["devices"][stranger] = {"member": "x", "keeper": True}
    page["steps"][0]["receipts"][0]["device"] = stranger


def an_unknown_signer(content: dict[str, Any]) -> None:
    page = content["pages"][0]
    del page["devices"][page["steps"][0]["receipts"][0]["device"]]


def another_steps_receipt(content: dict[str, Any]) -> None:
    steps = content["pages"][0]["steps"]
    steps[0]["receipts"] = steps[1]["receipts"]


def twice_the_same_step(content: dict[str, Any]) -> None:
    content["pages"].append(content["pages"][0])


def another_era(content: dict[str, Any]) -> None:
    content["pages"][1]["era"] += 1


def an_unknown_claimant(content: dict[str, Any]) -> None:
    content["pages"][0]["steps"][0]["claims"][0]["device"] = "nobody"


def two_by_one_member(content: dict[str, Any]) -> None:
    receipts = content["pages"][0]["steps"][0]["receipts"]
    receipts.append(receipts[0])


@pytest.mark.parametrize(
    "tamper",
    [
        more_samples,
        no_row,
        more_counted,
        more_received,
        no_receipt,
        another_signer,
        an_unknown_signer,
        another_steps_receipt,
        twice_the_same_step,
        another_era,
        an_unknown_claimant,
        two_by_one_member,
    ],
)
def test_whatever_is_changed_is_found(published: Published, tamper: Tamper) -> None:
    """A coordinator cannot publish a leaderboard that does not follow from what was signed."""
    content = saved(published)
    tamper(content)
    assert verify(Published.model_validate_json(json.dumps(content))).problems


@pytest.mark.parametrize("overview", ["before", "after"])
def test_a_row_that_was_there_only_before_or_after_the_pages_were_read_is_no_error(
    published: Published, overview: str
) -> None:
    """The run went on meanwhile: a member's first samples may have been added since, or undone."""
    content = saved(published)
    content[overview]["contributions"].append({"member": "newcomer", "samples": 5})
    assert verify(Published.model_validate_json(json.dumps(content))).problems == []


def test_what_no_receipt_is_about_is_told(published: Published) -> None:
    """Steps from before there were receipts count as the coordinator says, apart from the others."""
    content = saved(published)
    content["pages"][0]["steps"][0]["receipts"] = []
    found = verify(Published.model_validate_json(json.dumps(content)))
    assert (found.problems, found.receipts) == ([], STEPS - 1)
    assert found.unsigned.total() == sum(claim.claimed for claim in published.pages[0].steps[0].claims)


def test_steps_without_public_receipts_are_told(published: Published, tmp_path: Path) -> None:
    """Those whose receipts named libp2p identities count as the coordinator says, and one sentence says why."""
    content = saved(published)
    content["pages"][0]["steps"][0] |= {"receipts": [], "withheld": True}
    path = tmp_path / "receipts.json"
    path.write_text(json.dumps(content))
    told = run_verify(str(path))
    assert told.exit_code == 0
    assert "1 steps from before receipts had pseudonyms carry no public receipts" in " ".join(told.output.split())
    assert json.loads(run_verify(str(path), "--json").output)["withheld_steps"] == 1


def test_pages_are_cached_by_their_content(client: TestClient) -> None:
    """Who has a page is told that it is still the same; what is asked for is bounded."""
    first = client.get("/api/v1/receipts", params={"limit": 1})
    assert (len(first.json()["steps"]), first.json()["next"]) == (1, 1)
    again = client.get("/api/v1/receipts", params={"limit": 1}, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/api/v1/receipts", params={"limit": 10**6}).status_code == 422
    assert client.get("/api/v1/receipts", params={"after": STEPS}).json()["steps"] == []


def run_verify(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_a_saved_file_is_verified_offline(published: Published, tmp_path: Path) -> None:
    """For people and for scripts; a false one ends with its own exit code and says what is wrong."""
    path = tmp_path / "receipts.json"
    path.write_text(published.model_dump_json())
    told = run_verify(str(path))
    assert told.exit_code == 0
    assert f"follows from {STEPS} receipts of {STEPS} steps" in told.output
    result = json.loads(run_verify(str(path), "--json").output)
    assert result["verified"] is True
    assert {row["member"]: row["recomputed"] == row["published"] for row in result["members"]} == {
        "ada": True,
        "Night Owl": True,
    }
    content = saved(published)
    more_samples(content)
    path.write_text(json.dumps(content))
    error = run_verify(str(path)).exception
    assert isinstance(error, UnverifiedError)
    assert error.exit_code == 28
    assert "the receipts confirm" in str(error)


def test_what_was_downloaded_can_be_kept(published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--save` writes what a later run verifies without any network."""
    monkeypatch.setattr("peer.cli.verify.read_published", lambda *_: published)
    path = tmp_path / "kept.json"
    assert run_verify("http://dashboard", "--save", str(path)).exit_code == 0
    assert read_published(str(path), time.sleep) == published
    assert isinstance(run_verify("http://dashboard", "--save", str(tmp_path)).exception, StorageError)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("ftp://dashboard", ConfigError),
        ("manyhands://host:7443/run", ConfigError),
        ("/nowhere/receipts.json", StorageError),
        ("http://127.0.0.1:1", UnreachableError),
        ("http://", UnreachableError),
    ],
)
def test_a_wrong_source_is_one_sentence(source: str, error: type[ManyhandsError]) -> None:
    """Which says what was wrong with it."""
    with pytest.raises(error):
        read_published(source, time.sleep, fetch)


def test_a_file_of_something_else_is_refused(published: Published, tmp_path: Path) -> None:
    """By what is missing in it; what an older version saved is no error of anybody's."""
    path, older = tmp_path / "other.json", published.model_dump_json().replace("receipts-v2", "receipts-v1")
    for content, said in (('{"before": 1}', "before"), (older, "saved by an older manyhands")):
        path.write_text(content)
        with pytest.raises(RequestError, match=said):
            read_published(str(path), time.sleep)


KEEPER = "keeper"


def words(*said: tuple[str, int]) -> list[Confirmation]:
    return [Confirmation(member, member == KEEPER, samples) for member, samples in said]


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        ([], None),
        ([("ada", 30)], None),
        ([(KEEPER, 30)], 30),
        ([(KEEPER, 50)], 30),
        ([(KEEPER, 10)], 10),
        ([(KEEPER, 0)], 0),
        ([(KEEPER, 30), ("bob", 0), ("eve", 0)], 30),
        ([(KEEPER, 10), ("bob", 30), ("eve", 30)], 10),
        ([("bob", 30)], 30),
        ([("bob", 30), ("ada", 0)], 30),
        ([("bob", 30), ("eve", 20)], 20),
        ([("bob", 30), ("eve", 0), ("dan", 30)], 30),
        ([("bob", 5), ("eve", 1000), ("dan", 5)], 5),
    ],
)
def test_what_others_say_counts(said: list[tuple[str, int]], counted: int | None) -> None:
    """Ada claims 30: the keeper's word suffices, else the median of other members', never her own devices'."""
    assert credited(30, "ada", words(*said)) == counted


def test_no_samples_need_no_word() -> None:
    """An auxiliary peer claims none and waits for nobody."""
    assert credited(0, "ada", []) == 0
