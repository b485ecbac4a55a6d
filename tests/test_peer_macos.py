"""What Macs are told before a child starts."""

from __future__ import annotations

from peer.macos import prepare_children


def test_a_mac_lets_children_fork_and_fall_back_to_its_cpu() -> None:
    """Both variables are set; what a person has set stays."""
    environ = {"PYTORCH_ENABLE_MPS_FALLBACK": "0"}
    prepare_children(environ, "darwin")
    assert environ == {"PYTORCH_ENABLE_MPS_FALLBACK": "0", "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
    environ.clear()
    prepare_children(environ, "darwin")
    assert environ["PYTORCH_ENABLE_MPS_FALLBACK"] == "1"


def test_nothing_is_set_elsewhere() -> None:
    """Linux needs none of it."""
    environ: dict[str, str] = {}
    prepare_children(environ, "linux")
    assert environ == {}
