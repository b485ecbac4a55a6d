"""What a person reads when joining has failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from auth.errors import SwarmError, UnreachableError
from auth.join_link import JoinLink
from peer.doctor.checkup import explain, reason
from peer.doctor.context import Context, Options
from peer.doctor.stages import StageResult, failed, ok, warning
from tests.support import doctor_mains
from tests.support.control_plane import serving
from tests.support.ports import free_ports


async def test_an_unreachable_coordinator_is_explained() -> None:
    """The same error, so the same exit code, with what was found, what to do, and a proxy, which may be the reason."""
    (port,) = free_ports("127.0.0.1", 1)
    link = JoinLink("127.0.0.1", port, "run", "ab" * 32)
    context = Context(Options(Path("unused"), link), environ={"HTTPS_PROXY": "http://proxy"})
    explained = await explain(UnreachableError("bare"), context)
    assert type(explained) is UnreachableError
    for part in ("connection refused", "ask the operator", "`HTTPS_PROXY`"):
        assert part in str(explained)


@pytest.mark.usefixtures("forked")
async def test_a_daemon_that_does_not_start_is_explained(tmp_path: Path) -> None:
    """Not "failed to start in 60 seconds" but the daemon's own reason."""
    async with serving(tmp_path) as coordinator:
        options = Options(tmp_path, coordinator.link)
        context = Context(options, environ={}, prepare_helper=doctor_mains.daemon_fails)
        explained = await explain(SwarmError("Daemon failed to start in 60.0 seconds."), context)
    assert type(explained) is SwarmError
    assert "giving up" in str(explained)
    assert "Install manyhands again" in str(explained)


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
    assert reason("bare.", findings) == "bare. `manyhands doctor` finds no problem now: try again."
