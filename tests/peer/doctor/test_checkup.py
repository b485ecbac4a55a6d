"""What a person reads when joining has failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from auth.errors import SwarmError, UnreachableError
from auth.join_link import JoinLink
from peer.doctor.checkup import explain, reason
from peer.doctor.context import Context, Options, Timing
from peer.doctor.stages import StageResult, failed, ok, warning
from tests.support import doctor_mains
from tests.support.control_plane import serving
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S

DAEMON_FAILED = SwarmError("The swarm cannot be joined (Daemon failed to start in 60.0 seconds).")


async def test_an_unreachable_coordinator_is_explained() -> None:
    """The same error, so the same exit code, with what was found and what to do."""
    (port,) = free_ports("127.0.0.1", 1)
    link = JoinLink("127.0.0.1", port, "run", "ab" * 32)
    explained = await explain(UnreachableError("bare"), Context(Options(Path("unused"), link), environ={}))
    assert type(explained) is UnreachableError
    assert "connection refused" in str(explained)
    assert "ask the operator" in str(explained)


async def test_a_proxy_is_mentioned_beside_the_failure() -> None:
    """It may be the reason."""
    (port,) = free_ports("127.0.0.1", 1)
    link = JoinLink("127.0.0.1", port, "run", "ab" * 32)
    context = Context(Options(Path("unused"), link), environ={"HTTPS_PROXY": "http://proxy"})
    assert "`HTTPS_PROXY`" in str(await explain(UnreachableError("bare"), context))


async def test_a_daemon_that_does_not_start_is_explained(tmp_path: Path) -> None:
    """Not "failed to start in 60 seconds" but the daemon's own reason."""
    async with serving(tmp_path) as coordinator:
        options = Options(tmp_path, coordinator.link)
        context = Context(options, environ={}, prepare_helper=doctor_mains.daemon_fails)
        explained = await explain(DAEMON_FAILED, context)
    assert type(explained) is SwarmError
    assert "giving up" in str(explained)
    assert "Install manyhands again" in str(explained)


async def test_a_keeper_that_is_not_there_is_explained(tmp_path: Path) -> None:
    """The daemon starts, but the coordinator knows nobody to dial."""
    async with serving(tmp_path) as coordinator:
        context = Context(Options(tmp_path, coordinator.link), environ={}, timing=Timing(daemon_s=PATIENCE_S))
        explained = await explain(DAEMON_FAILED, context)
    assert "keeper has not started" in str(explained)


def test_the_first_failure_speaks() -> None:
    """The others often follow from it; warnings are added."""
    findings = [
        StageResult("names", ok("Fine.")),
        StageResult("tcp", failed("Closed.", "Open it.")),
        StageResult("proxy", warning("There is a proxy.", "Leave it.")),
        StageResult("daemon", failed("Broken.", "Mend it.")),
    ]
    assert reason("bare", findings) == "Closed. Open it. There is a proxy. Leave it."


@pytest.mark.parametrize(
    "findings", [[], [StageResult("names", ok("Fine.")), StageResult("route", warning("VPN.", "Leave."))]]
)
def test_where_nothing_is_wrong_the_error_stays(findings: list[StageResult]) -> None:
    """It may have been a moment's trouble."""
    assert reason("bare.", findings) == "bare. `manyhands doctor` finds nothing wrong on the way now: try again."
