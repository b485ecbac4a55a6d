"""The doctor's stages in the order in which they are examined, and those that explain why a join has failed.

Asked after a join has failed, the stages give a person more than "daemon failed to start" (`explain`).
"""

from __future__ import annotations

from collections.abc import Sequence

from auth.errors import ManyhandsError, SwarmError, UnreachableError
from peer.doctor.contact import (
    check_bandwidth,
    check_names,
    check_protocol,
    check_proxy,
    check_requirements,
    check_route,
    check_run_name,
    check_tcp,
    check_time,
    check_tls,
)
from peer.doctor.context import Context
from peer.doctor.machine import check_device, check_disk, check_memory, check_pace, check_processor, check_speed
from peer.doctor.stages import Stage, StageResult, Verdict, run_stages
from peer.doctor.swarm import check_daemon, check_reachability, check_relay, check_swarm_quic, check_swarm_tcp

MACHINE = (
    Stage("disk", check_disk),
    Stage("memory", check_memory),
    Stage("processor", check_processor),
)
CONTACT = (
    Stage("names", check_names),
    Stage("tcp", check_tcp, ("names",)),
    Stage("proxy", check_proxy),
    Stage("route", check_route, ("tcp",)),
    Stage("tls", check_tls, ("tcp",)),
    Stage("protocol", check_protocol, ("tls",)),
    Stage("run", check_run_name, ("protocol",)),
    Stage("clock", check_time, ("protocol",)),
)
LINE = (
    Stage("bandwidth", check_bandwidth, ("run",)),
    Stage("reachability", check_reachability, ("requirements",)),
)
REQUIREMENTS = Stage("requirements", check_requirements, ("run",))
DAEMON = Stage("daemon", check_daemon)
KEEPER = Stage("swarm-tcp", check_swarm_tcp, ("requirements", "daemon"))
BEYOND_TCP = (
    Stage("swarm-quic", check_swarm_quic, ("requirements", "daemon")),
    Stage("relay", check_relay, ("swarm-tcp",)),
)
TRAINING = (
    Stage("device", check_device),
    Stage("speed", check_speed, ("device",)),
)
PACE = Stage("pace", check_pace, ("bandwidth", "speed"))
WITHOUT_LINK = (*MACHINE, DAEMON, *TRAINING)
WITH_LINK = (*MACHINE, *CONTACT, REQUIREMENTS, *LINE, DAEMON, KEEPER, *BEYOND_TCP, *TRAINING, PACE)
WHY_UNREACHABLE = CONTACT
WHY_NO_SWARM = (*CONTACT, REQUIREMENTS, DAEMON, KEEPER)


async def explain(error: UnreachableError | SwarmError, context: Context) -> ManyhandsError:
    """Return an error of the same kind, so of the same exit code, in the words of the first stage that fails."""
    stages = WHY_NO_SWARM if isinstance(error, SwarmError) else WHY_UNREACHABLE
    async with context:
        findings = [finding async for finding in run_stages(stages, context)]
    return type(error)(reason(str(error), findings))


def reason(original: str, findings: Sequence[StageResult]) -> str:
    """Write one line for the person: the first failure and the warnings; the original error if nothing has failed."""
    failed = [finding for finding in findings if finding.verdict is Verdict.FAILED]
    if not failed:
        return f"{original} `manyhands doctor` finds nothing wrong on the way now: try again."
    odd = [finding for finding in findings if finding.verdict is Verdict.WARNING]  # a proxy, say
    return " ".join(finding.sentence for finding in (failed[0], *odd))
