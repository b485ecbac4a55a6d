"""A certificate of contribution of a member with a hostile name."""

from __future__ import annotations

from auth.certificates import Certificate

CERTIFICATE = Certificate(
    run="sahajbert",
    member="<img src=x onerror=alert(1)> \u202eevil",
    number=12,
    samples=123_456,
    steps=300,
    active_days=4,
    first_day="2026-11-01",
    last_day="2026-11-22",
    training_s=7200,
    averaged_bytes=10**12,
    devices=("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",),
    issued_at=1_795_000_000,
)
