"""Rules for the whole suite: one thread per process, time for every example, no skip where none is allowed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from coordinator.pace import Pace
from tests.programs import missing

SYSTEM, SECURITY = "tests/system/", "tests/security/"  # they start swarms
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest group first, and last the one that the worker takes that has run out of all else.

    A test of whole swarms that fails is run once more: a dozen busy processes on two cores may miss what they have
    seconds for. The summary shows how it failed (`RERUN`): a race of our own would, too.
    """
    for item in items:
        if _group_of(item.nodeid) in (SYSTEM, SECURITY):
            item.add_marker(pytest.mark.flaky(reruns=1))
    items.sort(key=lambda item: {SYSTEM: 0, SECURITY: 2}.get(_group_of(item.nodeid), 1))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """With several workers: one runs the whole system's tests, one after another; the others share the rest by file."""
    return SwarmsOneByOne(config, log)


class SwarmsOneByOne(LoadScopeScheduling):
    """What belongs together, by the test's id."""

    def _split_scope(self, nodeid: str) -> str:
        return _group_of(nodeid)


def _group_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return next((group for group in (SYSTEM, SECURITY) if file.startswith(group)), file)


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
