"""Peers that compute with JAX, or on several devices, among peers that compute with PyTorch on one."""

from __future__ import annotations

from tests.support.swarms import CONFIG, MICROBATCH, SwarmFactory, relative_difference, require_one_state, train_alone

STEPS = 5
PARTS = 4  # microbatches of each trainer in a step
DEVICES = {1: "cpu", 2: "replicas", 3: "jax"}  # by seed


def test_mixed_swarm_equals_one_plain_pytorch_process(swarm: SwarmFactory) -> None:
    """One device, replicas on three, and eight of JAX among which microbatches are divided: one result."""
    target = PARTS * MICROBATCH * len(DEVICES)
    config = {**CONFIG, "averaging": {**CONFIG["averaging"], "target_batch_size": target}}
    keeper = swarm.start_keeper(config=config)
    trainers = [
        swarm.start(
            f"{device}-{seed}",
            "trainer",
            config,
            seed=seed,
            device=device,
            microbatches_per_step=PARTS,
            last_step=STEPS,
        )
        for seed, device in DEVICES.items()
    ]
    for trainer in trainers:
        step = averaged = 0
        while step < STEPS:
            outcome = trainer.wait_for_step(step + 1)
            step = outcome["step"]
            if outcome["averaged"]:  # else an answer was lost on the way, and the keeper's state taken instead
                averaged += 1
                assert (outcome["samples"], outcome["group_samples"]) == (PARTS * MICROBATCH, target)
        assert averaged > 0
    keeper.wait_for_step(STEPS)
    together = [peer.stop() for peer in [*trainers, keeper]]
    alone = train_alone(STEPS, list(DEVICES), PARTS)
    assert relative_difference(together[0], alone.parameters) < 1e-4
    require_one_state(together)
