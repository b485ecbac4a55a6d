"""The notebook that draws a run, executed over live dashboards: of a run that trained, an empty one, a long one."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.support.commands import Site
from tests.support.live_notebooks import open_notebook, outputs, printed, served_run, shown
from tests.support.ports import free_ports
from tests.support.served_page import FakeRun, PageServer, fake_run
from tests.support.zygote import forking_python

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
HOSTILE = "<img src=x onerror=alert(1)> $x^{"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    """An empty run in a real store."""
    with fake_run(tmp_path, phases=[{"from_step": 6, "target_batch_size": 200}]) as made:
        yield made


async def explore(address: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> NotebookClient:
    """Execute the whole notebook."""
    monkeypatch.setenv("MANYHANDS_DASHBOARD", address)
    client = open_notebook("explore.ipynb", directory)
    await client.async_execute()
    assert not any(output.get("name") == "stderr" for output in outputs(client))  # nothing is warned of
    return client


def tables(client: NotebookClient) -> list[str]:
    """Each table as text."""
    return [output.data["text/plain"] for output in outputs(client) if "text/html" in output.get("data", {})]


def pictures(client: NotebookClient) -> list[tuple[int, int]]:
    """Width and height of each drawing, in pixels."""
    images = [base64.b64decode(image) for image in shown(client, "image/png")]
    return [struct.unpack(">II", image[16:24]) for image in images]


async def test_draws_a_run_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two charts and three tables of a run whose coordinator is live and whose volunteer has really trained.

    It takes about twenty seconds: coordinator, keeper and a volunteer start, and take two steps.
    """
    with served_run(tmp_path) as served:
        train_two_steps(served)
        client = await explore(f"127.0.0.1:{served.run.settings.web_port}", tmp_path, monkeypatch)
    assert len(pictures(client)) == 2
    assert all(width > height > 300 for width, height in pictures(client))
    standing, members = tables(client)[:2]
    assert "small" in standing
    assert re.search(r"loss \| \d\.\d{3} at first, \d\.\d{3} now", standing)
    assert re.search(r"1 \| mara \| [\d,]+ \| 100.0%", members)


def train_two_steps(site: Site) -> None:
    """A volunteer joins, trains and leaves."""
    with forking_python():
        volunteer = site.join("mara", first=True)
    site.wait_until("the ledger has two steps", lambda: len(site.ledger.steps()) >= 2)
    volunteer.terminate()
    site.wait_until(
        "all samples are confirmed", lambda: not any(row.pending_samples for row in site.ledger.contributions())
    )


async def test_a_run_without_data_is_said_to_have_none(
    run: FakeRun, server: PageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first step every cell says what is missing, and nothing is drawn."""
    client = await explore(server.url, tmp_path, monkeypatch)
    text = printed(client)
    for sentence in (
        "Read 0 global steps and 0 checkpoints",
        "No global step has been completed yet",
        "A speed needs two completed global steps",
        "Nobody has contributed yet.",
        "No checkpoint has been written yet.",
    ):
        assert sentence in text
    assert pictures(client) == []
    assert "- at first, - now" in tables(client)[0]


async def test_hostile_names_phases_and_held_out_text(
    run: FakeRun, server: PageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are shown as they are spelt, checkpoints with what held-out text says of them."""
    run.add_member(HOSTILE)
    for step in range(1, 9):
        run.add_step(step, 9.0 - 0.1 * step)
    for step in (4, 8):
        run.add_checkpoint(step)
    run.add_validation(4)
    run.add_validation(8, mlm_loss=None, manifest_sha256="ef" * 32, set_sha256="01" * 32)  # a broken one is no point
    restart(server)
    client = await explore(server.url, tmp_path, monkeypatch)
    html = "".join(shown(client, "text/html"))
    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt; $x^{" in html
    members, checkpoints = tables(client)[1:]
    assert f"1 | {HOSTILE} | 808 | 100.0%" in members
    assert re.search(r"8 \| [\d-]+\s[\d:]+ \| 6.3\sMB \| (ab){32} \| 6.500 \| 403.4 \| 12.5%", checkpoints)
    assert len(pictures(client)) == 2


def restart(server: PageServer) -> None:
    """The dashboard reads everything anew."""
    server.close()
    server.start()


async def test_long_runs_are_read_by_pages_and_drawn_in_few_points(
    run: FakeRun, server: PageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step is read, however many answers that takes; a line has no more points than can be seen."""
    run.add_member("ada")
    for step in range(1, 31):
        run.add_step(step, 9.0 - 0.1 * step)
    restart(server)
    monkeypatch.setenv("MANYHANDS_DASHBOARD", server.url)
    client = open_notebook("explore.ipynb", tmp_path)
    reading, last = [cell for cell in client.nb.cells if cell.cell_type == "code"][::5]
    reading.source = reading.source.replace("PAGE = 20_000", "PAGE = 7").replace(
        "MOST_POINTS = 1000", "MOST_POINTS = 10"
    )
    last.source += "\nprint(thin(steps['step'], steps['loss']), steps['step'] == list(range(1, 31)))"
    await client.async_execute()
    steps = [3 * point + 2.0 for point in range(10)]
    losses = [9.0 - 0.1 * step for step in steps]
    found = re.search(r"\((\[.*\]), (\[.*\])\) True", printed(client))
    assert found is not None
    assert [float(value) for value in found[1][1:-1].split(", ")] == steps
    assert [float(value) for value in found[2][1:-1].split(", ")] == pytest.approx(losses)


async def test_an_address_without_a_dashboard_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing answers, and where it is no address at all, one sentence says what to mend."""
    monkeypatch.delenv("MANYHANDS_DASHBOARD", raising=False)
    (nobody,) = free_ports("127.0.0.1", 1)
    client = open_notebook("explore.ipynb", tmp_path, typed=("an address",))
    cell = client.nb.cells[1]
    asking = cell.source
    async with client.async_setup_kernel():
        for address in (f"http://127.0.0.1:{nobody}", "file:///etc/passwd", "http://", ""):
            cell.source = asking.replace("'an address'", repr(address))
            with pytest.raises(CellExecutionError):
                await client.async_execute_cell(cell, 1)
            (error,) = [output for output in outputs(client) if output.output_type == "error"]
            assert error.traceback == [error.evalue]
            assert re.search("check the address|one looks like", error.evalue), address


async def test_another_servers_page_is_no_dashboard(
    server: PageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers with something else is told from a dashboard."""
    monkeypatch.setenv("MANYHANDS_DASHBOARD", server.url)
    client = open_notebook("explore.ipynb", tmp_path)
    client.nb.cells[1].source = client.nb.cells[1].source.replace("/api/v1/", "/?")
    with pytest.raises(CellExecutionError, match="does not answer as a run's dashboard"):
        await client.async_execute()
