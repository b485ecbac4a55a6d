"""The operator's doctor: each stage finds what is wrong with a real run, says what to do, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError, StorageError, UnfitError
from auth.keys import DeviceKey, create_tls_certificate
from coordinator.cli.main import app
from coordinator.context.services import open_run_services
from coordinator.control.server import ControlServer, TlsFiles
from coordinator.ledger.sessions import open_session
from coordinator.run.database_owner import create_database, open_database
from coordinator.run.directory import RunDirectory
from coordinator.run.secrets import check_secrets
from coordinator.service import doctor
from coordinator.service.preparation import prepare
from coordinator.statistics.swarm_health import write_figures
from peer.doctor.stages import CheckResult, Stage, Verdict, ok
from peer.reporting.metrics import RoundTally
from tests.support.ports import free_ports

NOW = time.time()


def outcome(run: RunDirectory, stage: str, now: float = NOW) -> CheckResult:
    """The finding of one stage, in an event loop of its own."""
    (wanted,) = [each for each in doctor.stages(now) if each.name == stage]
    return asyncio.run(wanted.examine(RunDirectory.open(run.path)))


def change_settings(run: RunDirectory, **values: object) -> None:
    (run.path / "settings.yaml").write_text(run.settings.model_copy(update=values).to_yaml())


def test_a_new_run_is_fit(small_run: RunDirectory) -> None:
    """Every stage has its line; what is only this machine's is a warning, no failure."""
    lines = [
        json.loads(line)
        for line in CliRunner().invoke(app, ["doctor", str(small_run.path), "--json"]).stdout.splitlines()
    ]
    verdicts = {line["stage"]: line["verdict"] for line in lines[:-1]}
    assert list(verdicts) == [stage.name for stage in doctor.stages(NOW)]
    assert "failed" not in verdicts.values()
    assert verdicts["address"] == "warning"
    assert lines[-1]["conclusion"]["fit"] is True


def test_ctrl_c_stops_a_check_that_blocks(small_run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor ends within the check, not after it."""
    went_on = []

    def check(_: RunDirectory) -> CheckResult:
        signal.raise_signal(signal.SIGINT)
        went_on.append(True)
        return ok("Nothing has stopped it.")

    monkeypatch.setattr("coordinator.cli.status.stages", lambda _now: (Stage("slow", check),))
    assert CliRunner().invoke(app, ["doctor", str(small_run.path)]).exit_code != 0
    assert not went_on


@pytest.mark.parametrize("name", ["keys", "keys/authority.key", "keys/tls.key", "settings.yaml"])
def test_a_secret_that_others_may_read_stops_everything(small_run: RunDirectory, name: str) -> None:
    """The doctor says it, and nothing is served; the command in the message mends it."""
    path = small_run.path / name
    proper = path.stat().st_mode
    path.chmod(proper | 0o040)
    assert outcome(small_run, "permissions").verdict is Verdict.FAILED
    with pytest.raises(ConfigError, match=rf"chmod [67]00 \S*{Path(name).name}"):
        prepare(small_run.path)
    assert CliRunner().invoke(app, ["doctor", str(small_run.path)]).exception.__class__ is UnfitError
    path.chmod(proper)
    check_secrets(small_run)
    assert outcome(small_run, "permissions").verdict is Verdict.OK


def test_a_database_is_its_owners_alone(small_run: RunDirectory) -> None:
    """From the beginning, with the files beside it; one of an earlier version is told of, and closed at the start."""
    for path in small_run.path.glob("manyhands.db*"):
        path.unlink()
    create_database(small_run)
    with open_database(small_run) as database, database.begin():
        files = list(small_run.path.glob("manyhands.db*"))
        assert {path.name for path in files} >= {"manyhands.db", "manyhands.db-wal", "manyhands.db-shm"}
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    (small_run.path / "manyhands.db").chmod(0o644)
    found = outcome(small_run, "permissions")
    assert found.verdict is Verdict.FAILED
    assert "manyhands.db" in found.found
    check_secrets(small_run)
    assert outcome(small_run, "permissions").verdict is Verdict.OK


def test_a_trusted_proxy_on_this_machine_is_told_of(small_run: RunDirectory) -> None:
    """Settings that an earlier version wrote trust it by default, and then every local user."""
    change_settings(small_run, trusted_proxies=["127.0.0.1"])
    found = outcome(small_run, "configuration")
    assert found.verdict is Verdict.WARNING
    assert "trusted_proxies" in found.found


def test_keys_that_do_not_fit_are_found(small_run: RunDirectory, tmp_path: Path) -> None:
    """Another certificate's key, a damaged authority key, a clock outside the certificate's time."""
    assert outcome(small_run, "keys").verdict is Verdict.OK
    assert outcome(small_run, "keys", now=0.0).verdict is Verdict.FAILED
    create_tls_certificate(small_run.tls_key_path, tmp_path / "other.crt")
    assert outcome(small_run, "keys").verdict is Verdict.FAILED
    (small_run.keys_dir / "authority.key").write_bytes(b"short")
    assert outcome(small_run, "keys").verdict is Verdict.FAILED


def test_a_damaged_database_is_found(small_run: RunDirectory) -> None:
    """What is no database is told as such."""
    (small_run.path / "manyhands.db").write_bytes(b"no database at all" * 100)
    assert outcome(small_run, "database").verdict is Verdict.FAILED


def test_a_missing_database_is_found_and_not_made(small_run: RunDirectory) -> None:
    """The finding names what is gone and how it comes back."""
    (small_run.path / "manyhands.db").unlink()
    found = outcome(small_run, "database")
    assert found.verdict is Verdict.FAILED
    assert re.search(r"manyhands\.db is missing.*restore", found.found)
    assert CliRunner().invoke(app, ["doctor", str(small_run.path)]).exception.__class__ is UnfitError
    assert not (small_run.path / "manyhands.db").exists()


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_database_that_does_not_answer_is_found(small_run: RunDirectory, options: tuple[str, ...]) -> None:
    """A server that is away is a finding in one sentence, for people and for scripts."""
    [port] = free_ports("127.0.0.1", 1)
    change_settings(small_run, database_url=f"postgresql+psycopg://nobody@127.0.0.1:{port}/none")
    told = CliRunner().invoke(app, ["doctor", str(small_run.path), *options])
    assert told.exception.__class__ is UnfitError
    assert "The database cannot be opened" in told.stdout


def test_a_taken_port_is_named(small_run: RunDirectory) -> None:
    """By number and purpose, when it is another program's."""
    with socket.create_server(("127.0.0.1", small_run.settings.web_port)):
        found = outcome(small_run, "ports")
    assert found.verdict is Verdict.FAILED
    assert f"{small_run.settings.web_port} (the dashboard)" in found.found
    assert outcome(small_run, "ports").data == {"served": False}


async def test_a_served_run_knows_itself(small_run: RunDirectory) -> None:
    """Ports that are taken by this very run are as they should be; a part that is not up yet is no other program."""
    tls = TlsFiles(small_run.tls_key_path, small_run.tls_cert_path)
    settings = small_run.settings
    with (
        open_run_services(small_run, time.time) as services,
        socket.create_server(("127.0.0.1", settings.web_port)),
    ):
        server = await ControlServer.start(services, "127.0.0.1", settings.control_port, tls)
        without_keeper = await asyncio.to_thread(outcome, small_run, "ports")
        with socket.create_server(("127.0.0.1", settings.swarm_port)):
            whole = await asyncio.to_thread(outcome, small_run, "ports")
        await server.stop()
    assert (whole.verdict, whole.data) == (Verdict.OK, {"served": True})
    assert (without_keeper.verdict, without_keeper.data) == (Verdict.WARNING, {"served": True})
    assert f"nothing listens on {settings.swarm_port} (the swarm)" in without_keeper.found


def test_a_clock_that_went_back_is_found(small_run: RunDirectory) -> None:
    """The newest stay lies in the future."""
    assert outcome(small_run, "clock").verdict is not Verdict.FAILED
    with open_run_services(small_run, time.time) as services:
        key = DeviceKey.load_or_create(small_run.path / "key")
        grant = services.membership.join(key.public_key, services.membership.invite("ada")[0])
        open_session(services.database, grant.device_id, "", "", NOW)
    assert outcome(small_run, "clock", now=NOW - 3600).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("host", "verdict"),
    [
        ("127.0.0.1", Verdict.WARNING),
        ("192.168.7.7", Verdict.WARNING),
        ("8.8.8.8", Verdict.OK),
        ("no-such-host.invalid", Verdict.FAILED),
    ],
)
def test_the_public_address_is_judged(small_run: RunDirectory, host: str, verdict: Verdict) -> None:
    """This machine's and a private network's are for few; an unknown name is for nobody."""
    change_settings(small_run, public_host=host)
    assert outcome(small_run, "address").verdict is verdict


def test_an_unknown_fallback_address_is_found(small_run: RunDirectory) -> None:
    """It stands in the join link, so it is to be right before it is needed."""
    change_settings(small_run, public_host="8.8.8.8", fallback_addresses=("no-such-host.invalid:7443",))
    found = outcome(small_run, "address")
    assert (found.verdict, "no-such-host.invalid:7443" in found.found) == (Verdict.WARNING, True)


def test_missing_auxiliary_peers_are_counted(small_run: RunDirectory) -> None:
    """As the keeper found after its newest round; before the first there is nothing to say."""
    assert outcome(small_run, "lines").verdict is Verdict.SKIPPED
    with open_run_services(small_run, time.time) as services:
        for missing, verdict in ((None, Verdict.SKIPPED), (0, Verdict.OK), (3, Verdict.WARNING)):
            write_figures(services.database, RoundTally(), (), missing)
            found = outcome(small_run, "lines")
            assert found.verdict is verdict
    assert "3 auxiliary peers" in found.found
    assert "manyhands assist" in found.remedy


def test_too_little_disk_is_found(small_run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next checkpoint must have its place."""
    assert outcome(small_run, "disk").verdict is Verdict.OK
    monkeypatch.setattr(doctor, "LEAST_DISK_BYTES", 1 << 60)
    assert outcome(small_run, "disk").verdict is Verdict.FAILED


@pytest.mark.parametrize(("single", "verdict", "told"), [(10, Verdict.OK, "25 % of 40"), (30, Verdict.WARNING, "75 %")])
def test_documents_of_one_sentence_are_counted(
    small_run: RunDirectory, single: int, verdict: Verdict, told: str
) -> None:
    """Most of them are a warning with a remedy; sources that this machine does not have are no fault of it."""
    documents = small_run.path.parent / "documents.txt"
    texts = [f"The river {number} is long." + " It is in India." * (number >= single) for number in range(40)]
    documents.write_text("\n\n".join(texts))
    found = outcome(small_run, "sentences")
    assert (found.verdict, "`mlm`" in found.remedy) == (verdict, verdict is Verdict.WARNING)
    assert found.found.startswith(told)
    documents.unlink()
    assert outcome(small_run, "sentences").verdict is Verdict.SKIPPED


def test_an_error_in_reading_sentences_fails_their_stage(
    small_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only sources that are misconfigured or away are skipped; any other error of ours fails the stage."""

    def refuse(_: object) -> None:
        raise StorageError("The cache is damaged.")

    monkeypatch.setattr(doctor, "order_sample", refuse)
    found = outcome(small_run, "sentences")
    assert (found.verdict, found.found) == (Verdict.FAILED, "The cache is damaged.")
