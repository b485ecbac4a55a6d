"""Volunteers on lines of different rates, behind routers and a firewall: all of them contribute.

A coordinator and six volunteers start, each on a host of its own in a network namespace: some twenty processes on two
cores. That is why it takes a minute.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.support.network import HostPlan, Network, why_impossible
from tests.support.commands import Site

COORDINATOR = HostPlan("hub", 200)
REACHED = (HostPlan("fast", 200), HostPlan("middle", 100), HostPlan("slow", 50))
HIDDEN = (HostPlan("router1", 100, "nat"), HostPlan("router2", 50, "nat"), HostPlan("wall", 50, "firewall"))


@pytest.mark.skipif(bool(why_impossible()), reason=f"hosts cannot be made here: {why_impossible()}")
def test_all_contribute_wherever_they_are(tmp_path: Path) -> None:
    """Three peers that others reach, two behind routers and one behind a firewall fill the batch together."""
    with Network([COORDINATOR, *REACHED, *HIDDEN]) as hosts:
        site = Site(tmp_path, host=hosts["hub"].address)
        try:
            site.serve(hosts["hub"].enter)
            for plan in (*REACHED, *HIDDEN):
                [invite] = site.membership.invite(plan.name)
                options = ["--state-dir", str(tmp_path / plan.name), "--threads", "1", "--no-panel"]
                link, begin = str(site.run.join_link), hosts[plan.name].enter
                site.start(plan.name, "join", link, *options, invite=invite, begin=begin)
            everybody = {plan.name for plan in (*REACHED, *HIDDEN)}
            site.wait_until(
                "everybody has contributed",
                lambda: {row.member for row in site.ledger.contributions() if row.samples} >= everybody,
            )
        finally:
            site.close()
    for plan in REACHED:
        assert "Others can reach this machine" in (tmp_path / f"{plan.name}.log").read_text()
    for plan in HIDDEN:
        assert "Others cannot reach this machine directly" in (tmp_path / f"{plan.name}.log").read_text()
        worker_log = (tmp_path / plan.name / "data" / "worker.log").read_text()
        assert "a relay lets others reach this peer" in worker_log
