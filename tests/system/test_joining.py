"""Who joins takes the run's state from a checkpoint, which spares the donor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from coordinator.checkpoints.manifest import newest_verified
from tests.support.commands import NAMES, Command, Site
from tests.support.waiting import PATIENCE_S


def test_who_joins_a_run_that_waits_takes_the_checkpoint_over_the_web(site: Site) -> None:
    """After a restart nobody asks the keeper for its state, and training goes on from it."""
    serve, volunteers = site.serve(), [site.join(name, first=True) for name in NAMES]
    site.wait_for_step(3)
    site.start("pause", "coordinator", "pause", str(site.run.path)).process.wait(PATIENCE_S)
    with ThreadPoolExecutor() as pool:
        list(pool.map(Command.terminate, volunteers))
    serve.terminate()
    reached = newest_verified(site.run.checkpoints_dir)
    assert reached is not None

    site.serve()
    for name in NAMES:
        (site.base / f"{name}.log").unlink()
        site.join(name, first=False)
    took = f"Took the run's state after step {reached.manifest.step} from its checkpoint."
    site.wait_until(
        "both volunteers have taken the checkpoint",
        lambda: all(took in (site.base / f"{name}.log").read_text() for name in NAMES),
    )
    site.start("resume", "coordinator", "resume", str(site.run.path)).process.wait(PATIENCE_S)
    site.wait_for_step(reached.manifest.step + 1)
    site.assert_ledger_is_right()
    assert not any((site.base / name / "data" / "checkpoint").exists() for name in NAMES)
