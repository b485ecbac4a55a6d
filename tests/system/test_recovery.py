"""A whole run, through the command line, while its processes are killed, revoked and told to leave."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AlbertForPreTraining

from auth.errors import RevokedError
from coordinator.checkpoints.manifest import newest_verified, verify
from coordinator.ledger.keeper_status import read_swarm_status
from tests.support.commands import NAMES, Site, expect_no_survivors, service_of
from tests.support.small_run import TARGET_BATCH_SIZE
from tests.support.waiting import PATIENCE_S


def test_everything_is_killed_behind_a_phases_boundary_and_comes_back(tmp_path: Path) -> None:
    """Who is there and who comes later fill the new phase's batch, and its first checkpoint begins the phase.

    After `kill -9` of all processes the run resumes from that checkpoint, and the ledger has each step once.
    """
    target = TARGET_BATCH_SIZE // 2
    site = Site(tmp_path, [{"from_step": 2, "sequence_length": 64, "target_batch_size": target, "optimizer": "fresh"}])
    try:
        commands = [site.serve(), site.join("ada", first=True)]
        site.wait_until("the ledger has step 3", lambda: site.ledger.last_step() >= 3)
        commands.append(site.join("grace", first=True))
        site.wait_for_step(4)
        for command in commands:
            command.kill()
        reached = site.ledger.last_step()
        targets = {row.step: row.target_batch_size for row in site.ledger.steps()}
        assert targets == {step: TARGET_BATCH_SIZE if step <= 2 else target for step in targets}
        for command in commands[1:]:
            assert f"Phase 2 of 2, from step 2 on: 64 tokens, {target} samples" in command.log_path.read_text()

        boundary = verify(site.run.checkpoints_dir / "step-00000002").path
        assert not any(tensor.any() for tensor in load_file(boundary / "optimizer.safetensors").values())
        assert load_file(boundary / "probe.safetensors")["input_ids"].shape[1] == 64
        for path in site.run.checkpoints_dir.glob("step-*"):
            if path != boundary:
                shutil.rmtree(path)
        site.serve(expect_no_survivors)
        status = read_swarm_status(site.database)
        assert status is not None
        assert (status.step, status.target_batch_size) == (2, target)
        for name in NAMES:
            site.join(name, first=False)
        site.wait_for_step(reached + 1)
        site.assert_ledger_is_right()
        assert site.ledger.current_era() == 1
    finally:
        site.close()


def test_service_is_killed_then_a_member_is_revoked_and_the_other_leaves(site: Site) -> None:
    """Training outlives the service; no report is lost; revoked, a command ends with 11, and told to leave, with 0.

    A keeper that has lost its p2p daemon comes back with another, before anybody trains.
    """
    serve = site.serve()
    (daemon,) = serve.daemons()
    daemon.kill()
    site.wait_until(
        "the keeper has lost its daemon",
        lambda: "The p2p daemon of this peer's swarm node has died" in serve.log_path.read_text(),
    )
    began = time.time()
    site.wait_until(
        "the keeper has said again where the swarm stands",
        lambda: (status := read_swarm_status(site.database)) is not None and status.updated_at > began,
    )
    assert serve.daemons() != [daemon]
    ada, grace = (site.join(name, first=True) for name in NAMES)
    site.wait_for_step(2)
    before = site.ledger.last_step()
    service_of(serve, site.run.settings.control_port).kill()
    site.wait_for_step(before + 3)
    site.assert_ledger_is_right()

    site.start("revoke", "coordinator", "revoke", str(site.run.path), "grace", "--reason", "a test").process.wait(
        PATIENCE_S
    )
    assert grace.process.wait(timeout=PATIENCE_S) == RevokedError.exit_code
    reached = site.ledger.last_step()
    site.wait_until(
        "ada alone has taken two more steps", lambda: site.ledger.last_step() >= reached + 2
    )  # alone, without grace

    exit_code, left = ada.terminate()
    assert (exit_code, left) == (0, [])
    exit_code, left = serve.terminate()
    assert (exit_code, left) == (0, [])

    checkpoint = newest_verified(site.run.checkpoints_dir)
    assert checkpoint is not None
    assert checkpoint.manifest.step >= reached + 2  # written on leaving
    model = AlbertForPreTraining.from_pretrained(checkpoint.path).eval()
    with torch.no_grad():
        loss = float(model(**load_file(checkpoint.path / "probe.safetensors")).loss)
    assert loss == pytest.approx(checkpoint.manifest.probe_loss, abs=1e-5)
