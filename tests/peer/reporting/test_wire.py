"""Reports as messages and back."""

from __future__ import annotations

from dataclasses import replace
from types import NoneType
from typing import get_args, get_type_hints

import grpc
import pytest

from auth.errors import RequestError
from auth.receipts import MAX_COUNT, MAX_RECEIPT_CHARS
from peer.protocol.control_pb2 import StepReport as Message
from peer.protocol.errors import error_from_rpc, told
from peer.reporting.messages import CLAIM_BOUNDS, MAX_LONG, MAX_REASON_CHARS, Bound, Lost, StepReport
from peer.reporting.wire import (
    MAX_CAUSES,
    lost_from_wire,
    lost_to_wire,
    report_from_wire,
    report_to_wire,
)

REPORT = StepReport(
    9,
    64,
    7.5,
    6.75,
    0.75,
    3,
    128,
    0.5,
    12.0,
    4,
    "out of sync",
    data_wait_s=0.25,
    elapsed_s=5.25,
    receipt="{}",
    era=2,
    lost={"late": 1, "out of sync": 3},
)


@pytest.mark.parametrize(
    "report", [REPORT, replace(REPORT, samples=0, loss=None, mlm_loss=None, sop_loss=None, group_samples=None)]
)
def test_a_report_arrives_as_it_was_sent(report: StepReport) -> None:
    """Every field comes through, and what is unknown stays unknown."""
    message = report_to_wire(7, 100.5, report)
    assert (message.seq, message.time) == (7, 100.5)
    assert report_from_wire(message) == report


@pytest.mark.parametrize(("claim", "bound"), CLAIM_BOUNDS.items(), ids=CLAIM_BOUNDS)
def test_the_message_carries_each_claim_as_it_is_declared(claim: str, bound: Bound) -> None:
    """Under the same name, and of the same kind; what may be unknown can be left out."""
    declared, carried = get_type_hints(StepReport)[claim], Message.DESCRIPTOR.fields_by_name[claim]
    kinds = {*get_args(declared)} or {declared}
    whole = {carried.TYPE_UINT64} if bound.storable > MAX_COUNT else {carried.TYPE_UINT32, carried.TYPE_UINT64}
    carriers = {str: {carried.TYPE_STRING}, float: {carried.TYPE_DOUBLE}, int: whole}
    assert [carried.type in carriers[kind] for kind in kinds - {NoneType}] == [True]
    assert carried.has_presence == (NoneType in kinds)


def test_the_message_carries_nothing_undeclared() -> None:
    """Beside a report's claims only its number, its time, and its losses by cause."""
    assert {*Message.DESCRIPTOR.fields_by_name} - {*CLAIM_BOUNDS} == {"seq", "time", "lost"}


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
    message = report_to_wire(7, 100.5, REPORT)
    setattr(message, field, value)
    with pytest.raises(RequestError, match=field):
        report_from_wire(message)


def test_what_a_coordinator_says_commands_no_terminal() -> None:
    """It may be shown beside a command to copy: an escape could put another one into the clipboard."""
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.FAILED_PRECONDITION, grpc.aio.Metadata(), grpc.aio.Metadata(), "a\x1b]52;c;eA==\x07\r\nb"
    )
    assert "(failed_precondition: a ]52;c;eA==   b)" in str(error_from_rpc(error))
    assert told("শুভ\u200cেচ্ছা \x9b2J\x7f") == "শুভ\u200cেচ্ছা  2J "


def test_one_reason_stands_for_all_that_an_older_peer_lost() -> None:
    """A report without causes counts its lost samples under the reason it names, or under `other`."""
    message = report_to_wire(7, 100.5, replace(REPORT, lost={}))
    assert report_from_wire(message).lost == {"out of sync": 4}
    message.lost_reason = "sunspots"
    assert report_from_wire(message).lost == {"other": 4}


def test_causes_that_do_not_add_up_are_refused() -> None:
    """The parts are the whole."""
    with pytest.raises(RequestError, match="`lost` names 5 samples"):
        report_from_wire(report_to_wire(7, 100.5, replace(REPORT, lost={"late": 5})))


def test_losses_arrive_as_they_were_sent() -> None:
    """What no report can tell of comes through by cause; causes that nobody here knows are `other`."""
    message = lost_to_wire(8, 99.5, Lost(3, {"left": 12, "sunspots": 1, "<b>": 2, "late": 0}))
    assert (message.seq, message.time) == (8, 99.5)
    assert lost_from_wire(message) == Lost(3, {"left": 12, "other": 3})


@pytest.mark.parametrize(
    "lost", [Lost(0, {"left": 1}), Lost(1, {"left": MAX_COUNT + 1}), Lost(1, dict.fromkeys(map(str, range(17)), 1))]
)
def test_losses_beyond_bounds_are_refused(lost: Lost) -> None:
    """No step 0, no more samples than a column holds, no more causes than there can be."""
    assert MAX_CAUSES == 16
    with pytest.raises(RequestError, match=r"`step`|causes"):
        lost_from_wire(lost_to_wire(8, 99.5, lost))
