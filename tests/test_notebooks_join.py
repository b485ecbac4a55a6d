"""The volunteer's one cell, executed as a notebook against a live coordinator.

It takes about half a minute: a real coordinator with its keeper starts, and a real worker trains a few steps.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from coordinator.directory import RunDirectory
from coordinator.ledger import Ledger
from coordinator.membership import Membership
from coordinator.presence import read_swarm_status
from coordinator.store.engine import Sessions, open_engine
from tests.small_run import make_small_run

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "join.ipynb"
TIMEOUT_S = 120.0
STAND_IN = """
import os, sys
print(sys.prefix, *sys.argv[1:], end=f", invite of {len(os.environ['MANYHANDS_INVITE'])} letters")
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RunDirectory]:
    """A small run that is being served."""
    run = make_small_run(tmp_path)
    with (tmp_path / "coordinator.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "manyhands", "coordinator", "serve", str(run.path)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: read_swarm_status(Sessions(open_engine(run.database_url))) is not None)
        yield run
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


def wait_until(true: object) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + TIMEOUT_S
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def printed(notebook: nbformat.NotebookNode) -> str:
    """All that the cells wrote."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.get("text", "") for output in outputs)


def sessions_of(run: RunDirectory) -> Sessions:
    """The run's store."""
    return Sessions(open_engine(run.database_url))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
async def test_one_cell_joins_trains_and_leaves(
    served: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell joins by invite, its samples are counted, an interrupt leaves in order, and no secret is printed."""
    sessions = sessions_of(served)
    membership = Membership(sessions, served.authority, served.config.run.name, 3600, time.time)
    code = membership.invite("nora")[0]
    monkeypatch.setenv("MANYHANDS_INSTALL", "none")
    monkeypatch.setenv("MANYHANDS_LINK", str(served.join_link))
    monkeypatch.setenv("MANYHANDS_INVITE", code)
    monkeypatch.setenv(
        "MANYHANDS_OPTIONS", f"--state-dir {tmp_path / 'nora'} --threads 1 --listen /ip4/127.0.0.1/tcp/0"
    )
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    ledger = Ledger(sessions, served.config)

    async def interrupt_when_counted() -> None:
        while not any(row.samples for row in ledger.contributions()):  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.3)
        assert client.km is not None
        await client.km.interrupt_kernel()

    interrupting = asyncio.create_task(interrupt_when_counted())
    try:
        await asyncio.wait_for(client.async_execute(), TIMEOUT_S)
    except CellExecutionError as error:
        pytest.fail(str(error))
    await interrupting
    text = printed(notebook)
    assert "Training on cpu" in text
    assert "Left the swarm in order" in text
    assert "Thank you!" in text
    assert code not in text
    assert [row.member for row in ledger.contributions() if row.samples] == ["nora"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
async def test_cell_installs_into_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it joins with was installed beside the host's packages, not among them, and got link and invite."""
    wheel = tmp_path / "manyhands-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("manyhands.py", STAND_IN)
        archive.writestr("manyhands-0.dist-info/METADATA", "Metadata-Version: 2.1\nName: manyhands\nVersion: 0\n")
        archive.writestr(
            "manyhands-0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("manyhands-0.dist-info/RECORD", "")
    for name, value in {"INSTALL": str(wheel), "LINK": "a link", "INVITE": "a code", "OPTIONS": ""}.items():
        monkeypatch.setenv(f"MANYHANDS_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    await client.async_execute()
    assert f"{tmp_path / '.manyhands-venv'} join a link --no-panel, invite of 6 letters" in printed(notebook)
    assert "a code" not in printed(notebook)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
async def test_colab_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Colab the terms are shown before anything starts, and without a yes nothing does."""
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    cell.source = "input = lambda prompt: 'no'\n" + cell.source
    client = NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    with pytest.raises(CellExecutionError, match="Nothing was started"):
        await client.async_execute()
    assert "does not allow" in printed(notebook)
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240 - nothing else runs
