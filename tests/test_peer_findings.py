"""Findings on their way between two processes."""

from __future__ import annotations

import multiprocessing

from peer.findings import MOST_DETAIL_CHARS, MOST_WAITING, Finding, Findings

FOUND = Finding("Qm1", "reduction", "returned an average that is not finite")


def test_a_forked_process_tells_the_other() -> None:
    """Everything comes once, in order."""
    findings = Findings()
    process = multiprocessing.get_context("fork").Process(target=findings.tell, args=(FOUND,))
    process.start()
    process.join()
    findings.tell(FOUND)
    assert findings.take() == [FOUND, FOUND]
    assert findings.take() == []


def test_nobody_waits_for_who_does_not_read() -> None:
    """What does not fit is dropped, the rest comes whole."""
    findings = Findings()
    for _ in range(2 * MOST_WAITING):
        findings.tell(Finding("Qm1", "reduction", "x" * 10_000))
    taken = findings.take()
    assert [len(found.detail) for found in taken] == [MOST_DETAIL_CHARS] * MOST_WAITING
