"""Chaos in virtual time: drawn mishaps break no rule of the swarm or the ledger.

`make chaos SEEDS=1000` goes through many more of them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.rehearsed_chaos import draw_chaos, run_chaos, shrunk

QUICK_SEEDS, ALL_SEEDS = 12, 80
BLOCKS = 4  # of the seeds, each a test
TRACE_OF_A_SEED = """
from tests.support.rehearsed_chaos import draw_chaos, run_chaos
print(*run_chaos(draw_chaos(3), 3).run.trace, sep="\\n")
"""


def require_no_broken_rule(seed: int) -> None:
    """Fail with the scenario as drawn, its last lines, and the smallest one that breaks the same rule."""
    outcome = run_chaos(draw_chaos(seed), seed)
    if outcome.audit.broken:
        pytest.fail(f"{outcome.story}\n\nSmaller:\n{shrunk(outcome).story}", pytrace=False)


@pytest.mark.parametrize("seed", range(QUICK_SEEDS))
def test_chaos_breaks_no_rule(seed: int) -> None:
    """Each rule is a function of `tests.support.rehearsed_chaos`, with a sentence that says what must hold."""
    require_no_broken_rule(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(BLOCKS))
def test_chaos_of_further_seeds_breaks_no_rule(block: int) -> None:
    """Seeds beyond the quick ones, in blocks."""
    for seed in range(QUICK_SEEDS + block, ALL_SEEDS, BLOCKS):
        require_no_broken_rule(seed)


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    """Whatever the seed of Python's own hashes: this process has drawn one."""
    said = subprocess.run(
        [sys.executable, "-c", TRACE_OF_A_SEED],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    ).stdout
    trace = run_chaos(draw_chaos(3), 3).run.trace
    assert said.splitlines() == [str(line) for line in trace]
    assert len(trace) > 50
