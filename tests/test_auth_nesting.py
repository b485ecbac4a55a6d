"""Messages within messages: as deep as hivemind writes them, and no deeper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hivemind.utils.serializer import MSGPackSerializer
from hivemind.utils.timed_storage import get_dht_time

from auth.nesting import MAX_NESTING, bound_nesting
from tests.support.inputs import tuples_in_tuples

ROOT = Path(__file__).resolve().parent.parent


def test_what_hivemind_writes_is_read() -> None:
    """Tuples in dictionaries in tuples come back as they were."""
    bound_nesting()
    value = {"a": (1, (2.5, b"x", ({"b": (None, "y")},))), "time": get_dht_time()}
    assert MSGPackSerializer.loads(MSGPackSerializer.dumps(value)) == value


def test_the_bound_is_exact_and_leaves_nothing_behind() -> None:
    """One level more is refused, and what comes after is read as ever."""
    bound_nesting()
    for _ in range(3):
        MSGPackSerializer.loads(tuples_in_tuples(MAX_NESTING))
        with pytest.raises(ValueError, match="nested"):
            MSGPackSerializer.loads(tuples_in_tuples(MAX_NESTING + 1))


def test_a_process_of_the_swarm_survives_what_kills_plain_hivemind() -> None:
    """Ten kilobytes end an interpreter that has hivemind alone; with our side of it they are a `ValueError`."""
    script = """
from hivemind.utils.serializer import MSGPackSerializer
{0}
from tests.support.inputs import tuples_in_tuples
try:
    MSGPackSerializer.loads(tuples_in_tuples(4000))
except ValueError:
    print("refused")
"""
    results = [
        subprocess.run(
            [sys.executable, "-c", script.format(line)], capture_output=True, text=True, cwd=ROOT, check=False
        )
        for line in ("", "import auth.swarm_auth")
    ]
    assert [(result.returncode == 0, result.stdout) for result in results] == [(False, ""), (True, "refused\n")]
