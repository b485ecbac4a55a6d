"""Statements: signatures of earlier versions stay valid, and one content has one spelling."""

from __future__ import annotations

import json
import math
from typing import ClassVar, Literal

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, strategies as st

from auth.certificates import open_certificate, read_certificate, sign_certificate, write_certificate
from auth.errors import RequestError
from auth.keys import AuthorityKey, ReceiptKey
from auth.receipts import ReceiptBody, open_receipt, read_receipt, sign_receipt
from auth.statements import Statement, is_signed_by, sign_body
from coordinator.evaluation.reports import EvaluationReport, EvaluatorKey, SignedReport
from coordinator.evaluation.tasks.results import SeedResult, TaskResult
from tests.support.certificates import CERTIFICATE

KEY = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
PUBLIC = "af06a3e3291714e4f356c19c9b15cd1951ec6e6662aa77be07547f289383341d"
# Signatures that were made before this module was.
OF_RECEIPT = "1ldxxLAv5Dle1DoiHdmosaLa8UFf9lIIYomWqZJUtvibH43HlKGUdXpqBCE0/V8W8F+1JT+O5RNnjb5etqYNCA=="
OF_CERTIFICATE = "mQRiS0A6/x4Qu3ZSGAT8n9XuTT2sCVV6LhP8FStg5H3Vm/miUze/VuSka73xEIT2BZHsyBip7r/veyaFjpaaBA=="
OF_REPORT = "e2/ATOEgypsB/55G0ohNhxTZHxm5CW5wI0k9QYwJ4F50OraIJWE2CtUWj/mMcUnpDD1xkIv6DSn3b1A0ME+lDw=="


def test_earlier_receipts_stay_valid() -> None:
    """A signature under a receipt of an earlier version holds for the bytes of today, and they are signed alike."""
    receipt = ReceiptBody(run="sahaj-বাংলা", era=2, step=7, samples={PUBLIC: 12, "0f" * 32: 20})
    assert open_receipt(read_receipt(f"{receipt.body}\n{OF_RECEIPT}"), PUBLIC) == receipt
    assert sign_receipt(ReceiptKey(KEY), receipt).signature == OF_RECEIPT


def test_earlier_certificates_stay_valid() -> None:
    """The authority's signature under a certificate is the same as ever, and so is the file."""
    named = ("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",)
    first = {"certificate": "manyhands-certificate-v1", "devices": named}
    certificate = CERTIFICATE.model_copy(update={"run": "sahaj-বাংলা", "member": "Ada", **first})
    content = {"body": certificate.body, "signature": OF_CERTIFICATE, "authority_key": PUBLIC}
    text = json.dumps(content, indent=1) + "\n"
    assert write_certificate(sign_certificate(AuthorityKey(KEY), certificate)) == text
    assert open_certificate(read_certificate(text)) == certificate


def test_earlier_reports_stay_valid() -> None:
    """The evaluator's signature under a report is the same as ever: one that waited in an outbox is taken."""
    result = TaskResult(
        task="ner",
        kind="ner",
        metric="f1",
        higher_is_better=True,
        task_sha256="2" * 64,
        examples=10,
        seeds=(SeedResult(seed=1, scores={"f1": 0.1 + 0.2}),),
        elapsed_s=1e-7,
    )
    report = EvaluationReport(run="small", step=5, manifest_sha256="1" * 64, evaluated_at=7.0, result=result)
    signed = SignedReport(body=report.body, key=PUBLIC, signature=OF_REPORT)
    assert EvaluatorKey(KEY).sign(report) == signed
    assert signed.opened() == report


class Measured(Statement):
    """A statement with a value of each kind."""

    noun: ClassVar[str] = "measurement"
    measured: Literal["test-v1"] = "test-v1"
    name: str
    count: int
    values: dict[str, float]


def opened(body: str) -> Measured:
    """What is read of these bytes, under a signature that is right."""
    return Measured.opened(body, is_signed_by(PUBLIC, sign_body(KEY, body)))


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(name=TEXTS, count=st.integers(-(2**62), 2**62), values=st.dictionaries(TEXTS, NUMBERS))
def test_a_statement_says_what_was_signed(name: str, count: int, values: dict[str, float]) -> None:
    """Whatever texts and numbers are in it, to the last bit."""
    statement = Measured(name=name, count=count, values=values)
    assert opened(statement.body) == statement


@given(name=TEXTS, others=TEXTS)
def test_no_two_statements_share_a_spelling(name: str, others: str) -> None:
    """Equal bytes mean equal statements."""
    one, other = (Measured(name=text, count=1, values={}) for text in (name, others))
    assert (one.body == other.body) == (one == other)


BODY = Measured(name="ü", count=7, values={"a": 1.5, "b": 2.0}).body


@pytest.mark.parametrize(
    "body",
    [
        BODY.replace(",", ", "),
        BODY.replace('"count":7,', '"count":7,"count":7,'),
        BODY.replace('"count":7', '"count":7.0'),
        BODY.replace('"count":7', '"count":"7"'),
        BODY.replace('"count":7', '"count":' + "9" * 5000),
        BODY.replace("1.5", "1.50"),
        BODY.replace("1.5", "15e-1"),
        BODY.replace("2.0", "2"),
        BODY.replace("1.5", "NaN"),
        BODY.replace("1.5", "1e999"),
        BODY.replace("test-v1", "test-v2"),
        BODY.replace('"count":7', '"count":7,"more":1'),
        BODY.replace(r"\u00fc", "ü"),
        BODY.replace(r"\u00fc", r"\u00FC"),
        BODY.replace(r"\u00fc", r"\ud800"),
        "[" * 20_000,
        BODY + " ",
        "\ud800",
        "",
    ],
)
def test_another_spelling_is_refused(body: str) -> None:
    """A right signature makes no statement of what is not in its one form."""
    assert body != BODY
    with pytest.raises(RequestError, match="measurement"):
        opened(body) if body.isascii() else Measured.opened(body, lambda content: True)


def test_numbers_that_are_none_cannot_be_signed() -> None:
    """JSON has no infinity."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        _ = Measured(name="", count=0, values={"a": math.inf}).body


@pytest.mark.parametrize("signature", ["", "!", "AAAA", sign_body(KEY, BODY + " "), sign_body(KEY, BODY)[:-4]])
@pytest.mark.parametrize("key", [PUBLIC, "0" * 64, "no", ""])
def test_a_signature_that_is_none_is_refused(key: str, signature: str) -> None:
    """Whatever stands in the place of key and signature: one sentence."""
    with pytest.raises(RequestError, match="not signed with the key"):
        Measured.opened(BODY, is_signed_by(key, signature))
