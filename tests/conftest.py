"""Rules for the whole suite: what `make test` leaves out, one thread per process, no skip where none is allowed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from coordinator.pace import Pace
from tests.programs import missing
from tests.support.zygote import forking_python

SWARMS = ("tests/system/", "tests/security/")
# Only `make test-all` runs these, except tests that are marked `smoke`; single tests elsewhere are marked `thorough`.
THOROUGH = (
    *SWARMS,
    "tests/test_benchmarks_",
    "tests/test_dashboards_archive.py",  # this one and the next five drive a browser
    "tests/test_dashboards_history.py",
    "tests/test_dashboards_model.py",
    "tests/test_dashboards_people.py",
    "tests/test_dashboards_tasks.py",
    "tests/test_dashboards_web.py",
    "tests/test_notebooks_",
    "tests/test_peer_backends_jax_backend.py",
)
FORBID_SKIPS = "MANYHANDS_FORBID_SKIPS"
# Compiled with little optimization: what is compiled for a test runs a few times only.
EIGHT_DEVICES = (
    "--xla_force_host_platform_device_count=8 "
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


def pytest_configure() -> None:
    """Keep torch to one thread before any test module imports it: the swarm tests start several peers on few cores.

    JAX simulates the eight cores of a TPU host. Hypothesis may take its time.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_FLAGS", EIGHT_DEVICES)
    os.environ.setdefault("MANYHANDS_DATA_FOLDERS", tempfile.gettempdir())  # where tests' runs have their text
    settings.register_profile("manyhands", deadline=None)  # a busy machine is no failure
    settings.load_profile("manyhands")


def pytest_report_header() -> str:
    """Name what is not installed and what installs it."""
    names, packages = missing()
    if not names:
        return "programs: everything that tests drive is installed"
    return f"programs: tests of {'; '.join(names)} are skipped. To run them: apt-get install {' '.join(packages)}"


@pytest.hookimpl(tryfirst=True)  # pytest chooses by the marks then
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is thorough, and begin with the swarms: they take longest, and both workers shall end together."""
    for item in items:
        if item.nodeid.startswith(THOROUGH) and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.thorough)
    items.sort(key=lambda item: not item.nodeid.startswith(SWARMS))


@pytest.fixture
def forked() -> Iterator[None]:
    """Fork the Python processes that a test starts, so that each is spared its imports."""
    with forking_python():
        yield


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting earns nobody another try: on a machine that is busy, asking takes as long as waiting elsewhere."""
    monkeypatch.setattr(Pace, "_refill", lambda _self, _now: None)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_kind(request: pytest.FixtureRequest) -> str:
    """On which database a test of the store runs: on each."""
    return str(request.param)


def pytest_sessionfinish() -> None:
    """Stop the PostgreSQL server, if a test of this process has started it."""
    if (module := sys.modules.get("tests.postgres")) is not None:
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
