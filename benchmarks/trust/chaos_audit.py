"""Checks of the run's database for chaos.py, in SQL that shares no code with the ledger.

Each check has one expected result, which `Check` compares with the actual result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine, text

from benchmarks.trust.chaos_site import Told


@dataclass(frozen=True)
class Check:
    """A check of the database after the run, with the actual and the expected result."""

    question: str
    found: object
    right: object = 0

    @property
    def holds(self) -> bool:
        """Return whether the actual result equals the expected one."""
        return self.found == self.right


@dataclass(frozen=True)
class Losses:
    """Totals so far, which never decrease during a run."""

    steps_undone: int
    samples: int  # samples reported as lost by devices
    suspicions: int
    quarantines: int


COUNTS: Mapping[str, str] = {
    "samples counted twice: a device has two reports of a step": """
        SELECT count(*) FROM (
            SELECT 1 FROM reports WHERE NOT superseded GROUP BY device_id, step HAVING count(*) > 1) AS twice""",
    "steps missing between the first and the last": """
        SELECT coalesce(max(step), 0) - count(*) FROM steps""",
    "steps whose samples are not the sum of their reports": """
        SELECT count(*) FROM steps FULL JOIN (
            SELECT step, sum(coalesce(counted, samples)) AS samples FROM reports WHERE NOT superseded GROUP BY step
        ) AS told ON told.step = steps.step
        WHERE told.samples IS DISTINCT FROM steps.samples""",
    "steps of an era that a later era has undone": """
        SELECT count(*) FROM reports JOIN eras ON eras.era > reports.era AND reports.step > eras.after_step
        WHERE NOT superseded""",
    "reports that count for more than they claim": """
        SELECT count(*) FROM reports WHERE counted > samples OR counted < 0""",
    "reports that count for more than the keeper received": """
        SELECT count(*) FROM reports
        JOIN devices ON devices.id = reports.device_id
        JOIN receipts ON receipts.step = reports.step AND receipts.era = reports.era
        JOIN devices AS signer ON signer.id = receipts.device_id AND signer.role = 'keeper'
        WHERE NOT superseded AND counted > coalesce((receipts.samples::json ->> devices.number::text)::int, 0)""",
    "devices whose daily sums are not the sum of their reports": """
        SELECT count(*) FROM (
            SELECT device_id, sum(samples) AS claimed, sum(counted) AS counted
            FROM reports WHERE NOT superseded GROUP BY device_id) AS told
        FULL JOIN (
            SELECT device_id, sum(claimed) AS claimed, sum(counted) AS counted
            FROM daily_shares GROUP BY device_id) AS summed
        ON told.device_id = summed.device_id
        WHERE coalesce(told.claimed, 0) <> coalesce(summed.claimed, 0)
            OR coalesce(told.counted, 0) <> coalesce(summed.counted, 0)""",
    "devices quarantined or revoked": """
        SELECT count(*) FROM devices WHERE quarantined_at IS NOT NULL OR revoked_at IS NOT NULL""",
    "entries of the revocation list": "SELECT count(*) FROM revocations",
}
_LOSSES = """
    SELECT (SELECT count(*) FROM (SELECT DISTINCT era, step FROM reports WHERE superseded) AS undone),
        (SELECT coalesce(sum(samples), 0) FROM lost_samples),
        (SELECT count(*) FROM suspicions) + (SELECT count(*) FROM refusals WHERE kind = 'suspicion'),
        (SELECT count(*) FROM devices WHERE quarantined_at IS NOT NULL)"""
_NAMED = """
    SELECT suspected.number, suspicions.kind, witness.role, suspicions.step, suspicions.detail FROM suspicions
    JOIN devices AS suspected ON suspected.id = suspicions.device_id
    JOIN devices AS witness ON witness.id = suspicions.witness_id ORDER BY suspicions.id"""


def losses(engine: Engine) -> Losses:
    """Return the losses and suspicions so far."""
    with engine.connect() as connection:
        row = connection.execute(text(_LOSSES)).one()
    return Losses(*map(int, row))


def named(engine: Engine) -> list[str]:
    """Describe each suspicion in a line of text."""
    with engine.connect() as connection:
        rows = connection.execute(text(_NAMED)).all()
        refused = connection.execute(
            text("SELECT code, reason FROM refusals WHERE kind = 'suspicion' ORDER BY id")
        ).all()
    lines = [
        f"device {number} by a {role}, kind {kind}, step {step}: {detail}" for number, kind, role, step, detail in rows
    ]
    return lines + [f"refusal {code}: {reason}" for code, reason in refused]


def audit(engine: Engine, told: Sequence[Told], peer_ids: Mapping[str, str]) -> list[Check]:
    """Run all checks on the whole run."""
    with engine.connect() as connection:
        checks = [Check(question, connection.execute(text(query)).scalar_one()) for question, query in COUNTS.items()]
        rows = connection.execute(
            text("SELECT peer_id, era, step, samples FROM reports JOIN devices ON devices.id = device_id")
        ).all()
    stored = {(peer_id, era, step): samples for peer_id, era, step, samples in rows}
    claimed: dict[tuple[str, int, int], set[int]] = {}
    for each in told:
        claimed.setdefault((peer_ids[each.name], each.era, each.step), set()).add(each.samples)
    missing = sorted(key for key, samples in claimed.items() if any(samples) and key not in stored)
    unlike = sorted(key for key, samples in claimed.items() if key in stored and stored[key] not in samples)
    return [
        *checks,
        Check("steps that a volunteer told of and the ledger does not have", json.dumps(missing), "[]"),
        Check("steps that the ledger has with other samples than a volunteer told", json.dumps(unlike), "[]"),
    ]
