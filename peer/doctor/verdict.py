"""The doctor's last word: whether this machine can take part, and what it would add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peer.doctor.context import Context
from peer.doctor.findings import Finding, Verdict

DIRECT, RELAYED = "a directly reachable peer", "a relayed peer"
OUTGOING = "a client, which opens connections and takes none"


@dataclass(frozen=True)
class Conclusion:
    """All findings together."""

    fit: bool  # nothing failed
    text: str
    samples_per_step: int | None = None  # that this machine would add; None where it is not known
    joins_as: str | None = None


def conclude(findings: Sequence[Finding], context: Context) -> Conclusion:
    """Sum up what was found."""
    failed = [finding.stage for finding in findings if finding.verdict is Verdict.FAILED]
    if failed:
        listed = ", ".join(f"`{stage}`" for stage in failed)
        return Conclusion(False, f"{len(failed)} of {len(findings)} stages failed ({listed}): begin with the first.")
    speed, description = context.speed, context.description
    if speed is None:
        return Conclusion(True, "Nothing stands in the way.")
    if description is None:
        rate = f"{speed.samples_per_second:,.1f}"
        return Conclusion(True, f"This machine would compute about {rate} samples a second of the demo's model.")
    samples = samples_per_step(
        speed.samples_per_second, description.samples_per_second, description.config.averaging.target_batch_size
    )
    joins_as = DIRECT if context.reachable else RELAYED if context.relays else OUTGOING
    text = f"This machine would add about {samples:,} samples a step as {joins_as}."
    return Conclusion(True, text, samples, joins_as)


def samples_per_step(own_rate: float, swarm_rate: float, target_batch_size: int) -> int:
    """This machine's share of the global batch, beside those who train now; rates in samples per second."""
    return round(target_batch_size * own_rate / (own_rate + swarm_rate))
