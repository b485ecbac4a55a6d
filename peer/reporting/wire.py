"""Conversion of reports between the worker's dataclass and the message on the wire.

The coordinator parses messages of strangers with this: whole numbers are bounded here to what a database column holds;
whether a claim is plausible is the ledger's question.
"""

from __future__ import annotations

from collections.abc import Mapping

from auth.errors import RequestError
from auth.receipts import MAX_RECEIPT_CHARS
from peer.protocol import control_pb2
from peer.reporting.messages import Lost, StepReport, known_causes

MAX_COUNT = 2**31 - 1

MAX_LONG = 2**62

MAX_REASON_CHARS = 40

MAX_CAUSES = 16


def report_to_wire(seq: int, era: int, completed_at: float, report: StepReport) -> control_pb2.StepReport:
    """The message for a report that waits in the outbox under the number `seq`."""
    return control_pb2.StepReport(
        seq=seq,
        step=report.step,
        samples=report.samples,
        loss=report.loss,
        mlm_loss=report.mlm_loss,
        sop_loss=report.sop_loss,
        group_size=report.group_size,
        group_samples=report.group_samples,
        averaging_s=report.averaging_s,
        samples_per_second=report.samples_per_second,
        lost_samples=report.lost_samples,
        lost_reason=report.lost_reason[:MAX_REASON_CHARS],
        lost=report.lost,
        data_wait_s=report.data_wait_s,
        elapsed_s=report.elapsed_s,
        averaged_bytes=report.averaged_bytes,
        receipt=report.receipt,
        era=era,
        time=completed_at,
    )


def report_from_wire(message: control_pb2.StepReport) -> StepReport:
    """The report in a message; raises `RequestError` if a number or text is larger than any that is meant."""
    for name in ("step", "samples", "group_size", "group_samples", "lost_samples", "era"):
        if getattr(message, name) > MAX_COUNT:
            raise RequestError(f"`{name}` ({getattr(message, name)}) must not exceed {MAX_COUNT}.")
    for name in ("seq", "averaged_bytes"):
        if getattr(message, name) > MAX_LONG:
            raise RequestError(f"`{name}` ({getattr(message, name)}) must not exceed {MAX_LONG}.")
    if len(message.lost_reason) > MAX_REASON_CHARS:
        raise RequestError(f"`lost_reason` must not be longer than {MAX_REASON_CHARS} characters.")
    if len(message.receipt) > MAX_RECEIPT_CHARS:
        raise RequestError(f"`receipt` must not be longer than {MAX_RECEIPT_CHARS} characters.")
    return StepReport(
        step=message.step,
        samples=message.samples,
        loss=message.loss if message.HasField("loss") else None,
        mlm_loss=message.mlm_loss if message.HasField("mlm_loss") else None,
        sop_loss=message.sop_loss if message.HasField("sop_loss") else None,
        group_size=message.group_size,
        group_samples=message.group_samples if message.HasField("group_samples") else None,
        averaging_s=message.averaging_s,
        samples_per_second=message.samples_per_second,
        lost_samples=message.lost_samples,
        lost_reason=message.lost_reason,
        lost=_lost_by_cause(message),
        data_wait_s=message.data_wait_s,
        elapsed_s=message.elapsed_s,
        averaged_bytes=message.averaged_bytes,
        receipt=message.receipt,
    )


def lost_to_wire(seq: int, at: float, lost: Lost) -> control_pb2.Lost:
    """The message for losses that wait in the outbox under the number `seq`."""
    return control_pb2.Lost(seq=seq, time=at, step=lost.step, by_cause=lost.by_cause)


def lost_from_wire(message: control_pb2.Lost) -> Lost:
    """The losses in a message; raises `RequestError` if a number is larger than any that is meant."""
    if not 1 <= message.step <= MAX_COUNT or message.seq > MAX_LONG:
        raise RequestError(f"`step` ({message.step}) must lie between 1 and {MAX_COUNT}, `seq` below {MAX_LONG}.")
    return Lost(message.step, _bounded_causes(message.by_cause))


def _lost_by_cause(message: control_pb2.StepReport) -> dict[str, int]:
    """Read the losses by cause; those of an older peer, which tells one reason only, stand under that reason."""
    by_cause = message.lost or {message.lost_reason: message.lost_samples}
    found = _bounded_causes(by_cause)
    if sum(found.values()) != message.lost_samples:
        raise RequestError(f"`lost` names {sum(found.values())} samples, and `lost_samples` {message.lost_samples}.")
    return found


def _bounded_causes(by_cause: Mapping[str, int]) -> dict[str, int]:
    if len(by_cause) > MAX_CAUSES or any(samples > MAX_COUNT for samples in by_cause.values()):
        raise RequestError(f"Losses have at most {MAX_CAUSES} causes, and each at most {MAX_COUNT} samples.")
    return known_causes(by_cause)
