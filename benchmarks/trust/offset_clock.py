"""A wall clock that can be set while programs run, for chaos.py: a small C library preloaded into the programs.

libfaketime 0.9.10 (Debian 12) is not suitable: if it leaves the monotonic clock unchanged, every `time.sleep` of Python
3.11 and later fails (https://github.com/wolfcw/libfaketime/issues/426).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = shutil.which("cc")


class OffsetClock:
    """A settable wall clock for programs started with its `environment`; needs Linux and a C compiler."""

    def __init__(self, folder: Path) -> None:
        library, self._offset = folder / "offset_clock.so", folder / "clock-offset"
        self._offset.write_bytes(bytes(8))
        command = (COMPILER or "cc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE)
        subprocess.run(command, check=True)  # noqa: S603 - our own program
        self.environment = {"LD_PRELOAD": str(library), "OFFSET_CLOCK": str(self._offset)}

    def set(self, seconds: float) -> None:
        """Set the clock's offset from the machine's clock in seconds."""
        with self._offset.open("r+b") as file:  # written in place, because the programs have mapped the file
            file.write(round(seconds).to_bytes(8, sys.byteorder, signed=True))
