"""Auxiliary peers in a real swarm: they average with the trainers, train nothing, and are credited for bytes."""

from __future__ import annotations

import time
from pathlib import Path

from coordinator.ledger.presence import online_sessions
from coordinator.ledger.reading import Contribution
from tests.support.commands import HOST, Site
from tests.support.swarms import MICROBATCH, TARGET, SwarmFactory, relative_difference, require_one_state, train_alone

STEPS = 3


def test_average_with_an_auxiliary_peer_is_the_trainers(swarm: SwarmFactory) -> None:
    """It is in every group, reduces a share of the gradients, and changes no number."""
    keeper = swarm.start_keeper()
    parts = TARGET // 2 // MICROBATCH
    assistant = swarm.start("assistant", "auxiliary", last_step=STEPS)
    assistant.joined()
    trainers = [
        swarm.start(f"trainer-{seed}", "trainer", seed=seed, microbatches_per_step=parts, last_step=STEPS)
        for seed in (1, 2)
    ]
    step = averaged = 0
    while step < STEPS:
        outcome = assistant.wait_for_step(step + 1)
        step = outcome["step"]
        if outcome["averaged"]:  # else an answer was lost on the way, and the keeper's state taken instead
            averaged += 1
            assert (outcome["samples"], outcome["group_samples"]) == (0, TARGET)
            assert outcome["averaged_bytes"] > 0
    assert averaged > 0
    for trainer in trainers:
        trainer.wait_for_step(STEPS)
    keeper.wait_for_step(STEPS)
    together = [peer.stop() for peer in [assistant, *trainers, keeper]]
    assert relative_difference(together[0], train_alone(STEPS, [1, 2], parts)) < 1e-4
    require_one_state(together)


def test_a_volunteer_assists_by_command(tmp_path: Path) -> None:
    """`manyhands assist` is counted by bytes, not by samples, and leaves in order."""
    site = Site(tmp_path)
    try:
        serve = site.serve()
        options = ["--state-dir", str(tmp_path / "bob"), "--listen", f"/ip4/{HOST}/tcp/0", "--no-panel"]
        [invite] = site.membership.invite("bob", role="auxiliary")
        assistant = site.start("bob", "assist", str(site.run.join_link), *options, invite=invite)
        site.wait_until(
            "a device assists",
            lambda: any(stay.state == "assisting" for stay in online_sessions(site.database, time.time())),
        )
        # a line far slower than the other trainers' reduces nothing: bob's may be measured while this machine is busy
        trainer = site.join("ada", True, "--max-upload-rate", "2")
        given: dict[str, Contribution] = {}

        def both_are_counted() -> bool:
            given.update({row.member: row for row in site.ledger.contributions()})
            return {"ada", "bob"} <= given.keys() and given["ada"].samples > 0 and given["bob"].averaged_bytes > 0

        site.wait_until("both devices' samples are counted", both_are_counted)
        assert given["bob"].samples == 0
        for command in (assistant, trainer, serve):
            code, left = command.terminate()
            assert (code, left) == (0, [])
        log = (tmp_path / "bob.log").read_text()
        assert "Averaging for the others from global step" in log
        assert "Traceback" not in log
    finally:
        site.close()
