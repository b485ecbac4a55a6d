"""Rules for the whole suite: what `make test` leaves out, one thread per process, no skip where none is allowed.

Below them are the fixtures that many files share. A file whose run, page or ledger differs makes its own from these.
What a fixture needs is imported where it is made: most processes of the suite need little of it.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from coordinator.throttling.rate_limits import Pace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from starlette.testclient import TestClient

    from auth.keys import DeviceKey
    from coordinator.context.open_run import OpenRun
    from coordinator.evaluation.reports import EvaluatorKey
    from coordinator.ledger.ledger import Ledger
    from coordinator.run.directory import RunDirectory
    from coordinator.store.engine import Database
    from tests.support.clocks import Clock
    from tests.support.local_hub import Hub
    from tests.support.openid_provider import OpenIdProvider
    from tests.support.served_page import FakeRun, PageServer
    from tests.support.stores import Kind

pytest.register_assert_rewrite("tests.support")  # their assertions, too, show what was compared
# hivemind's futures ask for the main thread's event loop. Python would make one that nobody closes, and whichever test
# runs when it is collected would fail.
asyncio.set_event_loop(None)
# One thread for torch, before a folder's conftest.py imports it: the swarm tests start several peers on few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
SWARMS = ("tests/system/", "tests/security/")
# Only `make test-all` runs these, except tests that are marked `smoke`; single tests elsewhere are marked `thorough`.
THOROUGH = (
    *SWARMS,
    "tests/benchmarks/",
    "tests/dashboards/test_archive.py",  # this one and the next five drive a browser
    "tests/dashboards/test_history.py",
    "tests/dashboards/test_model.py",
    "tests/dashboards/test_people.py",
    "tests/dashboards/test_tasks.py",
    "tests/dashboards/test_web.py",
    "tests/notebooks/",
    "tests/peer/backends/test_jax_backend.py",
    "tests/repository/test_guide.py",  # builds the guide
)
FORBID_SKIPS = "MANYHANDS_FORBID_SKIPS"
# What is compiled for a test runs a few times only. The fusion emitters alone would double the time of compiling.
EIGHT_DEVICES = (
    "--xla_force_host_platform_device_count=8 "
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
)


def pytest_configure() -> None:
    """Let JAX simulate the eight cores of a TPU host, and Hypothesis take its time."""
    os.environ.setdefault("XLA_FLAGS", EIGHT_DEVICES)
    os.environ.setdefault("MANYHANDS_DATA_FOLDERS", tempfile.gettempdir())  # where tests' runs have their text
    settings.register_profile("manyhands", deadline=None)  # a busy machine is no failure
    settings.load_profile("manyhands")


def pytest_report_header() -> str:
    """Name what is not installed and what installs it."""
    from tests.support.programs import missing

    names, packages = missing()
    if not names:
        return "programs: everything that tests drive is installed"
    return f"programs: tests of {'; '.join(names)} are skipped. To run them: apt-get install {' '.join(packages)}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which the mark expression leaves nothing: each worker would import them all."""
    if collection_path.suffix != ".py" or (wanted := config.option.markexpr) not in {"thorough", "not thorough"}:
        return None
    is_thorough = str(collection_path.relative_to(config.rootpath)).startswith(THOROUGH)
    other = "mark.thorough" if wanted == "thorough" else "mark.smoke"
    is_empty = is_thorough != (wanted == "thorough") and other not in collection_path.read_text(encoding="utf-8")
    return is_empty or None


@pytest.hookimpl(wrapper=True, tryfirst=True)  # pytest chooses by the marks in between
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Mark what is thorough, and spread the swarms' files among the others: these compute while a swarm waits."""
    for item in items:
        if item.nodeid.startswith(THOROUGH) and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.thorough)
    yield
    files = list(dict.fromkeys(map(_file_of, items)))
    swarms = [file for file in files if file.startswith(SWARMS)]
    others = [file for file in files if not file.startswith(SWARMS)]
    place = {file: index / len(kind) for kind in (swarms, others) for index, file in enumerate(kind)}
    items.sort(key=lambda item: (place[_file_of(item)], not item.nodeid.startswith(SWARMS)))


def pytest_collection_finish() -> None:
    """Set aside what the imports have left: each of many full garbage collections would walk over all of it."""
    gc.collect()
    gc.freeze()


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_sessionfinish() -> None:
    """Stop the PostgreSQL server, if a test of this process has started it."""
    if (module := sys.modules.get("tests.support.postgres")) is not None:
        module.stop_shared_server()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped or expectedly failing test into a failure, where skips are forbidden."""
    report = yield
    return _forbid_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module that asks to be skipped."""
    report = yield
    return _forbid_skip(report)


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> pytest.TestReport | pytest.CollectReport:
    """An xfail is reported as a skip with a mark of its own; without the mark it counts as an ordinary failure."""
    if report.skipped and os.environ.get(FORBID_SKIPS) == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "xfail")
        report.outcome = "failed"
        report.longrepr = f"{FORBID_SKIPS}=1 and the test did not run to its end: {reason}"
        if hasattr(report, "wasxfail"):
            del report.wasxfail
    return report


@pytest.fixture
def written() -> io.StringIO:
    """What a log has written."""
    return io.StringIO()


@pytest.fixture
def forked() -> Iterator[None]:
    """Fork the Python processes that a test starts, so that each is spared its imports."""
    from tests.support.zygote import forking_python

    with forking_python():
        yield


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting earns nobody another try: on a machine that is busy, asking takes as long as waiting elsewhere."""
    monkeypatch.setattr(Pace, "_refill", lambda _self, _now: None)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_kind(request: pytest.FixtureRequest) -> Kind:
    """On which database a test of the store runs: on each."""
    kind: Kind = request.param
    return kind


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until a test moves it."""
    from tests.support.clocks import Clock

    return Clock()


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> DeviceKey:
    """A device's key, made once: that takes a moment."""
    from auth.keys import DeviceKey

    return DeviceKey.load_or_create(tmp_path_factory.mktemp("key") / "device.key")


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Public keys of six devices, made once."""
    from tests.support.stores import device_keys

    return device_keys(tmp_path_factory.mktemp("keys"), 6)


@pytest.fixture
def evaluator_key(tmp_path: Path) -> EvaluatorKey:
    """An evaluator's key."""
    from coordinator.evaluation.reports import EvaluatorKey

    return EvaluatorKey.load_or_create(tmp_path / "evaluator.key")


@pytest.fixture
def database(tmp_path: Path, store_kind: Kind) -> Iterator[Database]:
    """An empty database with all tables."""
    from tests.support.stores import empty_store

    with empty_store(tmp_path, store_kind) as made:
        yield made


@pytest.fixture
def members(database: Database) -> None:
    """Put two members with three devices, and the keeper, into the database."""
    from tests.support.ledgers import add_members

    add_members(database)


@pytest.fixture
def ledger(database: Database, clock: Clock) -> Ledger:
    """The ledger in the database."""
    from coordinator.ledger.ledger import Ledger
    from tests.support.ledgers import CONFIG

    return Ledger(database, CONFIG, clock)


@pytest.fixture
def run(tmp_path: Path, clock: Clock) -> Iterator[FakeRun]:
    """An empty run."""
    from tests.support.served_page import fake_run

    with fake_run(tmp_path, clock) as made:
        yield made


@pytest.fixture
def small_run(tmp_path: Path) -> RunDirectory:
    """The folder of a run whose model and tokenizer are tiny."""
    from tests.support.small_run import make_small_run

    return make_small_run(tmp_path)


@pytest.fixture
def opened_run(small_run: RunDirectory) -> Iterator[OpenRun]:
    """That run as the operator's commands open it."""
    from coordinator.context.open_run import open_run

    with open_run(small_run.path) as opened:
        yield opened


@pytest.fixture
def three_steps(run: FakeRun) -> None:
    """Give the run a member, three steps and a checkpoint."""
    run.add_member("ada")
    run.add_steps([9.0, 8.0, 7.0])
    run.add_checkpoint(3)


@pytest.fixture
def client(run: FakeRun) -> Iterator[TestClient]:
    """Requests to the run's web application, without a server."""
    from starlette.testclient import TestClient

    from coordinator.web.app import create_app
    from coordinator.web.state.web_state import WebState

    with TestClient(create_app(WebState(run.directory, run.services))) as made:
        yield made


@pytest.fixture(scope="module")
def page_port() -> int:
    """The port of a file's dashboards, one after another: a browser keeps what it has compiled under its address."""
    from tests.support.ports import free_ports

    return free_ports("127.0.0.1", 1)[0]


@pytest.fixture
def server(run: FakeRun, page_port: int) -> Iterator[PageServer]:
    """The run's dashboard on a port of this machine."""
    from tests.support.served_page import PageServer

    made = PageServer(run, port=page_port)
    yield made
    made.close()


@pytest.fixture(scope="module")  # no wider: beside a browser that is open no asynchronous test can run
def browser() -> Iterator[Browser]:
    """One browser for all tests of a file."""
    from tests.support.browser import chromium

    with chromium() as made:
        yield made


@pytest.fixture
def complaints() -> list[str]:
    """Errors and warnings in the browser's console, and dialogs that opened."""
    return []


@pytest.fixture
def page(browser: Browser, complaints: list[str]) -> Iterator[Page]:
    """A fresh page whose complaints are collected."""
    from tests.support.browser import fresh_page

    with fresh_page(browser, complaints) as made:
        made.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        yield made


@pytest.fixture
def provider() -> Iterator[OpenIdProvider]:
    """An OpenID provider on this machine."""
    from tests.support.openid_provider import OpenIdProvider, running

    with running(OpenIdProvider()) as served:
        yield served


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that this process and its children take for Hugging Face's."""
    from huggingface_hub import constants

    from tests.support.local_hub import local_hub

    with local_hub() as made:
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield made
