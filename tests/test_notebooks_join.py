"""The volunteer's one cell, executed as a notebook against a live coordinator.

It takes about a minute: a real coordinator with its keeper starts, and real workers join it.
"""

from __future__ import annotations

import asyncio
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from coordinator.directory import RunDirectory
from coordinator.ledger import Ledger
from coordinator.membership import Membership
from coordinator.presence import online_sessions
from tests.live_notebooks import TIMEOUT_S, open_notebook, outputs, printed, served_run, sessions_of, shown
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
OURS = ("MANYHANDS_", "COLAB_", "KAGGLE_")
STAND_IN = """
import os, sys
print(sys.prefix, *sys.argv[1:], end=f", invite of {len(os.environ['MANYHANDS_INVITE'])} letters")
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    """A small run that is being served."""
    with served_run(tmp_path_factory.mktemp("served")) as run:
        yield run


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook server that is neither Colab's nor Kaggle's, where nothing is said beforehand; no GPU."""
    for name in os.environ:
        if name.startswith(OURS):
            monkeypatch.delenv(name)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where the device is kept, if nothing else is said
    monkeypatch.setenv("MANYHANDS_INSTALL", "none")


def invite(run: RunDirectory, name: str) -> str:
    """A new code."""
    membership = Membership(sessions_of(run), run.authority, run.config.run.name, 3600, time.time)
    return membership.invite(name)[0]


def prepare(run: RunDirectory, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say beforehand what the cell would ask, and keep the worker small."""
    monkeypatch.setenv("MANYHANDS_LINK", str(run.join_link))
    monkeypatch.setenv("MANYHANDS_INVITE", code)
    options = f"--threads 1 --listen /ip4/127.0.0.1/tcp/0 --data-folder {run.path.parent}"  # its text lies there
    monkeypatch.setenv("MANYHANDS_OPTIONS", options)


async def run_cell(client: NotebookClient, true: Callable[[], object], *, interrupts: int = 1) -> None:
    """Execute the cell and interrupt it, as the notebook's button does, once something has happened."""
    running = asyncio.create_task(client.async_execute_cell(client.nb.cells[1], 1))
    await eventually(lambda: running.done() or true())
    assert client.km is not None
    for _ in range(interrupts):
        await client.km.interrupt_kernel()
        await asyncio.sleep(0.1)
    try:
        await asyncio.wait_for(running, TIMEOUT_S)
    except CellExecutionError as error:
        pytest.fail(str(error))


async def test_one_cell_joins_trains_leaves_and_goes_on(
    served: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It joins by invite, shows a panel, counts and leaves in order; run again it goes on, without a question.

    Interrupted twice it ends at once, and leaves no process behind: neither the agent nor its worker and that one's
    children.
    """
    code = invite(served, "<i>nora</i>")
    prepare(served, code, monkeypatch)
    ledger = Ledger(sessions_of(served), served.config)
    client = open_notebook("join.ipynb", tmp_path)

    def samples() -> int:
        return sum(row.samples for row in ledger.contributions())

    async with client.async_setup_kernel():
        await run_cell(client, samples)
        (html,), (text,) = shown(client, "text/html"), shown(client, "text/plain")
        for panel in (html, text):
            for part in ("Left the swarm in order", "loss here", "samples from you", "Towards global step"):
                assert part in panel
        assert "small: <i>nora</i>" in text
        assert "&lt;i&gt;nora" in html
        assert "<i>" not in html
        assert printed(client) == "Thank you! Run the cell again to go on.\n"
        assert code not in str(client.nb)
        before = samples()
        await run_cell(client, lambda: samples() > before, interrupts=2)
    assert "Ended at once" in printed(client)
    assert len(shown(client, "text/html")) == 1
    assert [(row.member, row.devices) for row in ledger.contributions() if row.samples] == [("<i>nora</i>", 1)]
    await eventually(lambda: nothing_left(tmp_path))


async def test_nothing_outlives_the_kernel(
    served: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that is restarted, or killed, takes its volunteer with it; so the cell can be run anew."""
    prepare(served, invite(served, "pia"), monkeypatch)
    client = open_notebook("join.ipynb", tmp_path)
    sessions = sessions_of(served)
    async with client.async_setup_kernel():
        running = asyncio.create_task(client.async_execute_cell(client.nb.cells[1], 1))
        await eventually(lambda: any(one.member == "pia" for one in online_sessions(sessions, time.time())))
        assert client.km is not None
        await client.km.shutdown_kernel(now=True)
        running.cancel()
    await eventually(lambda: nothing_left(tmp_path))


def nothing_left(home: Path) -> bool:
    """Whether no process has this home directory in its environment."""

    def is_of_it(process: psutil.Process) -> bool:
        try:
            return process.environ().get("HOME") == str(home)
        except psutil.Error:  # it has just ended, or is another user's
            return False

    return not any(is_of_it(process) for process in psutil.process_iter() if process.pid != os.getpid())


async def test_a_wrong_invite_is_one_sentence(
    served: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell ends with the command's sentence and its exit code, no traceback, and does not show the code."""
    prepare(served, "wrong-wrong-wrong", monkeypatch)
    client = open_notebook("join.ipynb", tmp_path)
    with pytest.raises(CellExecutionError):
        await client.async_execute()
    assert printed(client).startswith("manyhands: ")
    (error,) = [output for output in outputs(client) if output.output_type == "error"]
    assert error.traceback == [error.evalue]
    assert "exit code 8" in error.evalue
    assert "wrong-wrong" not in str(client.nb)


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
    monkeypatch.setenv("MANYHANDS_INSTALL", str(wheel))
    client = open_notebook("join.ipynb", tmp_path, typed=("a link", "a code"))
    await client.async_execute()
    text = printed(client)
    assert f"{tmp_path / '.manyhands-venv'} join a link --log-format notebook, invite of 6 letters" in text
    assert "a code" not in text


async def test_the_invite_is_typed_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's page is told to hide what is typed as the invite; neither question nor output shows it."""
    stand_in_for_manyhands(tmp_path, monkeypatch)
    client = open_notebook("join.ipynb", tmp_path)
    async with client.async_setup_kernel():
        assert client.kc is not None
        client.kc.execute(client.nb.cells[1].source, allow_stdin=True)
        asked = []
        for answer in ("cpu", "a link", "s3cret-code"):
            asked.append((await client.kc.get_stdin_msg(timeout=TIMEOUT_S))["content"])
            client.kc.input(answer)
        said = await everything_said(client)
    assert [question["password"] for question in asked] == [False, False, True]
    assert "join --device cpu a link --log-format notebook, invite of 11 letters" in said
    assert "s3cret-code" not in said + str(asked)


async def everything_said(client: NotebookClient) -> str:
    """All messages of the kernel, until it has nothing more to do."""
    said = ""
    while True:
        assert client.kc is not None
        message = await client.kc.get_iopub_msg(timeout=TIMEOUT_S)
        said += str(message["content"])
        if "Thank you!" in said and message["content"].get("execution_state") == "idle":
            return said


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ({"COLAB_RELEASE_TAG": "release"}, True),
        ({"COLAB_RELEASE_TAG": "release", "KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, False),  # Kaggle's image says both
    ],
)
async def test_colab_is_told_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: dict[str, str], asked: bool
) -> None:
    """On Colab, and only there, the terms are shown before anything starts, and without a yes nothing does."""
    for name, value in host.items():
        monkeypatch.setenv(name, value)
    client = open_notebook("join.ipynb", tmp_path, typed=("no",))
    with pytest.raises(CellExecutionError, match="Nothing was started"):
        await client.async_execute()
    assert ("does not allow" in printed(client)) == asked
    assert not (tmp_path / ".manyhands-venv").exists()


@pytest.mark.parametrize(
    ("answer", "arguments"),
    [(" CPU", "join --device cpu"), ("assist", "assist"), ("stop", None), ("", None)],
)
async def test_asks_what_to_do_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, arguments: str | None
) -> None:
    """Where none was granted the person chooses: the processor, to assist, or to end before anything starts."""
    stand_in_for_manyhands(tmp_path, monkeypatch)
    client = open_notebook("join.ipynb", tmp_path, typed=(answer, "a link", ""))
    if arguments is None:
        with pytest.raises(CellExecutionError, match="Nothing was started"):
            await client.async_execute()
    else:
        await client.async_execute()
        assert f"{arguments} a link --log-format notebook" in printed(client)
    assert "No GPU was granted" in printed(client)


@pytest.mark.parametrize(
    ("gpu", "answer", "arguments"), [(0, None, "join"), (9, "assist", "assist"), (9, "auto", "join")]
)
async def test_does_not_ask_where_the_answer_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: int, answer: str | None, arguments: str
) -> None:
    """A GPU that works trains; without one the environment may have answered."""
    stand_in_for_manyhands(tmp_path, monkeypatch)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nexit {gpu}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    if answer is not None:
        monkeypatch.setenv("MANYHANDS_WITHOUT_GPU", answer)
    client = open_notebook("join.ipynb", tmp_path, typed=("a link", ""))
    await client.async_execute()
    assert f" {arguments} a link --log-format" in printed(client)


def stand_in_for_manyhands(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kaggle, with a command that shows how it was called, and a place for programs of the test's own."""
    (directory / "manyhands.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
