"""What one process finds out and another is told."""

from __future__ import annotations

import multiprocessing as mp

from peer.findings import MOST_DETAIL_CHARS, MOST_WAITING, Finding, Findings


def test_findings_come_from_another_process_in_order() -> None:
    """All that was said before a process ended can be taken once."""
    findings, context = Findings(), mp.get_context("fork")
    said = [Finding("a", "parts", "sent rubbish"), Finding("b", "gradient", "sent too much")]

    def find() -> None:
        for finding in said:
            findings.tell(finding)

    process = context.Process(target=find)
    process.start()
    process.join()
    assert findings.take() == said
    assert findings.take() == []


def test_what_nobody_takes_is_bounded() -> None:
    """Who tells never waits; long details are cut, and what does not fit is dropped."""
    findings = Findings()
    for _ in range(10 * MOST_WAITING):
        findings.tell(Finding("a" * 1000, "parts", "b" * 10_000))
    taken = findings.take()
    assert len(taken) == MOST_WAITING
    assert len(taken[0].detail) == MOST_DETAIL_CHARS
    findings.tell(Finding("a", "parts", "again"))
    assert len(findings.take()) == 1
