"""The stages of the volunteer's doctor, in order, and its conclusion.

After a failed join, `explain` runs some of the stages to find the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from auth.errors import ManyhandsError, SwarmError, UnreachableError
from peer.doctor.contact import (
    ASK_OPERATOR,
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
from peer.doctor.machine import (
    check_device,
    check_disk,
    check_pace,
    check_speed,
    judge_memory,
    judge_processor,
    read_memory,
    read_processor,
)
from peer.doctor.stages import Conclusion, Stage, StageResult, Verdict, failed, run_stages, skipped
from peer.doctor.swarm import check_daemon, check_reachability, check_relay, check_swarm_quic, check_swarm_tcp

_ASK_OPERATOR = partial(failed, remedy=ASK_OPERATOR)
MACHINE = (
    Stage("disk", check_disk),
    Stage[Context]("memory", lambda _: judge_memory(read_memory())),
    Stage[Context]("processor", lambda _: judge_processor(read_processor())),
)
CONTACT = (
    Stage("names", check_names),
    Stage("tcp", check_tcp, ("names",)),
    Stage("proxy", check_proxy),
    Stage("route", check_route, ("tcp",)),
    Stage("tls", check_tls, ("tcp",), _ASK_OPERATOR),
    Stage("protocol", check_protocol, ("tls",), _ASK_OPERATOR),
    Stage("run", check_run_name, ("protocol",), _ASK_OPERATOR),
    Stage("clock", check_time, ("protocol",)),
)
# These stages are skipped if the coordinator is too old or its rate limit is reached.
REQUIREMENTS = Stage("requirements", check_requirements, ("run",), skipped)
BANDWIDTH = Stage("bandwidth", check_bandwidth, ("run",), skipped)
REACHABILITY = Stage("reachability", check_reachability, ("requirements",), skipped)
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
DIRECT, RELAYED = "a directly reachable peer", "a relayed peer"
OUTGOING = "a client, which opens connections and takes none"
WITHOUT_LINK = (*MACHINE, DAEMON, *TRAINING)
WITH_LINK = (
    *MACHINE,
    *CONTACT,
    REQUIREMENTS,
    BANDWIDTH,
    REACHABILITY,
    DAEMON,
    KEEPER,
    *BEYOND_TCP,
    *TRAINING,
    PACE,
)
WHY_UNREACHABLE = CONTACT
WHY_NO_SWARM = (*CONTACT, REQUIREMENTS, DAEMON, KEEPER)


def conclude(context: Context) -> Conclusion:
    """Describe this machine's expected contribution, once all stages have passed."""
    speed, description = context.speed, context.description
    if speed is None:
        return Conclusion(True, "This machine is ready to join.")
    if description is None:
        rate = f"{speed.samples_per_second:,.1f}"
        return Conclusion(True, f"This machine would compute about {rate} samples a second of the demo's model.")
    share = speed.samples_per_second / (speed.samples_per_second + description.samples_per_second)
    samples = round(description.config.averaging.target_batch_size * share)
    joins_as = DIRECT if context.reachable else RELAYED if context.relays else OUTGOING
    return Conclusion(
        True, f"This machine would add about {samples:,} samples a step as {joins_as}.", samples, joins_as
    )


async def explain(error: UnreachableError | SwarmError, context: Context) -> ManyhandsError:
    """Diagnose a failed join; return an error of the same class that states the cause."""
    stages = WHY_NO_SWARM if isinstance(error, SwarmError) else WHY_UNREACHABLE
    async with context.resources:
        findings = [finding async for finding in run_stages(stages, context)]
    return type(error)(reason(str(error), findings))


def reason(original: str, findings: Sequence[StageResult]) -> str:
    """Return the first failure and all warnings in one line; the original error if none failed."""
    broken = [finding for finding in findings if finding.verdict is Verdict.FAILED]
    if not broken:
        return f"{original} `manyhands doctor` finds no problem now: try again."
    odd = [finding for finding in findings if finding.verdict is Verdict.WARNING]  # for example, about a proxy
    return " ".join(finding.sentence for finding in (broken[0], *odd))
