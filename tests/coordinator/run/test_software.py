"""The software that a run brings: one wheel, however the run was installed, and checked before it is run."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient

from coordinator.run.software import UNPACKED, own_software, pack
from docs.reference.commands import every_command
from peer.cli.join import default_state_dir
from peer.runtime.software import install_commands
from peer.runtime.version import COMMIT_FILE
from tests.support.served_page import FakeRun

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def packed() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(own_software().wheel))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that the build makes of this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = directory.glob("*.whl")
    return zipfile.ZipFile(path)


def test_a_checkout_offers_what_a_build_makes(packed: zipfile.ZipFile, built: zipfile.ZipFile) -> None:
    """The same files but the guide and the commit, with the same content, under the same name, and its own digests."""
    name = own_software().name
    assert Path(str(built.filename)).name == name
    names = [each for each in built.namelist() if not each.startswith("/".join(UNPACKED))]
    assert {each for each in packed.namelist() if not each.endswith(f"/{COMMIT_FILE}")} == set(names)
    different = [each for each in names if built.read(each) != packed.read(each)]
    assert [each.rpartition("/")[2] for each in different if not each.endswith("METADATA")] in ([], ["RECORD"])


def test_an_installation_from_the_wheel_offers_the_same_wheel(packed: zipfile.ZipFile, tmp_path: Path) -> None:
    """Byte for byte: all replicas have one digest, and what a volunteer installed could be handed on."""
    (wheel := tmp_path / own_software().name).write_bytes(own_software().wheel)
    target = tmp_path / "site"
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, *command], check=True)
    script = (
        f"import sys; sys.path.insert(0, {str(target)!r}); from coordinator.run.software import own_software, ROOT; "
    )
    script += "print(ROOT, own_software().sha256)"
    said = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(target), own_software().sha256]


def test_a_wheel_is_the_same_bytes_each_time() -> None:
    """Whatever order its files come in."""
    files = {"b.py": b"2", "a.py": b"1"}
    again = dict(reversed(files.items()))
    assert pack(files, "x.dist-info/RECORD") == pack(again, "x.dist-info/RECORD")
    with zipfile.ZipFile(io.BytesIO(pack(files, "x.dist-info/RECORD"))) as archive:
        digests = archive.read("x.dist-info/RECORD").decode().splitlines()
    assert digests[0] == "a.py,sha256=a4ayc_80_OGda4BO_1o_V0etpOqiLx1JwB5S3beHW0s,1"
    assert digests[-1] == "x.dist-info/RECORD,,"


def test_the_run_serves_what_it_says(client: TestClient, run: FakeRun) -> None:
    """Wheel and constraints are at the addresses that the API gives, and have the digests that stand there."""
    said = client.get("/api/v1/joining").json()["software"]
    site = run.directory.settings.web_address
    for address in (said["wheel"], said["constraints"]):
        place, _, digest = address.partition("#sha256=")
        answer = client.get(place.removeprefix(site))
        assert answer.status_code == 200
        assert hashlib.sha256(answer.content).hexdigest() == digest
        etag = answer.headers["etag"]
        assert client.get(place.removeprefix(site), headers={"If-None-Match": etag}).status_code == 304
        assert client.head(place.removeprefix(site)).status_code == 200
    assert tuple(said["install"]) == install_commands(said["wheel"])
    assert client.get("/software/manyhands_swarm-0.0.1-py3-none-any.whl").status_code == 404


def test_the_notebook_is_for_this_run(client: TestClient, run: FakeRun) -> None:
    """It has the link and the software's address in it, so that it asks for neither, and is a notebook still."""
    said = client.get("/api/v1/joining").json()
    answer = client.get(said["software"]["notebook"].removeprefix(run.directory.settings.web_address))
    code = "".join(json.loads(answer.content)["cells"][1]["source"])
    assert f"SOFTWARE = {json.dumps(said['software']['wheel'])}" in code
    assert f"LINK = {json.dumps(said['join_link'])}" in code
    compile(code, "join.ipynb", "exec")


def test_an_agents_instructions_are_for_this_run(client: TestClient, run: FakeRun) -> None:
    """A skill with a name and a description, the run's own commands, and every option of `join` that it names."""
    said = client.get("/api/v1/joining").json()
    answer = client.get(said["software"]["skill"].removeprefix(run.directory.settings.web_address))
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    _, front, text = answer.text.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts.keys() == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]{1,64}", facts["name"])
    assert len(facts["description"]) <= 1024
    assert "\n".join(install_commands(said["software"]["wheel"])) in text
    assert f"manyhands/bin/manyhands doctor '{said['join_link']}'" in text
    assert str(default_state_dir(run.directory.join_link)).endswith(text.rpartition("/")[2].split("`")[0])
    assert "$" not in text
    known = {name for parameter in every_command()["manyhands join"].params for name in parameter.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", text)) - known == {"--create-dirs"}  # of another program


def test_the_wheel_installs_itself_only_if_its_digest_is_right(tmp_path: Path) -> None:
    """The commands stop at the check; a wheel that passes it is run, by whatever Python is there."""
    software = own_software()
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / software.name).write_bytes(software.wheel)
    address = software.address(f"file://{tmp_path}").replace("/software/", "/served/")
    commands = " && ".join(install_commands(address, "its folder"))
    helped = subprocess.run(["sh", "-c", f"{commands} --help"], cwd=tmp_path, capture_output=True, text=True)
    assert helped.returncode == 0, helped.stderr
    assert "usage: python3 manyhands_swarm" in helped.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name != "served"] == ["its folder"]
    (tmp_path / "served" / software.name).write_bytes(software.wheel + b"\0")
    refused = subprocess.run(["sh", "-c", f"{commands} --help"], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "usage" not in refused.stdout
