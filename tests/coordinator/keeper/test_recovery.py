"""Steps that were taken while a keeper was away, and its return to a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from auth.errors import StorageError
from coordinator.checkpoints.manifest import MANIFEST, Manifest
from coordinator.keeper.recovery import SURVIVORS_STATE_S, SURVIVORS_TOLD_S
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.store.engine import Database
from tests.support.keeper_scene import MOVED, Scene


def test_survivors_are_told_where_it_is_and_nothing_is_undone(database: Database) -> None:
    """Found late, they get all the time to agree on a state that they have who are found at once."""
    scene = Scene(database, recorded=18, found_at_s=SURVIVORS_TOLD_S - 5, takes_s=SURVIVORS_STATE_S - 10)
    scene.resume()
    assert scene.told == (MOVED,)
    assert scene.step == 18
    assert not scene.state_is_own
    assert set(scene.done) == {"advanced"}


def test_without_a_checkpoint_survivors_are_looked_for_too(database: Database) -> None:
    """The steps that the ledger knows are somewhere else then, if anywhere."""
    scene = Scene(database, recorded=18, step=0, found_at_s=5.0, takes_s=1.0)
    scene.resume()
    assert scene.step == 18
    assert set(scene.done) == {"advanced"}


def test_without_survivors_the_steps_after_its_checkpoint_are_undone(database: Database) -> None:
    """Not before sessions that were opened anew can have told anybody; it takes no step meanwhile."""
    scene = Scene(database, recorded=18)
    scene.resume()
    assert scene.now >= SURVIVORS_TOLD_S
    assert scene.done == ["still the only one", "undone after 2", "restored 2 in era 1"]


def test_where_it_has_moved_it_waits_for_whose_reports_have_yet_to_come(database: Database) -> None:
    """What it says of the swarm before it knows how far that is would make their reports implausible."""
    scene = Scene(database, recorded=2, found_at_s=SURVIVORS_TOLD_S - 5, stands_still=True)
    scene.resume()
    assert scene.step == 18


def test_with_nothing_to_undo_it_trains_with_whoever_is_there(database: Database) -> None:
    """The step counts like any other."""
    scene = Scene(database, recorded=2)
    scene.resume()
    assert (scene.step, scene.done) == (3, ["advanced", "told of step 3"])


def test_a_new_run_waits_for_nobody(database: Database) -> None:
    """There can be no survivors."""
    scene = Scene(database, recorded=0, step=0)
    scene.resume()
    assert scene.done == []


def test_a_return_without_a_checkpoint_ends_it_with_a_sentence(database: Database, tmp_path: Path) -> None:
    """An operator has gone back to a checkpoint that is gone since; nothing is undone, and the lock was asked first."""
    scene = Scene(database, recorded=18, ledgers_era=1, checkpoints_dir=tmp_path / "checkpoints")
    with pytest.raises(StorageError, match="holds no checkpoint to go back to"):
        scene.run()
    assert scene.done == ["advanced", "told of step 3", "still the only one"]


@pytest.mark.parametrize(("recorded", "undone"), [(5, []), (6, ["undone after 5"])])
def test_a_return_ends_at_the_newest_checkpoint_that_is_whole(
    database: Database, tmp_path: Path, recorded: int, undone: list[str]
) -> None:
    """Where the one that the operator chose is damaged, the steps after an older one are undone, too."""
    for step in (5, 6):
        (path := tmp_path / checkpoint_name(step)).mkdir()
        manifest = Manifest(format_version=1, run="r", step=step, era=0, created_at=0.0, probe_loss=None, files={})
        (path / MANIFEST).write_text(manifest.model_dump_json())
    (tmp_path / checkpoint_name(6) / MANIFEST).write_text("damaged")
    scene = Scene(database, recorded, step=9, stands_still=True, ledgers_era=4, checkpoints_dir=tmp_path)
    scene.run()
    era = 1 if undone else 4  # a scene's ledger begins era 1
    assert scene.done[2 : 3 + len(undone)] == [*undone, f"restored 5 in era {era}"]
