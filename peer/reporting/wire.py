"""Conversion of reports from dataclasses to protobuf messages and back.

The coordinator uses this module to parse untrusted messages and enforce the bounds of its columns.
The ledger decides whether claims are plausible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from auth.errors import RequestError
from auth.receipts import MAX_COUNT
from peer.protocol import control_pb2
from peer.reporting.messages import CLAIM_BOUNDS, MAX_LONG, MAX_REASON_CHARS, Lost, LostCause, StepReport

MAX_CAUSES = 16
_CAUSES = frozenset(cause.value for cause in LostCause)
_FIELDS = control_pb2.StepReport.DESCRIPTOR.fields_by_name


def report_to_wire(seq: int, completed_at: float, report: StepReport) -> control_pb2.StepReport:
    """Convert a report to a message; `seq` is the report's number in the outbox."""
    reason = report.lost_reason[:MAX_REASON_CHARS]
    claims = asdict(report) | {"seq": seq, "time": completed_at, "lost_reason": reason}
    return control_pb2.StepReport(**claims)


def report_from_wire(message: control_pb2.StepReport) -> StepReport:
    """Convert a message to a report. Raises `RequestError` if a number or text exceeds its bound."""
    if message.seq > MAX_LONG:
        raise RequestError(f"`seq` ({message.seq}) must not exceed {MAX_LONG}.")
    for name, bound in CLAIM_BOUNDS.items():
        value = getattr(message, name)
        if isinstance(value, int) and value > bound.storable:
            raise RequestError(f"`{name}` ({value}) must not exceed {bound.storable}.")
        if isinstance(value, str) and len(value) > bound.most:
            raise RequestError(f"`{name}` must not be longer than {bound.most} characters.")
    said = {name for name in CLAIM_BOUNDS if not _FIELDS[name].has_presence or message.HasField(name)}
    claims: dict[str, Any] = {name: getattr(message, name) if name in said else None for name in CLAIM_BOUNDS}
    return StepReport(**claims, lost=_lost_by_cause(message))


def lost_to_wire(seq: int, at: float, lost: Lost) -> control_pb2.Lost:
    """Convert a report of lost samples to a message; `seq` is the report's number in the outbox."""
    return control_pb2.Lost(seq=seq, time=at, step=lost.step, by_cause=lost.by_cause)


def lost_from_wire(message: control_pb2.Lost) -> Lost:
    """Convert a message to a report of lost samples. Raises `RequestError` for an invalid number."""
    if not 1 <= message.step <= MAX_COUNT or message.seq > MAX_LONG:
        raise RequestError(f"`step` ({message.step}) must lie between 1 and {MAX_COUNT}, `seq` below {MAX_LONG}.")
    return Lost(message.step, _by_known_cause(message.by_cause))


def _lost_by_cause(message: control_pb2.StepReport) -> dict[str, int]:
    """Return the lost samples by cause; older peers send one cause for all lost samples."""
    by_cause = message.lost or {message.lost_reason: message.lost_samples}
    found = _by_known_cause(by_cause)
    if sum(found.values()) != message.lost_samples:
        raise RequestError(f"`lost` names {sum(found.values())} samples, and `lost_samples` {message.lost_samples}.")
    return found


def _by_known_cause(by_cause: Mapping[str, int]) -> dict[str, int]:
    """Return the lost samples by `LostCause`; unknown causes are counted as `other`."""
    if len(by_cause) > MAX_CAUSES or any(samples > MAX_COUNT for samples in by_cause.values()):
        raise RequestError(f"Losses have at most {MAX_CAUSES} causes, and each at most {MAX_COUNT} samples.")
    found: Counter[str] = Counter()
    for cause, samples in sorted(by_cause.items()):
        found[cause if cause in _CAUSES else LostCause.OTHER.value] += samples
    return dict(+found)  # omits causes without samples
