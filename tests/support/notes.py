"""A list of findings, which a guard calls with each."""

from __future__ import annotations

from peer.reduction.findings import Finding


class Notes(list[Finding]):
    """The findings so far."""

    def __call__(self, finding: Finding) -> None:
        self.append(finding)
