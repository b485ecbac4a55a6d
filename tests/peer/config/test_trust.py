"""Sources that may change under a run, and the files and hosts that a run may make a volunteer's machine reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from auth.errors import ConfigError
from peer.config.recipes import RECIPES
from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.config.trust import Allowed, check_reach, is_private, unpinned

NOTHING = Allowed()


def run_of(**source: Any) -> RunConfig:
    return RunConfig.from_mapping({"data": {"sources": [source]}})


@pytest.mark.parametrize("name", ["demo", *RECIPES])
def test_the_built_in_runs_need_no_permission(name: str) -> None:
    """The built-in corpus and datasets of the hub are nobody's private files."""
    check_reach(RunConfig.from_yaml(BUILTIN_RUNS / f"{name}.yaml"), NOTHING)


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "text", "path": "/home/x/.ssh/id_rsa"},
        {"kind": "text", "path": "~/.netrc"},
        {"kind": "text", "path": "notes.txt"},
        {"kind": "jsonl", "path": ["https://example.org/a.jsonl", "/etc/hosts"]},
        {"kind": "parquet", "path": "/data/../home/*.parquet"},
        {"kind": "hub", "path": "./here"},
        {"kind": "hub", "path": "../here"},
        {"kind": "hub", "path": "/home/x"},
        {"kind": "builtin", "sampling": {"method": "random", "scale": 1.0, "scorer": {"model": "/home/x/.bashrc"}}},
    ],
)
def test_files_of_the_machine_are_its_owners(source: dict[str, Any]) -> None:
    """A path is refused with the option that allows it, also as a dataset's or a scorer's."""
    with pytest.raises(ConfigError, match="--data-folder"):
        check_reach(run_of(**source), NOTHING)


def test_an_allowed_folder_is_no_more_than_that(tmp_path: Path) -> None:
    """What lies in it may be read; neighbours, links out of it and dots behind a pattern may not."""
    inside, outside = tmp_path / "texts", tmp_path / "texts-private"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    allowed = Allowed((inside,))
    for path in ("a.txt", "*.txt", "**/b.txt", "below/../a.txt"):
        check_reach(run_of(kind="text", path=f"{inside}/{path}"), allowed)
    for path in (f"{outside}/a.txt", f"{inside}/../a.txt", f"{inside}/link/a.txt", f"{inside}/*/../../a.txt"):
        with pytest.raises(ConfigError, match="--data-folder"):
            check_reach(run_of(kind="text", path=path), allowed)


def test_a_folder_with_a_datasets_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would read it instead of the hub's dataset."""
    monkeypatch.chdir(tmp_path)
    check_reach(run_of(kind="hub", path="alice/texts"), NOTHING)
    (tmp_path / "alice" / "texts").mkdir(parents=True)
    with pytest.raises(ConfigError, match="--data-folder"):
        check_reach(run_of(kind="hub", path="alice/texts"), NOTHING)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "169.254.169.254", "10.1.2.3", "192.168.1.1", "172.16.0.9", "100.64.0.1",
        "127.1", "2130706433", "0x7f000001", "router",
        "nas.local", "metadata.google.internal", "127.0.0.1.",
    ],
)  # fmt: skip
def test_hosts_of_the_machines_own_network_are_its_owners(host: str) -> None:
    """Loopback, private and link-local addresses in every spelling, and names that only a private network has."""
    source = {"kind": "text", "path": f"http://{host}:8080/a.txt"}
    with pytest.raises(ConfigError, match="--private-network"):
        check_reach(run_of(**source), NOTHING)
    check_reach(run_of(**source), Allowed(private_network=True))


def test_an_object_stores_address_counts_too() -> None:
    """An endpoint is a host like any other."""
    options = {"endpoint_url": "http://169.254.169.254/latest"}
    with pytest.raises(ConfigError, match=r"169\.254\.169\.254"):
        check_reach(run_of(kind="text", path="s3://bucket/a.txt", storage_options=options), NOTHING)


@pytest.mark.parametrize("host", ["example.org", "8.8.8.8", "2606:4700::1111", "face.b00c.org"])
def test_the_public_web_is_open(host: str) -> None:
    """Everything else needs no permission."""
    assert not is_private(host)


@pytest.mark.parametrize("key", ["profile", "token", "client_kwargs", "connection_string", "target_protocol", "fo"])
def test_options_that_name_a_login_or_another_store_are_refused(key: str) -> None:
    """The key is named, and what is allowed."""
    with pytest.raises(ConfigError, match=f"not `{key}`"):
        run_of(kind="text", path="s3://bucket/a.txt", storage_options={key: "x"})


@pytest.mark.parametrize("host", ["::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "224.0.0.1", "2002:7f00:1::"])
def test_private_addresses_of_other_kinds(host: str) -> None:
    """IPv6's, those of IPv4 within IPv6, and multicast."""
    assert is_private(host)


COMMIT = "0123456789" * 4


def warnings(**source: Any) -> list[str]:
    return list(unpinned(RunConfig.from_mapping({"data": {"sources": [source]}})))


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "builtin"},
        {"kind": "text", "path": "/data/a.txt"},
        {"kind": "hub", "path": "o/n", "revision": COMMIT},
        {"kind": "jsonl", "path": f"hf://datasets/o/n@{COMMIT}/a.jsonl"},
    ],
)
def test_what_is_pinned_goes_without_a_word(source: dict[str, Any]) -> None:
    """A commit holds a dataset or a file fast; local files are the machine's own."""
    assert warnings(**source) == []


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ({"kind": "hub", "path": "o/n"}, "`revision`"),
        ({"kind": "hub", "path": "o/n", "revision": "main"}, "`revision`"),
        ({"kind": "jsonl", "path": "hf://datasets/o/n/a.jsonl"}, "`@COMMIT`"),
        ({"kind": "text", "path": "https://example.org/a.txt"}, "not pinned"),
        (
            {"kind": "builtin", "sampling": {"method": "random", "scale": 1.0, "scorer": {"model": "m.json"}}},
            "`sha256`",
        ),
    ],
)
def test_what_may_change_is_told_with_the_remedy(source: dict[str, Any], remedy: str) -> None:
    """One sentence each."""
    (warning,) = warnings(**source)
    assert remedy in warning
