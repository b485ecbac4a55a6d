"""The volunteer's one cell, executed as a notebook against a live coordinator.

It takes about a minute: a real coordinator with its keeper starts, and real workers join it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from uv import find_uv_bin

from coordinator.ledger.sessions import online_sessions
from coordinator.run.directory import RunDirectory
from peer.cli.join import WHO_LEARNS_THE_ADDRESS
from peer.runtime.software import CONSTRAINTS
from peer.runtime.version import software_version
from tests.support.archives import plain_host
from tests.support.commands import Site
from tests.support.live_notebooks import open_notebook, outputs, printed, served_run, shown
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
OURS = ("MANYHANDS_", "COLAB_", "KAGGLE_")
HOST = dict(os.environ)  # before a test changes it
WHEEL = "manyhands_swarm-0-py3-none-any.whl"
STAND_IN = """
import os, sys
print(sys.prefix, *sys.argv[1:], end=f", invite of {len(os.environ['MANYHANDS_INVITE'])} letters")
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A small run that is being served."""
    with served_run(tmp_path_factory.mktemp("served")) as site:
        yield site


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook server that is neither Colab's nor Kaggle's, where nothing is said beforehand; no GPU."""
    for name in os.environ:
        if name.startswith(OURS):
            monkeypatch.delenv(name)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where the device is kept, if nothing else is said
    monkeypatch.setenv("MANYHANDS_SOFTWARE", "none")


def prepare(site: Site, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say beforehand what the cell would ask, and keep the worker small."""
    monkeypatch.setenv("MANYHANDS_LINK", str(site.run.join_link))
    monkeypatch.setenv("MANYHANDS_INVITE", code)
    options = f"--threads 1 --listen /ip4/127.0.0.1/tcp/0 --data-folder {site.base}"  # its text lies there
    monkeypatch.setenv("MANYHANDS_OPTIONS", options)


async def run_cell(client: NotebookClient, true: Callable[[], object], *, interrupts: int = 1) -> None:
    """Execute the cell and interrupt it, as the notebook's button does, once something has happened."""
    running = asyncio.create_task(client.async_execute_cell(client.nb.cells[1], 1))
    await eventually("the cell has done what is waited for, or has ended", lambda: running.done() or true())
    assert client.km is not None
    for _ in range(interrupts):
        await client.km.interrupt_kernel()
        await asyncio.sleep(0.1)
    try:
        await asyncio.wait_for(running, PATIENCE_S)
    except CellExecutionError as error:
        pytest.fail(str(error))


@pytest.mark.usefixtures("forked")
async def test_one_cell_joins_trains_leaves_and_goes_on(
    served: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It joins by invite, shows a panel, counts and leaves in order; run again it goes on, without a question.

    Interrupted twice it ends at once, and leaves no process behind: neither the agent nor its worker and that one's
    children.
    """
    code = served.membership.invite("<i>nora</i>")[0]
    prepare(served, code, monkeypatch)
    client = open_notebook("join.ipynb", tmp_path)

    def samples() -> int:
        return sum(row.samples for row in served.ledger.contributions())

    async with client.async_setup_kernel():
        await run_cell(client, samples)
        (html,), (text,) = shown(client, "text/html"), shown(client, "text/plain")
        for panel in (html, text):
            for part in ("Left the swarm in order", "loss here", "samples from you", "Towards global step"):
                assert part in panel
        assert "small: <i>nora</i>" in text
        assert "&lt;i&gt;nora" in html
        assert "<i>" not in html
        assert printed(client) == f"{WHO_LEARNS_THE_ADDRESS}\nThank you! Run the cell again to go on.\n"
        assert code not in str(client.nb)
        before = samples()
        await run_cell(client, lambda: samples() > before, interrupts=2)
    assert "Ended at once" in printed(client)
    assert len(shown(client, "text/html")) == 1
    assert [(row.member, row.devices) for row in served.ledger.contributions() if row.samples] == [("<i>nora</i>", 1)]
    await eventually("no process of the notebook is left", lambda: nothing_left(tmp_path))


@pytest.mark.usefixtures("forked")
async def test_nothing_outlives_the_kernel(served: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is restarted, or killed, takes its volunteer with it; so the cell can be run anew."""
    prepare(served, served.membership.invite("pia")[0], monkeypatch)
    client = open_notebook("join.ipynb", tmp_path)
    async with client.async_setup_kernel():
        running = asyncio.create_task(client.async_execute_cell(client.nb.cells[1], 1))
        await eventually(
            "pia is online", lambda: any(one.member == "pia" for one in online_sessions(served.database, time.time()))
        )
        assert not nothing_left(tmp_path)
        assert client.km is not None
        await client.km.shutdown_kernel(now=True)
        running.cancel()
    await eventually("no process of the notebook is left", lambda: nothing_left(tmp_path))


def nothing_left(directory: Path) -> bool:
    """Whether no process runs in this directory."""

    def runs_there(process: psutil.Process) -> bool:
        try:
            return Path(process.cwd()) == directory
        except psutil.Error:  # it has just ended, or is another user's
            return False

    return not any(map(runs_there, psutil.process_iter()))


@pytest.mark.usefixtures("forked")
async def test_a_wrong_invite_is_one_sentence(served: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell ends with the command's sentence and its exit code, no traceback, and does not show the code."""
    prepare(served, "wrong-wrong-wrong", monkeypatch)
    client = open_notebook("join.ipynb", tmp_path)
    with pytest.raises(CellExecutionError):
        await client.async_execute()
    assert printed(client).removeprefix(WHO_LEARNS_THE_ADDRESS).lstrip().startswith("manyhands: ")
    (error,) = [output for output in outputs(client) if output.output_type == "error"]
    assert error.traceback == [error.evalue]
    assert "exit code 8" in error.evalue
    assert "wrong-wrong" not in str(client.nb)


STAND_IN_INSTALLER = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1], "bin")
folder.mkdir(parents=True)
(folder / "python").write_text('#!/bin/sh\\necho "$0 $@, invite of ${#MANYHANDS_INVITE} letters"')
(folder / "python").chmod(0o755)
print("installing with", sys.argv[2:], "and", [name for name in os.environ if name.startswith("MANYHANDS")])
"""


@pytest.fixture
def stand_in_wheel(tmp_path: Path) -> Iterator[str]:
    """The address, without its digest, of a wheel that installs a command which shows how it was called."""
    served = tmp_path / "served"
    served.mkdir()
    with zipfile.ZipFile(served / WHEEL, "w") as archive:
        archive.writestr("peer/installer/__main__.py", STAND_IN_INSTALLER)
    with plain_host(served) as address:
        yield f"{address}{WHEEL}"


async def test_cell_installs_into_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in_wheel: str
) -> None:
    """The wheel of the address installs itself beside the host's packages; only what it brings gets the invite."""
    digest = hashlib.sha256((tmp_path / "served" / WHEEL).read_bytes()).hexdigest()
    monkeypatch.delenv("MANYHANDS_SOFTWARE")
    monkeypatch.setenv("MANYHANDS_INVITE", "a code")
    monkeypatch.setenv("MANYHANDS_EXTRA", "tpu")
    client = open_notebook("join.ipynb", tmp_path, typed=(f"{stand_in_wheel}#sha256={digest}", "a link"))
    await client.async_execute()
    text = printed(client)
    assert "installing with ['--extra=tpu'] and []" in text
    command = f"{tmp_path / '.manyhands-venv'}/bin/python -I -m manyhands"
    assert f"{command} join a link --log-format notebook, invite of 6 letters" in text
    assert "a code" not in text


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("{wheel}#sha256=" + "0" * 64, "is not the software that its digest names"),
        ("{wheel}", "ends with #sha256="),
        ("{wheel}.gone#sha256=" + "0" * 64, "did not answer"),
        ("manyhands", "ends with #sha256="),
    ],
)
async def test_software_without_its_digest_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in_wheel: str, address: str, said: str
) -> None:
    """The cell ends with one sentence, and nothing was installed."""
    monkeypatch.setenv("MANYHANDS_SOFTWARE", address.format(wheel=stand_in_wheel))
    client = open_notebook("join.ipynb", tmp_path, typed=("a link", "a code"))
    with pytest.raises(CellExecutionError, match=said):
        await client.async_execute()
    assert "installing with" not in printed(client)
    assert not (tmp_path / ".manyhands-venv").exists()


@pytest.fixture
def fresh_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a kernel in an environment that has never seen this software, and has no checkout in its paths."""
    uv = find_uv_bin()
    cache = subprocess.run([uv, "cache", "dir"], env=HOST, check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setenv("UV_CACHE_DIR", cache)  # the home directory is another one
    if "PIP_FIND_LINKS" in os.environ:
        monkeypatch.setenv("UV_FIND_LINKS", ",".join(os.environ["PIP_FIND_LINKS"].split()))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", f"{Path(uv).parent}:{os.environ['PATH']}")
    host = tmp_path / "host"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(host)], check=True, cwd=tmp_path)
    install = [uv, "pip", "install", "--quiet", "--python", str(host / "bin" / "python"), "-c", str(CONSTRAINTS)]
    subprocess.run([*install, "ipykernel"], check=True, cwd=tmp_path)
    kernel = tmp_path / "jupyter" / "kernels" / "fresh"
    kernel.mkdir(parents=True)
    command = [str(host / "bin" / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "fresh", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    return "fresh"


async def test_a_machine_without_a_checkout_gets_all_from_the_run(
    served: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_host: str
) -> None:
    """The notebook that the run serves asks for the invite alone, installs from the run, and its samples count."""
    prepare(served, served.membership.invite("olga")[0], monkeypatch)
    monkeypatch.delenv("MANYHANDS_SOFTWARE")
    monkeypatch.delenv("MANYHANDS_LINK")
    place = {"metadata": {"path": tmp_path}}
    client = NotebookClient(
        served_notebook(served.run), timeout=2 * int(PATIENCE_S), kernel_name=fresh_host, resources=place
    )

    def counted() -> bool:
        return any(row.member == "olga" and row.samples for row in served.ledger.contributions())

    async with client.async_setup_kernel():
        await run_cell(client, counted)
    assert printed(client).endswith("Thank you! Run the cell again to go on.\n")
    path, version = what_is_installed(tmp_path / ".manyhands-venv")
    assert path.is_relative_to(tmp_path)
    assert version == software_version()


def served_notebook(run: RunDirectory) -> nbformat.NotebookNode:
    """The notebook as the run offers it."""
    with urlopen(f"{run.settings.web_address}/software/join.ipynb", timeout=PATIENCE_S) as answer:  # noqa: S310
        return nbformat.reads(answer.read().decode(), as_version=4)


def what_is_installed(environment: Path) -> tuple[Path, str]:
    """Where an environment has our packages from, and in which version."""
    script = "import peer; from peer.runtime.version import software_version; print(peer.__file__, software_version())"
    command = [environment / "bin" / "python", "-I", "-c", script]
    said = subprocess.run(command, cwd=environment, check=True, capture_output=True, text=True).stdout.split()
    return Path(said[0]), said[1]


async def test_the_invite_is_typed_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's page is told to hide what is typed as the invite; neither question nor output shows it."""
    stand_in_for_manyhands(tmp_path, monkeypatch)
    client = open_notebook("join.ipynb", tmp_path)
    async with client.async_setup_kernel():
        assert client.kc is not None
        client.kc.execute(client.nb.cells[1].source, allow_stdin=True)
        asked = []
        for answer in ("cpu", "a link", "s3cret-code"):
            asked.append((await client.kc.get_stdin_msg(timeout=PATIENCE_S))["content"])
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
        message = await client.kc.get_iopub_msg(timeout=PATIENCE_S)
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
