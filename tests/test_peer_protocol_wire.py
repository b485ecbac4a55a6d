"""Reports as messages and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auth.errors import RequestError
from auth.receipts import MAX_RECEIPT_CHARS
from peer.messages import StepReport
from peer.protocol.wire import MAX_COUNT, MAX_LONG, MAX_REASON_CHARS, report_from_wire, report_to_wire

REPORT = StepReport(
    9, 64, 7.5, 6.75, 0.75, 3, 128, 0.5, 12.0, 4, "out of sync", data_wait_s=0.25, elapsed_s=5.25, receipt="{}"
)


@pytest.mark.parametrize(
    "report", [REPORT, replace(REPORT, samples=0, loss=None, mlm_loss=None, sop_loss=None, group_samples=None)]
)
def test_a_report_arrives_as_it_was_sent(report: StepReport) -> None:
    """Every field comes through, and what is unknown stays unknown."""
    message = report_to_wire(7, 2, 100.5, report)
    assert (message.seq, message.era, message.time) == (7, 2, 100.5)
    assert report_from_wire(message) == report


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq", MAX_LONG + 1),
        ("samples", MAX_COUNT + 1),
        ("lost_reason", "x" * (MAX_REASON_CHARS + 1)),
        ("receipt", "x" * (MAX_RECEIPT_CHARS + 1)),
    ],
)
def test_what_no_peer_of_ours_would_send_is_refused(field: str, value: object) -> None:
    """Numbers and texts beyond any that is meant are named."""
    message = report_to_wire(7, 2, 100.5, REPORT)
    setattr(message, field, value)
    with pytest.raises(RequestError, match=field):
        report_from_wire(message)
