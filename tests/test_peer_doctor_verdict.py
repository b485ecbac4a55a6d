"""The doctor's last word."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from peer.doctor.context import Context, Options
from peer.doctor.description import RunDescription
from peer.doctor.findings import Finding, failed, ok, skipped, warning
from peer.doctor.questions import Speed
from peer.doctor.verdict import conclude, samples_per_step
from peer.run_config import RunConfig

GOOD = [Finding("disk", ok("Fine.")), Finding("quic", skipped("None.")), Finding("proxy", warning("Odd.", "Look."))]


def context_with(rate: float | None, reachable: bool | None = None, swarm_rate: float | None = None) -> Context:
    context = Context(Options(Path("unused")))
    context.reachable = reachable
    context.speed = None if rate is None else Speed(samples_per_second=rate)
    if swarm_rate is not None:
        context.description = RunDescription(RunConfig(), (), ip_address("192.0.2.1"), swarm_rate)
    return context


def test_failures_are_counted_and_named() -> None:
    """Whatever else is well."""
    bad = [Finding("tcp", failed("Closed.", "Open it.")), Finding("disk", failed("Full.", "Make room."))]
    conclusion = conclude([*GOOD, *bad], context_with(5.0, True, 0.0))
    assert not conclusion.fit
    assert "2 of 5 stages failed (`tcp`, `disk`)" in conclusion.text
    assert conclusion.samples_per_step is None


@pytest.mark.parametrize(
    ("reachable", "relays", "words"),
    [(True, True, "directly reachable"), (False, True, "as a relayed peer"), (False, False, "as a client")],
)
def test_a_fit_machine_hears_what_it_would_add(reachable: bool, relays: bool, words: str) -> None:
    """Its share of a step beside those who train now, and as what kind of peer."""
    context = context_with(10.0, reachable, 30.0)
    context.relays = relays
    conclusion = conclude(GOOD, context)
    assert conclusion.fit
    assert "about 1,024 samples a step" in conclusion.text
    assert conclusion.samples_per_step == 1024
    assert words in conclusion.text


def test_without_a_run_there_is_a_speed_only() -> None:
    """Of the demo's model, as the person is told."""
    conclusion = conclude(GOOD, context_with(12.34))
    assert conclusion.fit
    assert "12.3 samples a second of the demo's model" in conclusion.text


def test_without_a_speed_nothing_is_promised() -> None:
    """As after the network's stages alone."""
    assert conclude(GOOD, context_with(None)).text == "Nothing stands in the way."


def test_the_share_is_by_speed() -> None:
    """Alone one fills the whole batch."""
    assert samples_per_step(2.0, 0.0, 4096) == 4096
    assert samples_per_step(2.0, 2.0, 4096) == 2048
