"""What a Mac has to be told before a process of ours starts there; elsewhere nothing.

The agent and the doctor call it before they spawn a child that uses PyTorch and hivemind: both variables are read when
a process or a library is loaded, so the child itself would be too late.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

VARIABLES = {
    "PYTORCH_ENABLE_MPS_FALLBACK": "1",  # what Apple's GPUs cannot compute is computed by the CPU
    "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # hivemind forks; else Apple's runtime ends what is forked
}


def prepare_children(environ: MutableMapping[str, str], platform: str = sys.platform) -> None:
    """Set in the environment, which children inherit, what nobody has set."""
    if platform == "darwin":
        for name, value in VARIABLES.items():
            environ.setdefault(name, value)
