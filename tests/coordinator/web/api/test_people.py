"""The public API about people: what anybody may ask of members, and what nobody learns."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import segno
from fastapi.testclient import TestClient

from auth.certificates import open_certificate, read_certificate
from coordinator.ledger.ledger import count_losses
from coordinator.members.join_page import Invitation, QrCode, invite_facts, notebooks_of
from coordinator.members.names import hide_name
from coordinator.run.settings import Settings
from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from tests.support.clocks import Clock
from tests.support.receipts import key_of
from tests.support.served_page import FakeRun

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def run(run: FakeRun) -> FakeRun:
    """Three members, of whom two gave the same; one lost something."""
    for name in ("ada", HOSTILE):
        run.add_member(name)
    for step in (1, 2):
        run.add_step(step, 8.0 - step)
    run.add_member("cleo")
    with run.services.database.begin() as session:
        count_losses(session, run.devices["ada"], 2, {"late": 7}, run.services.clock())
    return run


def get(client: TestClient, path: str, **parameters: Any) -> dict[str, Any]:
    """A JSON answer of the public API."""
    answer = client.get(f"/api/v1/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def numbers_of(client: TestClient) -> dict[str, int]:
    """Members' numbers by their public names."""
    return {each["member"]: each["number"] for each in get(client, "participants")["participants"]}


def test_everybody_is_listed_with_rank_and_devices(client: TestClient) -> None:
    """Equals share a rank, who gave nothing has none, and whoever is here has a device with a speed."""
    rows = get(client, "participants")["participants"]
    assert [(each["member"], each["rank"], each["samples"]) for each in rows] == [
        ("ada", 1, 102),
        (HOSTILE, 1, 102),
        ("cleo", None, 0),
    ]
    assert rows[0]["active"] == [{"number": 0, "kind": "cpu", "state": "training", "samples_per_second": 2.5}]
    assert (rows[0]["training_s"], rows[0]["active_days"], rows[0]["devices"]) == (40.0, 1, 1)
    assert [(each["device_numbers"], each["hardware"]) for each in rows] == [([0], "cpu"), ([1], "cpu"), ([3], "cpu")]


def test_it_is_said_how_many_of_all_are_online(client: TestClient) -> None:
    """On each page of the list, and in the page without scripts."""
    for limit in (1, 500):
        answer = get(client, "participants", limit=limit)
        assert (answer["online"], answer["total"]) == (3, 3)
    assert "3 of 3 members online" in client.get("/participants").text


def test_lists_come_in_pages(client: TestClient) -> None:
    """Each page says where the next one begins, and together they are the whole, in order."""
    found, cursor = list[str](), ""
    for _ in range(3):
        page = get(client, "participants", limit=1, cursor=cursor)
        found += [each["member"] for each in page["participants"]]
        cursor = page["next"]
    assert found == ["ada", HOSTILE, "cleo"]
    assert cursor is None
    assert client.get("/api/v1/participants?cursor=nonsense").status_code == 400


def test_windows_and_kinds_are_those_of_the_question(client: TestClient) -> None:
    """Nobody gave anything on a TPU; a window that there is not is refused."""
    assert {each["rank"] for each in get(client, "participants", kind="tpu")["participants"]} == {None}
    assert get(client, "participants", window="day", kind="cpu")["participants"][0]["samples"] == 102
    assert client.get("/api/v1/participants?window=century").status_code == 422


def test_a_members_page_accounts_for_every_sample(client: TestClient) -> None:
    """What counts, what was lost and why, days, devices, stays and steps."""
    page = get(client, f"participants/{numbers_of(client)['ada']}")
    assert (page["member"], page["rank"], page["members"]) == ("ada", 1, 2)
    assert (page["samples"], page["pending_samples"], page["lost_samples"]) == (102, 0, 7)
    assert [(each["cause"], each["samples"], each["times"], each["last_step"]) for each in page["losses"]] == [
        ("late", 7, 1, 2)
    ]
    [day] = page["days"]
    assert (day["samples"], day["lost"]) == (102, {"late": 7})
    assert page["steps"] == {"count": 2, "first": 1, "last": 2, "ranges": [[1, 2]]}
    assert page["streaks"] == {"current": 1, "longest": 1, "active_days": 1}
    assert [each["number"] for each in page["devices"]] == [0]
    assert [each["online"] for each in page["stays"]] == [True]


@pytest.mark.parametrize("number", ["0", "99", "-1", "ada", "1e9", str(2**31)])
def test_there_is_no_page_of_nobody(client: TestClient, number: str) -> None:
    """The keeper's member has none, nor has a number that nobody has."""
    assert client.get(f"/api/v1/participants/{number}").status_code in {404, 422}


def test_nothing_tells_what_is_private(run: FakeRun) -> None:
    """Neither device ids, nor libp2p identities, nor a hidden name, in any answer about people but the certificate."""
    hide_name(run.services.database, "ada", hidden=True, now=1.0)
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        texts = [
            client.get(path).text
            for path in ("/api/v1/participants", "/api/v1/participants/1", "/api/v1/stays", "/participants", "/join")
        ]
    private = re.compile(rf"\bada\b|Qm|{run.devices['ada']}")  # `ada` may be a part of a digest
    assert not any(private.search(text) for text in texts)
    assert "Anonymous 1" in texts[0]


def test_stays_name_their_members(client: TestClient) -> None:
    """As columns; a span without anybody has none."""
    found = get(client, "stays")
    assert set(found["members"].values()) == {"ada", HOSTILE, "cleo"}
    assert found["online"] == [True] * 3
    assert found["complete"]
    assert found["began_at"] == sorted(found["began_at"])
    assert get(client, "stays", since=0, until=1)["member"] == []
    assert client.get("/api/v1/stays?since=inf").status_code == 422


def test_a_certificate_can_be_checked_by_the_published_key(client: TestClient, run: FakeRun) -> None:
    """It is a file to keep; who has given nothing gets none."""
    numbers = numbers_of(client)
    answer = client.get(f"/api/v1/participants/{numbers[HOSTILE]}/certificate")
    assert answer.headers["content-disposition"] == f'attachment; filename="certificate-{numbers[HOSTILE]}.json"'
    signed = read_certificate(answer.text)
    certificate = open_certificate(signed)
    assert (certificate.run, certificate.member, certificate.samples, certificate.steps) == (
        "test-run",
        HOSTILE,
        102,
        2,
    )
    assert get(client, "authority") == {"run": "test-run", "key": signed.authority_key}
    assert run.services.authority_public.hex() == signed.authority_key
    refused = client.get(f"/api/v1/participants/{numbers['cleo']}/certificate")
    assert (refused.status_code, "no contribution to certify yet" in refused.json()["detail"]) == (404, True)


def test_an_unchanged_answer_is_not_sent_again(client: TestClient) -> None:
    """An ETag tells; other sites' pages may read it."""
    first = client.get("/api/v1/authority", headers={"Origin": "https://elsewhere.example"})
    assert first.headers["access-control-allow-origin"] == "*"
    assert client.get("/api/v1/authority", headers={"If-None-Match": first.headers["etag"]}).status_code == 304


def test_joining_says_what_it_takes(client: TestClient, run: FakeRun) -> None:
    """The command, and what is known of the run; no buttons where the notebook is published nowhere."""
    said = get(client, "joining")
    assert said["command"] == f"manyhands join '{run.directory.join_link}'"
    assert (said["notebooks"], said["logins"], said["needs"]["state_bytes"]) == (None, [], None)
    assert said["needs"]["memory_bytes"] is None
    assert said["needs"]["target_batch_size"] == 100


def test_joining_says_how_long_a_step_takes(run: FakeRun, clock: Clock) -> None:
    """The median of the newest steps, in tenths of a second."""
    for step in (3, 4):
        clock.now += 12.345
        run.add_step(step, 5.0)
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        assert get(client, "joining")["needs"]["step_s"] == 12.3


def test_an_invite_is_worth_what_its_code_is(client: TestClient, run: FakeRun) -> None:
    """Open, used, expired, revoked or unknown; names only for who has the code, and nothing is kept by a browser."""
    membership = run.services.membership
    codes = {name: membership.invite(name, role)[0] for name, role in (("Maya", "auxiliary"), ("Noor", "trainer"))}
    answer = client.post("/api/v1/invite", json={"code": codes["Maya"].lower()})
    assert answer.headers["cache-control"] == "no-store"
    assert (answer.json()["state"], answer.json()["member"]) == ("open", "Maya")
    services, link = run.services, str(run.directory.join_link)
    said = Invitation.of(codes["Maya"], "auxiliary", link, services.web_address, services.software_address)
    assert answer.json()["invitation"] == asdict(said)
    assert answer.json()["qr"] == asdict(QrCode.of(said.page))
    membership.revoke("Noor")
    assert client.post("/api/v1/invite", json={"code": codes["Noor"]}).json()["state"] == "revoked"
    unknown = client.post("/api/v1/invite", json={"code": "AAAAA-AAAAA-AAAAA-AAAAA"}).json()
    assert unknown == {"state": "unknown", "member": "", "expires_at": None, "invitation": None, "qr": None}
    for body in ({}, {"code": ""}, {"code": "x" * 65}, {"code": "x", "more": 1}, []):
        assert client.post("/api/v1/invite", json=body).status_code == 422


def test_a_request_of_a_wrong_shape_hears_nothing_of_itself(client: TestClient) -> None:
    """Not even what cannot be sent, as half a character; it may have been a secret."""
    for body in (
        '{"code": ["\\ud800 secret"]}',
        '{"code": "x", "\\ud800 more": "secret"}',
        '{"code": "\\ud800"}',
    ):
        answer = client.post("/api/v1/invite", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422
        assert "secret" not in answer.text
        assert answer.json()["detail"][0]["loc"][0] == "body"


def test_an_invite_ends_with_its_use_or_its_days(run: FakeRun) -> None:
    """A code that has admitted a machine is used; one whose time is over has expired."""
    services, later = run.services, run.services.clock() + 8 * 86_400
    used, old = services.membership.invite("Maya", devices=2)
    services.membership.join(key_of("maya").public_key, used)
    states = [invite_facts(services.database, code, later).state for code in (used, old)]
    assert states == ["used", "expired"]
    assert invite_facts(services.database, old, services.clock()).state == "open"


def test_buttons_lead_to_the_published_notebook() -> None:
    """Colab and Kaggle open what stands on GitHub."""
    url = "https://github.com/neuropark/run/blob/main/notebooks/join.ipynb"
    notebooks = notebooks_of(url)
    assert notebooks is not None
    assert notebooks.colab == "https://colab.research.google.com/github/neuropark/run/blob/main/notebooks/join.ipynb"
    assert notebooks.kaggle.startswith("https://kaggle.com/kernels/welcome?src=https%3A%2F%2Fgithub.com%2Fneuropark")
    assert notebooks_of(None) is None
    assert Settings(notebook_url=url).notebook_url == url
    for bad in ("http://github.com/a/b/blob/x.ipynb", "https://evil.example/a/b/blob/x.ipynb", url + "?x=<script>"):
        with pytest.raises(ValueError, match="notebook_url"):
            Settings(notebook_url=bad)


def test_an_invitation_installs_the_runs_software_and_joins() -> None:
    """In one line, which stops where the digest is wrong; in the page's address the code stands behind the #."""
    wheel = "https://run.example/software/manyhands_swarm-1.0-py3-none-any.whl"
    said = Invitation.of(
        "7K2QM", "auxiliary", "manyhands://x:1/r#sha256=0", "https://run.example", f"{wheel}#sha256=ab"
    )
    assert said.page == "https://run.example/join#invite=7K2QM"
    assert said.command == "manyhands assist 'manyhands://x:1/r#sha256=0' --invite 7K2QM"
    assert said.with_uv == said.one_line.replace("python3 ", "uv run --no-cache --no-project --python 3.12 python ")
    assert said.one_line == (
        f"curl -fsSL --create-dirs -o manyhands/manyhands_swarm-1.0-py3-none-any.whl {wheel} && "
        "echo 'ab  manyhands/manyhands_swarm-1.0-py3-none-any.whl' | sha256sum -c && "
        f"python3 manyhands/manyhands_swarm-1.0-py3-none-any.whl/peer/installer && manyhands/bin/{said.command}"
    )


def test_a_container_checks_and_installs_before_it_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its script, run here as a container would: nothing of a wheel with another digest is run."""
    (served := tmp_path / "served$HOME`").mkdir()  # a shell makes nothing of it
    wheel = served / "manyhands_swarm-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("peer/installer/__main__.py", "print('installed')")
    for name, lines in {"docker": 'while [ "$1" != sh ]; do shift; done; exec "$@"', "manyhands": 'echo "$@"'}.items():
        program = tmp_path / "manyhands" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{lines}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    for digest, said in (
        (hashlib.sha256(wheel.read_bytes()).hexdigest(), ["installed", "join manyhands://x:1/r#sha256=0"]),
        ("0" * 64, []),
    ):
        software = f"file://{wheel}#sha256={digest}"
        command = Invitation.of("7K2QM", "trainer", "manyhands://x:1/r#sha256=0", "https://r", software).container
        ran = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.stdout.splitlines()[1:] == said, ran.stderr
        assert "--env MANYHANDS_INVITE=7K2QM " in command


def test_a_qr_code_says_what_it_was_made_of() -> None:
    """Its path covers the dark squares, the margin is light."""
    code = QrCode.of("https://run.example/join#invite=7K2QM")
    dark = set()
    for x, y, width, back in re.findall(r"M(\d+) (\d+)h(\d+)v1h-(\d+)z", code.path):
        assert width == back
        dark |= {(int(x) + step, int(y)) for step in range(int(width))}
    rows = segno.make("https://run.example/join#invite=7K2QM", micro=False).matrix
    assert code.size == len(rows) + 8
    assert dark == {(x + 4, y + 4) for y, row in enumerate(rows) for x, square in enumerate(row) if square}
