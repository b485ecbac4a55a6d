"""Several services over one PostgreSQL, behind one address, and one keeper: any of them may go, and none is missed."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import func, select

from coordinator.checkpoints.manifest import newest_verified
from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.ledger.sessions import online_sessions
from coordinator.run.directory import RunDirectory
from coordinator.store.ledger_models import LostSamples
from coordinator.store.models import Device, Member, Report
from tests.support.balancer import balancing
from tests.support.commands import Command, Site, service_of
from tests.support.ports import free_ports
from tests.support.postgres import PostgresServer, new_server
from tests.support.small_run import HOST
from tests.support.waiting import PATIENCE_S

SECOND_HOST = "127.0.0.2"
MEMBERS = ("ada", "grace", "joan")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that a test may kill."""
    with new_server() as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, server: PostgresServer) -> Iterator[Site]:
    """A fresh run on PostgreSQL, whose keeper may be at either of two addresses."""
    made = Site(tmp_path, database_url=server.url())
    settings = made.run.settings.model_copy(update={"announce_hosts": (SECOND_HOST,)})
    (made.run.path / "settings.yaml").write_text(settings.to_yaml())
    made.run = RunDirectory.open(made.run.path)
    yield made
    made.close()
    made.database.engine.dispose()


def second_of(run: RunDirectory, path: Path) -> RunDirectory:
    """The same run, keys, keeper's identity, checkpoints and all, to be served at another address."""
    shutil.copytree(run.path, path, ignore=shutil.ignore_patterns("checkpoints"))
    (path / "checkpoints").symlink_to(run.checkpoints_dir)
    (path / "settings.yaml").write_text(run.settings.model_copy(update={"bind_host": SECOND_HOST}).to_yaml())
    return RunDirectory.open(path)


@contextmanager
def behind_one_address(*runs: RunDirectory) -> Iterator[int]:
    """A port from which connections go to the first of these that takes them."""
    [port] = free_ports(HOST, 1)
    with balancing(port, [(run.settings.bind_host, run.settings.control_port) for run in runs]):
        yield port


def join_by(site: Site, name: str, port: int, first: bool = True) -> Command:
    """A volunteer whose link leads to this port, by invite the first time; its log is for machines."""
    link = str(replace(site.run.join_link, port=port))
    options = ("--state-dir", str(site.base / name), "--threads", "1", "--listen", f"/ip4/{HOST}/tcp/0")
    invite = site.membership.invite(name)[0] if first else ""
    return site.start(name, "join", link, *options, "--log-format", "json", invite=invite)


def steps_shown(run: RunDirectory) -> int:
    """What a replica's dashboard says."""
    address = f"http://{run.settings.bind_host}:{run.settings.web_port}/api/v1/overview"
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        return int(json.load(answer)["totals"]["steps"])


def test_a_second_coordinator_takes_over_whole(site: Site) -> None:
    """When the first is killed, volunteer and swarm go on by the second's service and keeper, in the same era."""
    first_command = site.serve()
    second = second_of(site.run, site.base / "second")
    other = site.start("second-serve", "coordinator", "serve", str(second.path))
    site.wait_until(
        "the other keeper knows that one serves the run",
        lambda: "another keeper serves this run" in other.log_path.read_text(),
    )
    site.wait_until("the other coordinator serves its dashboard", lambda: "Dashboard:" in other.log_path.read_text())
    with behind_one_address(site.run, second) as port:
        join_by(site, "ada", port)
        site.wait_until("a checkpoint is stored", lambda: newest_verified(site.run.checkpoints_dir) is not None)
        site.wait_until("both coordinators show a step", lambda: min(map(steps_shown, (site.run, second))) >= 1)
        killed_at = time.time()
        first_command.kill()
        reached = site.ledger.last_step()
        site.wait_until(
            "a session is open at the coordinator that is left",
            lambda: any(row.started_at > killed_at for row in online_sessions(site.database, time.time())),
        )
        site.wait_until("the other keeper has taken a step", lambda: kept_at(site) > reached)
        again = site.start("third-serve", "coordinator", "serve", str(site.run.path))
        site.wait_until(
            "the first keeper knows that the other serves the run",
            lambda: "another keeper serves this run" in again.log_path.read_text(),
        )
    assert site.ledger.current_era() == 0


def kept_at(site: Site) -> int:
    """The step that a keeper holds now."""
    status = read_swarm_status(site.database)
    return status.step if status is not None and status.updated_at > time.time() - 5 else 0


def test_whatever_is_killed_nothing_is_lost_or_counted_twice(site: Site, server: PostgresServer) -> None:
    """Two services, the keeper, the database and three volunteers are killed in turn; each time all train on together.

    Seven processes are killed, and each is waited for until all three volunteers share a step again.
    """
    second = second_of(site.run, site.base / "second")
    keeper = site.start("keeper", "coordinator", "serve", str(site.run.path), "--keeper-only")
    services = {
        run: site.start(f"service-{run.settings.bind_host}", "coordinator", "serve", str(run.path), "--service-only")
        for run in (site.run, second)
    }
    site.wait_until(
        "the keeper has said where the swarm stands",
        lambda: kept_at(site) >= 0 and read_swarm_status(site.database) is not None,
    )
    with behind_one_address(site.run, second) as one, behind_one_address(second, site.run) as other:
        ports = dict(zip(MEMBERS, (one, other, one), strict=True))
        volunteers = {name: join_by(site, name, port) for name, port in ports.items()}
        train_on_together(site)
        for run, service in services.items():
            service_of(service, run.settings.control_port).kill()
            train_on_together(site)
        keeper_process(keeper).kill()
        train_on_together(site)
        server.stop()
        server.start()
        train_on_together(site)
        for name, port in ports.items():
            volunteers[name].kill()
            volunteers[name] = join_by(site, name, port, first=False)
            train_on_together(site)
        site.wait_until("the ledger has what each volunteer has counted", lambda: not unaccounted(site))
        for command in volunteers.values():
            assert command.terminate()[0] == 0
    for name, found in reported(site).items():
        assert (found - own_counts(site, name)).total() <= 1  # kept, and not yet shown when it was killed
    site.assert_steps_are_their_reports()
    rows = site.ledger.steps()
    assert [row.step for row in rows] == list(range(1, len(rows) + 1))
    keeper.terminate()
    assert_it_resumes(site)


def keeper_process(command: Command) -> psutil.Process:
    """The process that has the p2p daemon below it."""
    [daemon] = command.daemons()
    [found] = set(daemon.parents()) & set(command.process.children())
    return found


def train_on_together(site: Site) -> None:
    """Wait for a step, later than all until now, to which all three have brought samples."""
    before = site.ledger.last_step()
    site.wait_until(
        "both volunteers have reported another step",
        lambda: any(row.devices == len(MEMBERS) for row in site.ledger.steps(after=before)),
    )


def step_reports(site: Site, name: str) -> list[dict[str, Any]]:
    """All that this volunteer's own log has, but for a line that is being written."""
    whole = (site.base / f"{name}.log").read_text().rpartition("\n")[0]
    lines = [line for line in whole.splitlines() if line.startswith("{")]
    return [event for event in map(json.loads, lines) if event["event"] == "StepReport"]


def own_counts(site: Site, name: str) -> Counter[tuple[int, int]]:
    """Step and samples of every report that this volunteer's own log has."""
    return Counter((event["step"], event["samples"]) for event in step_reports(site, name))


def unaccounted(site: Site) -> dict[str, Counter[tuple[int, int]]]:
    """The reports of members that are neither in the ledger nor told as lost.

    A report of a step that the swarm has never known, for its keeper was killed, is lost, and told so.
    """
    found, missing = reported(site), {}
    query = select(Member.name, func.sum(LostSamples.samples)).join_from(LostSamples, Device).join(Device.member)
    with site.database() as session:
        rows = session.execute(query.group_by(Member.name)).all()
    told = {row[0]: int(row[1]) for row in rows}
    for name in MEMBERS:
        lost = told.get(name, 0) - sum(event["lost_samples"] for event in step_reports(site, name))
        unknown = own_counts(site, name) - found.get(name, Counter())
        if sum(samples * times for (_, samples), times in unknown.items()) > lost:
            missing[name] = unknown
    return missing


def reported(site: Site) -> dict[str, Counter[tuple[int, int]]]:
    """The same as the ledger has it, by member."""
    query = select(Member.name, Report.step, Report.samples).join_from(Report, Device).join(Device.member)
    found: dict[str, Counter[tuple[int, int]]] = {}
    with site.database() as session:
        for name, step, samples in session.execute(query):
            found.setdefault(name, Counter())[step, samples] += 1
    return found


def assert_it_resumes(site: Site) -> None:
    """From the newest checkpoint, which verifies."""
    checkpoint = newest_verified(site.run.checkpoints_dir)
    assert checkpoint is not None
    began = time.time()
    site.start("keeper-again", "coordinator", "serve", str(site.run.path), "--keeper-only")
    site.wait_until(
        "the keeper has said again where the swarm stands",
        lambda: (status := read_swarm_status(site.database)) is not None and status.updated_at > began,
    )
    status = read_swarm_status(site.database)
    assert status is not None
    assert status.step == checkpoint.manifest.step
