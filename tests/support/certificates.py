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
    devices=("af06a3e3291714e4f356c19c9b15cd1951ec6e6662aa77be07547f289383341d",),
    issued_at=1_795_000_000,
)
