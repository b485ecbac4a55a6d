"""Why a join has failed: the doctor's stages, asked afterwards, give a person more than "daemon failed to start"."""

from __future__ import annotations

from collections.abc import Sequence

from auth.errors import ManyhandsError, SwarmError, UnreachableError
from peer.doctor.checkup import WHY_NO_SWARM, WHY_UNREACHABLE
from peer.doctor.context import Context
from peer.doctor.findings import Finding, Verdict
from peer.doctor.stages import run_stages


async def explain(error: UnreachableError | SwarmError, context: Context) -> ManyhandsError:
    """The same kind of error, so the same exit code, in the words of the first stage that fails."""
    stages = WHY_NO_SWARM if isinstance(error, SwarmError) else WHY_UNREACHABLE
    async with context:
        findings = [finding async for finding in run_stages(stages, context)]
    return type(error)(reason(str(error), findings))


def reason(original: str, findings: Sequence[Finding]) -> str:
    """One line for the person: the first failure and what else looks odd; the original error if nothing has failed."""
    failed = [finding for finding in findings if finding.verdict is Verdict.FAILED]
    if not failed:
        return f"{original} `manyhands doctor` finds nothing wrong on the way now: try again."
    odd = [finding for finding in findings if finding.verdict is Verdict.WARNING]  # a proxy, say
    return " ".join(finding.sentence for finding in (failed[0], *odd))
