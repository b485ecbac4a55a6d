"""How an optional part is added to the installation at hand."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from peer.runtime.software import CONSTRAINTS, DISTRIBUTION, command_to_add, how_to_add, update_command

PREFIX = ["run", "pip", "--python", sys.executable, "install", "-c", str(CONSTRAINTS)]
DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        ({"url": "file:///", "dir_info": {"editable": True}}, ["--editable", "/[kenlm]"]),
        ({"url": "file:///", "dir_info": {}}, [f"{DISTRIBUTION}[kenlm] @ file:///"]),
        (
            {"url": "https://run.example/software/x.whl", "archive_info": {"hashes": {"sha256": DIGEST}}},
            [f"{DISTRIBUTION}[kenlm] @ https://run.example/software/x.whl#sha256={DIGEST}"],
        ),
    ],
)
def test_a_part_is_added_from_where_the_installation_came(origin: dict[str, Any], wanted: list[str]) -> None:
    """A checkout, a wheel or a run's address, with the exact versions; never a name that an index would look up."""
    assert shlex.split(command_to_add("kenlm", json.dumps(origin))) == [*PREFIX, *wanted]


@pytest.mark.parametrize("origin", [None, json.dumps({"url": "file:///src/gone", "archive_info": {}})])
def test_without_its_origin_no_command_is_made_up(origin: str | None) -> None:
    """In a container what it was installed from is gone."""
    assert command_to_add("kenlm", origin) == "install this software again, with its extra `kenlm`"


def test_an_update_makes_no_environment_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this is no environment of its own a new one is made; elsewhere this one is brought up to date."""
    address = f"https://run.example/software/manyhands_swarm-9.0-py3-none-any.whl#sha256={DIGEST}"
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "prefix", "/home/ada/its place")
    assert (update_command(address) or "").endswith("whl/peer/installer' '/home/ada/its place'")
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert (update_command(address) or "").endswith("whl/peer/installer")


@pytest.mark.parametrize("name", ["coordinator", "peer"])
def test_in_a_container_the_image_is_built_anew(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By its own file; whatever is installed in the container itself is gone with it."""
    address = f"https://run.example/software/manyhands_swarm-9.0-py3-none-any.whl#sha256={DIGEST}"
    monkeypatch.setenv("MANYHANDS_IMAGE", f"manyhands-{name}")
    file = f"docker/{name}.Dockerfile"
    root = Path(__file__).resolve().parents[3]
    assert f"MANYHANDS_IMAGE=manyhands-{name} " in (root / file).read_text()
    for known in (address, ""):
        assert f" -f {file} -t manyhands-{name} . " in (update_command(known) or "")
    assert "`MANYHANDS_EXTRAS`" in how_to_add("tpu")


def test_this_installation_knows_its_origin() -> None:
    """The tests run in a checkout: its folder is named, and the constraints are there."""
    assert f"{Path(__file__).resolve().parents[3]}[s3]" in how_to_add("s3")
    assert "torch==" in CONSTRAINTS.read_text()
