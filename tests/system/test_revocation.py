"""Who is shut out is soon let in nowhere: a real coordinator and volunteer, and devices that knock at all doors."""

from __future__ import annotations

import pytest

from benchmarks.trust.knocker import DOORS
from benchmarks.trust.revocation import Knocks, measure
from tests.support.small_run import small_config

EVERYWHERE = {(peer, door) for peer in ("keeper", "volunteer") for door in DOORS}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Knocks]:
    """All three cases, in one run."""
    directory = tmp_path_factory.mktemp("revocation")
    return measure(directory, small_config(directory), short_life_s=20.0)


@pytest.mark.parametrize("case", ["revoked", "quarantined", "service down"])
def test_every_door_closes(measured: dict[str, Knocks], case: str) -> None:
    """All doors of all honest peers are open before and closed for good afterwards, long before the token expires.

    With the service down, who has not heard of it closes when the token expires.
    """
    knocks = measured[case]
    assert knocks.before == EVERYWHERE
    assert set(knocks.last_s) == EVERYWHERE
    assert max(knocks.last_s.values()) < knocks.expired_after_s, knocks


def test_the_keeper_hears_without_the_service(measured: dict[str, Knocks]) -> None:
    """It reads the list itself, so its doors close before the volunteer's, who must wait for the expiry."""
    last = measured["service down"].last_s
    assert max(last["keeper", door] for door in DOORS) < max(last["volunteer", door] for door in DOORS)
