"""Rows of other folders that the public API sends as they are: no new field of theirs becomes public unnoticed."""

from __future__ import annotations

from starlette.testclient import TestClient

FIELDS = {
    "CheckpointRow": "step size_bytes manifest_sha256 created_at withheld",
    "ReturnPoint": "step is_before",
    "Chunk": "first last steps_per_chunk devices moments",
    "MomentDevice": "number member hardware",
    "Moment": (
        "step era completed_at loss samples target_batch_size shares groups lost refused online undone returned"
    ),
    "Group": "size samples averaging_s devices",
    "LostShare": "device samples reason",
    "Milestone": "kind value step at",
    "LossFacts": "cause samples times last_day last_step",
    "StepsFacts": "count first last ranges",
    "Candidate": "token probability",
    "Notebooks": "colab kaggle",
    "Streaks": "current longest active_days",
    "Invitation": "code command one_line with_uv container page",
    "QrCode": "size path",
}


def test_rows_that_are_sent_as_they_are_have_these_fields(client: TestClient) -> None:
    """No more, and each of them in every answer."""
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for name, fields in FIELDS.items():
        assert sorted(schemas[name]["properties"]) == sorted(fields.split()), name
        assert sorted(schemas[name]["required"]) == sorted(fields.split()), name
