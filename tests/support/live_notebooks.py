"""What the notebooks' tests share: a small run that is really served, and cells that are really executed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.support.commands import Site
from tests.support.waiting import PATIENCE_S
from tests.support.zygote import forking_python

NOTEBOOKS = Path(__file__).parent.parent.parent / "notebooks"


@contextmanager
def served_run(directory: Path) -> Iterator[Site]:
    """A small run, made and served in `directory`; its processes are forked, those of the notebooks are not."""
    site = Site(directory)
    try:
        with forking_python():
            serve = site.serve()
        yield site
        serve.terminate()
    finally:
        site.close()


def open_notebook(name: str, directory: Path, typed: tuple[str, ...] = ()) -> NotebookClient:
    """A client that executes a notebook in `directory`; `typed` are the answers of the person before it, in order."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    if typed:  # nobody types into an executed notebook: what asks is answered, and everything else is the cell's own
        answering = f"typed = iter({typed!r})\ninput = lambda prompt: print(prompt) or next(typed)\n"
        code = next(cell for cell in notebook.cells if cell.cell_type == "code")
        code.source = answering + code.source.replace("getpass.getpass(", "input(")
    return NotebookClient(
        notebook, timeout=int(PATIENCE_S), kernel_name="python3", resources={"metadata": {"path": directory}}
    )


def outputs(client: NotebookClient) -> list[Any]:
    """All that the cells have put out."""
    return [output for cell in client.nb.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(client: NotebookClient) -> str:
    """All that the cells have printed."""
    return "".join(output.get("text", "") for output in outputs(client))


def shown(client: NotebookClient, kind: str) -> list[str]:
    """What the cells show as `text/html`, `text/plain` or `image/png`."""
    return [output.data[kind] for output in outputs(client) if kind in output.get("data", {})]
