"""The checkpoint that joining peers are offered, from the coordinator's table to the worker."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import torch

from auth.errors import TokenError
from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.checkpoints.writing import take_snapshot, write_checkpoint
from coordinator.ledger.presence import record_checkpoint
from peer.protocol import STATE_FILES
from peer.reporting.messages import CheckpointFetched, Ready
from tests.support import worker_mains
from tests.support.agents import make_agent
from tests.support.control_plane import TestCoordinator, connected, join_as, serving, write_status
from tests.support.waiting import PATIENCE_S, eventually

KEEPER = "/ip4/127.0.0.1/tcp/31337/p2p/Qm"


def add_checkpoint(coordinator: TestCoordinator, step: int, withheld: str = "") -> StoredCheckpoint:
    """Write and record one."""
    model = torch.nn.Linear(3, 3)
    stored = write_checkpoint(
        coordinator.directory.checkpoints_dir,
        take_snapshot(step, model, torch.optim.SGD(model.parameters())),
        run="test",
        era=0,
        texts={},
        tokenizer_dir=coordinator.directory.tokenizer_dir,
        probe={},
        probe_loss=None,
        created_at=0.0,
    )
    record_checkpoint(
        coordinator.services.database,
        step=step,
        size_bytes=stored.size_bytes,
        manifest_sha256=stored.manifest_sha256,
        now=0.0,
        withheld=withheld,
    )
    return stored


async def test_members_are_offered_the_newest_that_is_published(tmp_path: Path) -> None:
    """With the digests of its state and the swarm's step; strangers are not, nor is what was withheld or is gone."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        with pytest.raises(TokenError):
            await client.newest_checkpoint("a.b.c")
        token = (await join_as(coordinator, client, tmp_path / "ada", "ada")).token_jwt
        assert not (await client.newest_checkpoint(token)).address  # neither a keeper nor a checkpoint yet
        write_status(coordinator, KEEPER)
        stored = add_checkpoint(coordinator, 2)
        add_checkpoint(coordinator, 3, withheld="its loss is not finite")
        offer = await client.newest_checkpoint(token)
        assert (offer.step, offer.swarm_step) == (2, 3)
        assert offer.address == f"{coordinator.directory.settings.web_address}/api/v1/checkpoints/2"
        entries = stored.manifest.files
        assert [(file.name, file.size_bytes, file.sha256.hex()) for file in offer.files] == [
            (name, entries[name].size_bytes, entries[name].sha256) for name in STATE_FILES
        ]
        shutil.rmtree(stored.path)
        assert not (await client.newest_checkpoint(token)).address


async def test_a_worker_hears_that_there_is_none(tmp_path: Path) -> None:
    """It asks its agent, which asks the coordinator, and goes to the swarm then."""
    async with serving(tmp_path) as coordinator:
        agent, shown = make_agent(coordinator, tmp_path / "ada", worker_mains.asks_for_a_checkpoint)
        running = asyncio.create_task(agent.run())
        await eventually("the agent is ready", lambda: any(isinstance(event, Ready) for event in shown.events))
        answer = next(event.device for event in shown.events if isinstance(event, Ready))
        assert answer == repr(CheckpointFetched(0, ""))
        agent.stop("test")
        await asyncio.wait_for(running, PATIENCE_S)
