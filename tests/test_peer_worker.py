"""The worker's edges; whole workers train in tests/system."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

from auth.errors import ConfigError, WorkerError
from peer.messages import Failed, WorkerPlan
from peer.process_output import LOG_FILE
from peer.run_config import RunConfig
from peer.worker import run_worker


def failure_of(plan: WorkerPlan) -> Failed:
    """What a really spawned worker with this plan says."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_worker, args=(plan, theirs, os.getpid()))
    process.start()
    theirs.close()
    try:
        assert ours.poll(60)
        failed = ours.recv()
    finally:
        process.join(30)
        process.close()
        ours.close()
    assert isinstance(failed, Failed)
    return failed


def plan_with(directory: Path, run_config_json: str) -> WorkerPlan:
    """A plan that cannot succeed."""
    return WorkerPlan(run_config_json, str(directory), str(directory), str(directory / "data"), ())


def test_mendable_error_keeps_its_exit_code(tmp_path: Path) -> None:
    """A configuration that this version does not know reaches the agent as that error; the trace is in the log only."""
    failed = failure_of(plan_with(tmp_path, '{"run": {"surprise": 1}}'))
    assert (failed.code, failed.exit_code) == (ConfigError.code, ConfigError.exit_code)
    assert "run.surprise" in failed.text
    assert "Traceback" not in failed.text
    assert "Traceback" in (tmp_path / "data" / LOG_FILE).read_text()


def test_missing_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    """A worker whose tokenizer is gone says so instead of dying without a word."""
    failed = failure_of(plan_with(tmp_path, RunConfig().to_json()))
    assert failed.exit_code in {ConfigError.exit_code, WorkerError.exit_code}
    assert failed.text.count("\n") == 0
