"""The check for wheels reads a lock file as pip would judge its wheels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "wheels.py"
LOCK = """
lock-version = "1.0"
[[packages]]
name = "pure"
version = "1.0"
wheels = [{ url = "https://host/pure-1.0-py3-none-any.whl" }]
[[packages]]
name = "native"
version = "2.0+cpu"
wheels = [
    { url = "https://host/native-2.0%2Bcpu-cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl" },
    { url = "https://host/native-2.0%2Bcpu-cp312-cp312-manylinux_2_28_aarch64.whl" },
    { url = "https://host/native-2.0%2Bcpu-cp312-cp312-macosx_11_0_arm64.whl" },
    { url = "https://host/native-2.0%2Bcpu-cp311-cp311-musllinux_1_2_aarch64.whl" },
]
[[packages]]
name = "cuda"
version = "3.0"
marker = "sys_platform == 'linux' and platform_machine == 'x86_64'"
wheels = [{ url = "https://host/cuda-3.0-py3-none-manylinux_2_99_x86_64.whl" }]
[[packages]]
name = "source"
version = "4.0"
marker = "python_full_version < '3.11'"
sdist = { url = "https://host/source-4.0.tar.gz" }
"""


def test_missing_wheels_are_named_for_each_platform_and_version(tmp_path: Path) -> None:
    """Markers, abi3, glibc's version and the machine decide, as they would there."""
    (tmp_path / "pylock.toml").write_text(LOCK)
    command = [sys.executable, str(SCRIPT), "--lock", str(tmp_path / "pylock.toml")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = {line[2:29].strip(): line[29:].strip() for line in output.splitlines()[1:]}
    assert len(lines) == 12
    assert lines["Linux x86-64  Python 3.10"] == "4 packages, without a wheel: cuda==3.0, source==4.0"
    assert lines["Linux x86-64  Python 3.13"] == "3 packages, without a wheel: cuda==3.0"
    assert lines["Linux arm64   Python 3.10"] == "3 packages, without a wheel: native==2.0+cpu, source==4.0"
    assert lines["Linux arm64   Python 3.11"] == "2 packages, without a wheel: native==2.0+cpu"
    assert lines["Linux arm64   Python 3.12"] == "2 packages, without a wheel: none"
    assert lines["macOS arm64   Python 3.12"] == "2 packages, without a wheel: none"
    assert lines["macOS arm64   Python 3.13"] == "2 packages, without a wheel: native==2.0+cpu"
