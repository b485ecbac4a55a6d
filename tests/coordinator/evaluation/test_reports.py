"""Signed reports: what is sent is what arrives, and nothing else passes for it."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import pytest

from auth.errors import RequestError, StorageError
from coordinator.evaluation.reports import EvaluationReport, EvaluatorKey, SignedReport
from tests.support.evaluated_runs import NER, made_up


def report(**changes: object) -> EvaluationReport:
    """A report."""
    content = {"run": "small", "step": 5, "manifest_sha256": "1" * 64, "evaluated_at": 7.0, "result": made_up(NER, 0.5)}
    return EvaluationReport.model_validate({**content, **changes})


def test_the_key_is_private_and_stays(evaluator_key: EvaluatorKey, tmp_path: Path) -> None:
    """Only its owner reads it, a second start finds the same one, and what is no key is said."""
    path = tmp_path / "evaluator.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert EvaluatorKey.load_or_create(path).public_hex == evaluator_key.public_hex
    path.write_bytes(b"short")
    with pytest.raises(StorageError, match="32 bytes"):
        EvaluatorKey.load_or_create(path)


@pytest.mark.parametrize(
    "body",
    ["{}", "[" * 5000, json.dumps({**json.loads(report().body), "step": -1}), json.dumps(json.loads(report().body))],
)
def test_what_is_signed_but_no_report_is_refused(evaluator_key: EvaluatorKey, body: str) -> None:
    """Unknown forms, and a form that is not the canonical one."""
    signature = base64.b64encode(evaluator_key.private_key.sign(body.encode())).decode()
    with pytest.raises(RequestError):
        SignedReport(body=body, key=evaluator_key.public_hex, signature=signature).opened()
