"""Steering by the keeper, which publishes operators' commands to the swarm and follows them."""

from __future__ import annotations

from coordinator.keeper.checkpointing import Checkpointing
from coordinator.keeper.way_chooser import WayChooser
from coordinator.ledger.steering import read_helm
from coordinator.store.engine import Database, log_trouble
from peer.swarm.swarm import Swarm


def steer(database: Database, swarm: Swarm, checkpointing: Checkpointing, chooser: WayChooser) -> None:
    """Apply operators' commands; if the run has ended, write a checkpoint of its last step."""
    with log_trouble("operators' commands are not followed"):
        helm = read_helm(database)
        swarm.steer(helm.beacon(swarm.step))
        checkpointing.every_steps = helm.at(swarm.step).checkpoint_every
        if not swarm.has_ended:
            chooser.look(helm, swarm.step, swarm.slow_lines)
        else:
            checkpointing.write_if_due(stopping=True)
