"""Signed evaluation reports, which an evaluator can send over untrusted connections.

A report is a statement (`auth.statements`) of the run, the checkpoint and the result, signed with
the evaluator's Ed25519 key. A report contains no secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field

from auth.errors import RequestError, StorageError
from auth.files import write_private
from auth.statements import Statement, is_signed_by, sign_body
from coordinator.evaluation.tasks.results import Digest, TaskResult

MAX_BODY_CHARS = 56 * 1024  # a request of 64 KiB must also hold the key and the signature


class EvaluationReport(Statement):
    """An evaluator's result for one task on one checkpoint."""

    noun: ClassVar[str] = "report"
    report: Literal["manyhands-evaluation-v1"] = "manyhands-evaluation-v1"
    run: Annotated[str, Field(min_length=1, max_length=40)]
    step: Annotated[int, Field(ge=0, le=2**31 - 1)]
    manifest_sha256: Digest
    evaluated_at: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]  # Unix time in seconds
    result: TaskResult


class SignedReport(BaseModel):
    """The wire format of a report: canonical text, the evaluator's public key and the signature."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    body: Annotated[str, Field(max_length=MAX_BODY_CHARS)]
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(max_length=100)]  # base64

    def opened(self) -> EvaluationReport:
        """Verify the signature and parse the report; raises `RequestError` if either is invalid."""
        return EvaluationReport.opened(self.body, is_signed_by(self.key, self.signature))


@dataclass(frozen=True)
class EvaluatorKey:
    """An evaluator's signing key."""

    private_key: Ed25519PrivateKey

    @classmethod
    def load_or_create(cls, path: Path) -> EvaluatorKey:
        """Load the key, or create it with file mode 0600; raises `StorageError` if that fails."""
        if not path.exists():
            write_private(path, Ed25519PrivateKey.generate().private_bytes_raw(), replace=False)
        try:
            return cls(Ed25519PrivateKey.from_private_bytes(path.read_bytes()))
        except OSError as error:
            raise StorageError(f"Cannot read {path} ({error.strerror}).") from error
        except ValueError as error:
            raise StorageError(f"{path} does not hold a key of 32 bytes: move it away to get a new one.") from error

    @property
    def public_hex(self) -> str:
        """The public key in hexadecimal, which the operator enters to allow the evaluator."""
        return self.private_key.public_key().public_bytes_raw().hex()

    def sign(self, report: EvaluationReport) -> SignedReport:
        """Sign a report; raises `RequestError` if it exceeds the size limit."""
        body = report.body
        if len(body) > MAX_BODY_CHARS:
            raise RequestError(
                f"A report may have {MAX_BODY_CHARS} characters, not {len(body)}: probe fewer templates, or take fewer "
                "seeds."
            )
        return SignedReport(body=body, key=self.public_hex, signature=sign_body(self.private_key, body))
