"""The images and `compose.yaml`, as far as files tell without an engine: complete, locked down, and as documented."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from coordinator.cli.configure import RUN_FILE, VARIABLES
from coordinator.service.supervisor import LONGEST_STOP_S as LONGEST_STOP_OF_SERVE_S
from peer.agent.agent import LONGEST_STOP_S as LONGEST_STOP_OF_AGENT_S
from tests.support.local_servers import LocalServer, in_thread

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE = DOCKER / "compose.yaml"
EXAMPLE = DOCKER / ".env.example"
TIMER = DOCKER / "back-up-daily"
IMAGES = sorted(DOCKER.glob("*.Dockerfile"))
OWN_IMAGES = {"manyhands-coordinator": "coordinator.Dockerfile", "manyhands-peer": "peer.Dockerfile"}
INTERPOLATED = re.compile(r"(?<!\$)\$\{(\w+)")
Instruction = tuple[str, str]


def instructions(dockerfile: Path) -> list[Instruction]:
    """What a Dockerfile says: each instruction with its arguments, lines that go on joined, comments left out."""
    lines = (line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#"))
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (name.upper(), rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.split("\n") if line)
    ]


def last_stage(dockerfile: Path) -> list[Instruction]:
    """The instructions that make the image itself."""
    found = instructions(dockerfile)
    start = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    return found[start:]


def arguments(found: list[Instruction], name: str) -> list[str]:
    """Those of all instructions of a name."""
    return [rest for instruction, rest in found if instruction == name]


@cache
def compose() -> dict[str, Any]:
    """The Compose file, its merges done, its variables as they stand."""
    content: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return content


def services() -> dict[str, dict[str, Any]]:
    """Every service of every profile."""
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def example_variables() -> list[str]:
    """The variables that `.env.example` lists."""
    return re.findall(r"^(\w+)=", EXAMPLE.read_text(), re.MULTILINE)


def is_let_through(path: str) -> bool:
    """Whether `.dockerignore` lets a file through: the last pattern that fits it, or a folder of it, counts."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    names = [path, *(str(parent) for parent in PurePosixPath(path).parents)]
    included = True
    for pattern in (line for line in lines if line and not line.startswith("#")):
        plain = pattern.removeprefix("!")
        if any(_fits(name, plain) for name in names):
            included = pattern.startswith("!")
    return included


def _fits(name: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch(PurePosixPath(name).name, pattern.removeprefix("**/"))
    return fnmatch(name, pattern) and name.count("/") == pattern.count("/")


def test_compose_file_follows_the_specification() -> None:
    """The Compose specification's own schema accepts the file."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("dockerfile", IMAGES, ids=lambda path: path.stem)
def test_everything_an_image_copies_is_there_and_let_through(dockerfile: Path) -> None:
    """Each source of a COPY exists, and `.dockerignore` leaves it in the context."""
    copied = [
        source
        for rest in arguments(instructions(dockerfile), "COPY")
        if not rest.startswith("--from=")
        for source in shlex.split(rest)[:-1]
    ]
    assert copied
    assert [source for source in copied if not (ROOT / source).exists() or not is_let_through(source)] == []


@pytest.mark.parametrize(
    "path",
    [
        "docker/.env",
        "docker/run.yaml",
        ".git",
        "tests/repository/test_docker.py",
        "auth/__pycache__/x.pyc",
        "my-run/keys",
    ],
)
def test_nothing_else_reaches_the_builder(path: str) -> None:
    """Secrets, runs and what the images do not need stay out of the build's context."""
    assert not is_let_through(path)


@pytest.mark.parametrize("dockerfile", IMAGES, ids=lambda path: path.stem)
def test_an_image_holds_what_the_installed_program_needs(dockerfile: Path) -> None:
    """Every package of the wheel, every file that its build names, and what links in a package lead to, is copied."""
    copied = {source for rest in arguments(instructions(dockerfile), "COPY") for source in shlex.split(rest)[:-1]}
    project = (ROOT / "pyproject.toml").read_text()
    (named,) = re.findall(r"^only-include = \[(.*)\]$", project, re.MULTILINE)
    wheel = set(re.findall(r'"([^"]+)"', named))
    links = {path.resolve() for name in wheel for path in (ROOT / name).rglob("*") if path.is_symlink()}
    linked = {path.relative_to(ROOT).as_posix() for path in links}
    assert linked == {"constraints.txt", "notebooks/join.ipynb"}
    assert copied >= wheel | linked | {"pyproject.toml", "README.md", "LICENSE"}


@pytest.mark.parametrize("dockerfile", IMAGES, ids=lambda path: path.stem)
def test_an_image_runs_as_a_user_without_rights_and_says_how_it_is(dockerfile: Path) -> None:
    """The user is the one that the image makes; there is a health check, one volume, and process 1 is tini."""
    stage = last_stage(dockerfile)
    assert arguments(stage, "USER") == ["10001"]
    assert "useradd --uid 10001 --create-home manyhands" in " ".join(arguments(stage, "RUN"))
    assert len(arguments(stage, "HEALTHCHECK")) == 1
    assert arguments(stage, "VOLUME") == ["/data"]
    assert arguments(stage, "ENTRYPOINT")[0].startswith('["tini", "--"')


@pytest.mark.parametrize("dockerfile", IMAGES, ids=lambda path: path.stem)
def test_an_image_is_small_and_pinned(dockerfile: Path) -> None:
    """What builds it is left behind; pip installs by the constraints and keeps no cache, apt only what is named."""
    found = instructions(dockerfile)
    runs = arguments(found, "RUN")
    assert len(arguments(found, "FROM")) == 2
    assert all(":" in image and not image.endswith(":latest") for image in arguments(found, "FROM"))
    assert not arguments(found, "ADD")
    installs = [run for run in runs if " install " in run and "-m pip" in run]
    assert installs
    assert all("-c constraints.txt" in run and "--no-cache-dir" in run for run in installs)
    systems = [run for run in runs if "apt-get install" in run]
    assert all("--no-install-recommends" in run and "rm -rf /var/lib/apt/lists/*" in run for run in systems)
    assert "pip" not in " ".join(arguments(last_stage(dockerfile), "RUN"))


def test_the_image_starts_what_it_copies() -> None:
    """The coordinator's command is a program that can be executed, in a shell that understands it."""
    stage = last_stage(DOCKER / "coordinator.Dockerfile")
    assert arguments(stage, "CMD") == ['["serve-run"]']
    assert services()["backup"]["command"] == [TIMER.name]
    (copied,) = [shlex.split(rest) for rest in arguments(stage, "COPY") if "docker/" in rest]
    assert copied == ["docker/serve-run", "docker/back-up-daily", "/usr/local/bin/"]
    for program in (DOCKER / "serve-run", TIMER):
        assert program.stat().st_mode & 0o111 == 0o111
        subprocess.run(["sh", "-n", str(program)], check=True)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_fails_with_the_services_own_reason(status: int, code: int) -> None:
    """The engine keeps what the command prints, and shows it beside the state."""

    class Readyz(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()
            self.wfile.write(b"the keeper has been silent")

    (check,) = arguments(last_stage(DOCKER / "coordinator.Dockerfile"), "HEALTHCHECK")
    _, flag, program = json.loads(check.partition("CMD ")[2])
    server = LocalServer(Readyz)
    with in_thread(server):
        environment = os.environ | {"MANYHANDS_WEB_PORT": str(server.server_port)}
        command = [sys.executable, flag, program.strip()]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "the keeper has been silent\n"), done.stderr


def back_up(
    tmp_path: Path, commands: str, *options: str, kept: int = 2
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the timer once, with `commands` in place of the backup into `$target`; return what is in the folder then."""
    folder, programs = tmp_path / "backups", tmp_path / "bin"
    for made in (folder, programs):
        made.mkdir(exist_ok=True)
    (programs / "manyhands").write_text(f"#!/bin/sh\ntarget=$4\n{commands}\n")
    (programs / "manyhands").chmod(0o755)
    script = tmp_path / TIMER.name
    script.write_text(TIMER.read_text().replace("folder=/backups", f"folder={folder}"))
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "MANYHANDS_BACKUPS_KEPT": str(kept)}
    done = subprocess.run(
        ["sh", str(script), "--now", *options], env=environment, capture_output=True, text=True, check=False
    )
    return done, sorted(path.name for path in folder.iterdir())


def test_the_newest_backups_are_kept(tmp_path: Path) -> None:
    """Older ones go when a new one is there; what else lies in the folder stays, but for halves of a day ago."""
    folder = tmp_path / "backups"
    for name in (
        "run-20200101-000000",
        "run-20210101-000000",
        "letters",
        ".run-20200101-000000.ab.new",
        ".run-2.cd.new",
    ):
        (folder / name).mkdir(parents=True)
    os.utime(folder / ".run-20200101-000000.ab.new", (0, 0))
    done, found = back_up(tmp_path, 'mkdir "$target"')
    assert done.returncode == 0, done.stderr
    newest = [name for name in found if name > "run-2021"]
    assert found == [".run-2.cd.new", "letters", *newest]
    assert newest[0] == "run-20210101-000000"
    assert len(newest) == 2


def test_a_backup_that_fails_costs_none_of_the_others(tmp_path: Path) -> None:
    """Nothing is removed, and the exit code is the command's."""
    names = ["run-20200101-000000", "run-20210101-000000", "run-20220101-000000"]
    for name in names:
        (tmp_path / "backups" / name).mkdir(parents=True)
    done, found = back_up(tmp_path, "exit 14")
    assert (done.returncode, found) == (14, names)


def test_a_backup_that_cannot_be_restored_counts_for_none(tmp_path: Path) -> None:
    """It gets another name, under which only the newest is kept, and costs none of the others."""
    for name in ("run-20200101-000000", "bad-run-20200102-000000"):
        (tmp_path / "backups" / name).mkdir(parents=True)
    done, found = back_up(tmp_path, '[ "$5" = --verify ] || exit 3; mkdir "$target"; exit 14', kept=1)
    assert done.returncode == 14, done.stderr
    assert [name[:9] for name in found] == ["bad-run-2", "run-20200"]
    assert found[0] != "bad-run-20200102-000000"


def test_the_timer_hands_its_options_on(tmp_path: Path) -> None:
    """What follows `--now` goes to the backup, behind the two folders and `--verify`."""
    done, _ = back_up(tmp_path, 'mkdir "$target"; shift 4; echo "$@"', "--yes", "--no-checkpoints")
    assert (done.returncode, done.stdout) == (0, "--verify --yes --no-checkpoints\n")


def test_a_container_may_take_as_long_to_stop_as_its_program() -> None:
    """The grace of Compose, and of the commands in the guides, is longer than what the program allows itself."""
    needed = {"coordinator": LONGEST_STOP_OF_SERVE_S, "demo-peer-1": LONGEST_STOP_OF_AGENT_S}
    for name, seconds in needed.items():
        assert float(services()[name]["stop_grace_period"].removesuffix("s")) >= seconds + 10
    assert services()["demo-peer-2"]["stop_grace_period"] == services()["demo-peer-1"]["stop_grace_period"]
    guides = {"operators/containers.md": LONGEST_STOP_OF_SERVE_S, "volunteers/join.md": LONGEST_STOP_OF_AGENT_S}
    for guide, seconds in guides.items():
        told = re.findall(r"docker run[^`\n]*", (ROOT / "docs" / guide).read_text())
        assert told
        for command in told:
            (limit,) = re.findall(r"--stop-timeout (\d+)", command)
            assert int(limit) >= seconds + 10


@pytest.mark.parametrize("name", sorted(services()))
def test_a_service_may_do_nothing_that_it_need_not(name: str) -> None:
    """No container writes to its image, gains rights or logs without end; only foreign images get a capability."""
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"]["options"]["max-size"]
    assert not (service.keys() & {"privileged", "user", "network_mode", "pid", "ipc", "devices"})
    assert "cap_add" not in service or service["image"] not in OWN_IMAGES
    assert not service["image"].endswith(":latest")


@pytest.mark.parametrize("name", sorted(services()))
def test_a_service_says_how_it_is(name: str) -> None:
    """Each container that stays has a health check, its own or its image's."""
    service = services()[name]
    if service["restart"] == "no":
        assert service["healthcheck"] == {"disable": True}
    else:
        assert service["image"] in OWN_IMAGES or service["healthcheck"]["test"]


@pytest.mark.parametrize("name", sorted(services()))
def test_everything_a_service_mounts_is_there(name: str) -> None:
    """Each folder or file of ours that is mounted exists and cannot be written; each volume is declared."""
    for mount in services()[name].get("volumes", []):
        if isinstance(mount, dict):
            assert mount["read_only"] is True
            source = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", mount["source"])
        else:
            source, _, rest = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", mount).partition(":")
            assert source in compose()["volumes"] or rest.endswith(":ro")
        assert source in compose()["volumes"] or (DOCKER / source).is_file(), source


@pytest.mark.parametrize("name", sorted(name for name in services() if services()[name]["image"] in OWN_IMAGES))
def test_our_services_are_built_here(name: str) -> None:
    """An image of ours is built from its own file in the repository's root, and keeps its data in one volume."""
    service = services()[name]
    assert service["build"]["dockerfile"] == f"docker/{OWN_IMAGES[service['image']]}"
    assert (COMPOSE.parent / service["build"]["context"]).resolve() == ROOT
    assert [mount for mount in service["volumes"] if str(mount).endswith(":/data")]


def test_every_profile_is_explained() -> None:
    """`.env.example` lists each profile, and without any there is the coordinator alone."""
    used = {profile for service in services().values() for profile in service.get("profiles", [])}
    listed = set(re.findall(r"^#   (\w+)  ", EXAMPLE.read_text(), re.MULTILINE))
    assert used == listed == {"backup", "postgres", "monitoring", "tls", "demo"}
    assert [name for name, service in services().items() if "profiles" not in service] == ["coordinator"]


def test_every_variable_is_explained() -> None:
    """`.env.example` lists exactly what the Compose file reads, each with a comment and none with a value."""
    text = EXAMPLE.read_text()
    assert len(example_variables()) == len(set(example_variables()))
    assert set(example_variables()) == {*INTERPOLATED.findall(COMPOSE.read_text()), "COMPOSE_PROFILES"}
    assert set(re.findall(r"^\w+=(.*)$", text, re.MULTILINE)) == {""}
    for block in text.strip().split("\n\n"):
        assert block.startswith("# ")


@pytest.mark.parametrize("name", example_variables())
def test_every_variable_is_documented(name: str) -> None:
    """The operator's guide has each variable of `.env.example`."""
    assert f"`{name}`" in (ROOT / "docs" / "operators" / "containers.md").read_text()


def test_the_coordinator_is_told_all_that_it_reads() -> None:
    """What `configure` reads is what the Compose file hands to the container, and the run file where it is mounted."""
    assert {*services()["coordinator"]["environment"], RUN_FILE} == set(VARIABLES)
    (mounted,) = [mount["target"] for mount in services()["coordinator"]["volumes"] if isinstance(mount, dict)]
    assert f"mounted={mounted}\n" in (DOCKER / "serve-run").read_text()


def test_the_demo_needs_nothing_filled_in() -> None:
    """`demo.env` sets what is required, and nothing that does not exist."""
    given = dict(re.findall(r"^(\w+)=(.*)$", (DOCKER / "demo.env").read_text(), re.MULTILINE))
    required = set(re.findall(r"(?<!\$)\$\{(\w+):\?", COMPOSE.read_text()))
    assert required <= given.keys() <= {*example_variables(), "COMPOSE_PROJECT_NAME"}
    assert given["MANYHANDS_HOST"] in services()  # a name that the volunteers' containers can look up


@pytest.mark.parametrize("name", ["caddy", "prometheus"])
def test_files_of_foreign_images_read_what_they_are_given(name: str) -> None:
    """A placeholder in Caddy's file is a variable of its container; Prometheus has the port to put in place of 8080."""
    given = services()[name]["environment"].keys()
    used = re.findall(r"\{\$(\w+)\}", (DOCKER / "Caddyfile").read_text()) if name == "caddy" else ["MANYHANDS_WEB_PORT"]
    assert used
    assert set(used) <= given


def test_prometheus_and_grafana_meet_by_the_containers_names() -> None:
    """Prometheus scrapes the coordinator under the job that the alerts name, and Grafana asks Prometheus."""
    scraped = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["job_name"] == "manyhands"
    assert job["static_configs"] == [{"targets": ["coordinator:8080"]}]
    mounted = [mount.split(":")[1] for mount in services()["prometheus"]["volumes"]]
    assert set(scraped["rule_files"]) <= set(mounted)
    (source,) = yaml.safe_load((DOCKER / "grafana-datasource.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
