"""What a stage of the doctor's finds, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

Data = Mapping[str, Any]  # what JSON can hold


class Verdict(str, Enum):
    """How good a finding is; only `failed` keeps a machine from taking part."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    """What one check found; `found` and `remedy` are a sentence each."""

    verdict: Verdict
    found: str
    remedy: str = ""  # of every warning and failure
    data: Data = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """An outcome and the stage that it is of."""

    stage: str
    outcome: Outcome

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    @property
    def sentence(self) -> str:
        """What was found and what to do, for people."""
        return f"{self.outcome.found} {self.outcome.remedy}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """The finding for scripts."""
        return {"stage": self.stage} | asdict(self.outcome)


def ok(found: str, **data: Any) -> Outcome:
    """All is well."""
    return Outcome(Verdict.OK, found, data=data)


def warning(found: str, remedy: str, **data: Any) -> Outcome:
    """It will do, but could be better."""
    return Outcome(Verdict.WARNING, found, remedy, data)


def failed(found: str, remedy: str, **data: Any) -> Outcome:
    """This machine cannot take part like this."""
    return Outcome(Verdict.FAILED, found, remedy, data)


def skipped(why: str) -> Outcome:
    """It could not be examined, or there is nothing to examine."""
    return Outcome(Verdict.SKIPPED, why)
