"""The documents and the code agree: what a person can type, set, open or read from a script stands in `docs/`.

A name counts as documented where it stands in backquotes or in a code block, so that no ordinary word passes for it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from auth import errors
from auth.errors import ManyhandsError
from coordinator.service.supervisor import LONGEST_STOP_S as LONGEST_STOP_OF_SERVE_S
from coordinator.web.app import ROUTERS
from docs.reference.commands import every_command
from peer.agent.agent import LONGEST_STOP_S as LONGEST_STOP_OF_AGENT_S
from peer.config.architectures import ARCHITECTURES
from peer.config.recipes import RECIPES, load_recipe
from peer.config.run import RunConfig
from peer.config.tokenizer import Algorithm, Normalizer, PresetName, PreTokenizer

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = ("auth", "peer", "coordinator", "dashboards", "notebooks", "docker", "manyhands.py", "tests/conftest.py")
ENVIRONMENT_VARIABLE = re.compile(r"\bMANYHANDS_[A-Z][A-Z_]*[A-Z]\b")
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
CODE_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@cache
def documented() -> str:
    """Everything in the documents that is set as code."""
    blocks = [block for _, block in CODE_BLOCK.findall(TEXT)]
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", CODE_BLOCK.sub("", TEXT))])


def is_documented(name: str) -> bool:
    """Whether `name` stands there as a whole word (an option also with its dashes)."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", documented()) is not None


def run_file_examples() -> list[str]:
    """Every run file, or part of one, that the documents show."""
    return [block for language, block in CODE_BLOCK.findall(TEXT) if language == "yaml"]


def shell_commands() -> Iterator[str]:
    """Every command that the documents tell a person to type."""
    for path in DOCUMENTS:
        for language, block in CODE_BLOCK.findall(path.read_text(encoding="utf-8")):
            if language == "sh":
                yield from (line.split("  #")[0].strip() for line in block.replace("\\\n", " ").splitlines() if line)


def source_files() -> Iterator[Path]:
    """Every text file of the program, the notebook and the container."""
    for name in CODE:
        path = ROOT / name
        yield from (path.rglob("*") if path.is_dir() else (path,))


def leaf_errors(kind: type[ManyhandsError] = ManyhandsError) -> Iterator[type[ManyhandsError]]:
    """The whole error tree."""
    yield kind
    for child in kind.__subclasses__():
        yield from leaf_errors(child)


@pytest.mark.parametrize("error", sorted(set(leaf_errors()), key=lambda error: (error.exit_code, error.code)))
def test_every_exit_code_is_explained(error: type[ManyhandsError]) -> None:
    """The list of exit codes has each error's number and name, what happened, and what to do."""
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    assert re.search(rf"\b{error.exit_code}(`\*\*)? \(`{error.code}`\)", text)
    assert error is ManyhandsError or len((error.__doc__ or "").split("\n\n")) > 1


def tokenizer_words() -> list[str]:
    """The names of presets, algorithms and steps, and the steps' parameters."""
    return sorted({*get_args(PresetName), *get_args(Algorithm), *step_words(Normalizer), *step_words(PreTokenizer)})


def step_words(union: Any) -> Iterator[str]:
    """The names and parameters of all steps of one kind."""
    for step in get_args(get_args(union)[0]):
        yield from get_args(step.model_fields["name"].annotation)
        yield from step.model_fields


@pytest.mark.parametrize("word", tokenizer_words())
def test_every_step_of_a_tokenizer_is_documented(word: str) -> None:
    """The operator's guide explains what a tokenizer can be made of."""
    assert is_documented(word)


@pytest.mark.parametrize("example", run_file_examples())
def test_every_run_file_in_the_documents_is_valid(example: str) -> None:
    """Whoever copies an example into a run file gets no error."""
    RunConfig.from_mapping(yaml.safe_load(example))


def test_the_documents_show_every_family() -> None:
    """Each family has an example or a recipe."""
    shown = {RunConfig.from_mapping(yaml.safe_load(example)).model.architecture for example in run_file_examples()}
    shown |= {load_recipe(name).model.architecture for name in RECIPES}
    assert set(ARCHITECTURES) - shown <= {"deberta"}  # as `deberta-v2`


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_its_row_with_the_files_numbers(name: str) -> None:
    """The table of recipes tells the length and the batch that the run file has."""
    config = load_recipe(name)
    [row] = re.findall(rf"^\| `{name}` .*$", TEXT, re.MULTILINE)
    assert f"| {config.data.sequence_length} | {config.averaging.target_batch_size} |" in row


def test_every_environment_variable_is_documented() -> None:
    """Each variable of ours that the code reads has its place in the documents."""
    names = {
        name
        for path in source_files()
        if path.suffix in {".py", ".ipynb", ".yaml", ".Dockerfile"}
        for name in ENVIRONMENT_VARIABLE.findall(path.read_text(encoding="utf-8"))
    }
    assert {name for name in names if not is_documented(name)} == set()


def test_every_route_is_documented() -> None:
    """The guides list each path that the web port serves."""
    paths = {route.path for router in ROUTERS for route in router.routes}
    assert paths
    assert {path for path in paths if f"`{path}`" not in TEXT} == set()


def test_every_metric_is_documented() -> None:
    """The operator's guide explains each metric by the name under which Prometheus stores it."""
    sources = [
        ROOT / "coordinator" / "context" / "telemetry.py",
        *(ROOT / "coordinator" / "web" / "state").glob("metric*.py"),
    ]
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    found = re.findall(r'(?:(counter\w*)\(\s*)?"(manyhands_\w+)"', text, re.IGNORECASE)
    names = {name + ("_total" if counter else "") for counter, name in found}
    assert len(names) == len(set(re.findall(r'"(manyhands_\w+)"', text)))
    assert {name for name in names if not is_documented(name)} == set()


def test_every_alert_is_documented() -> None:
    """The operator's guide says of each alert what to do."""
    rules = yaml.safe_load((ROOT / "dashboards" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert {name for name in names if f"| `{name}` |" not in TEXT} == set()


def test_every_make_target_in_the_documents_exists() -> None:
    """Whoever types `make ...` as the documents say finds that target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {match.group(1) for line in shell_commands() if (match := re.match(r"make ([a-z-]+)", line))}
    assert named
    assert named <= targets


def test_every_path_in_the_readme_exists() -> None:
    """The file map of the README leads somewhere."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path for path in re.findall(r"`([\w.-]+/[\w./-]*)`", text) if not (ROOT / path).exists()] == []


def test_every_link_and_picture_leads_somewhere_on_a_code_host() -> None:
    """There the documents are read as they lie in the repository."""
    lost = []
    for page in (*DOCUMENTS, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"):
        text = re.sub(r"`[^`\n]+`", "", CODE_BLOCK.sub("", page.read_text(encoding="utf-8")))
        for link in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
            path, _, anchor = "".join(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if re.match(r"[a-z]+:", path) or (target.exists() and (not anchor or anchor in anchors(target))):
                continue
            lost.append(f"{page.relative_to(ROOT)}: {''.join(link)}")
    assert lost == []


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that a code host gives to a page's headings."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", CODE_BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def long_options(command: Any) -> set[str]:
    """`--port` and the like; `--help` needs no explanation."""
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")} - {"--help"}


def typed_commands() -> list[str]:
    """Each `manyhands ...` that the documents tell a person to type."""
    lines = (line.removeprefix(".venv/bin/").removeprefix("manyhands/bin/") for line in shell_commands())
    return sorted({line for line in lines if line.startswith("manyhands ")})


@pytest.mark.parametrize("line", typed_commands())
def test_every_command_in_the_documents_exists_with_its_options(line: str) -> None:
    """Whoever copies a command from the documents does not get a usage error."""
    words = shlex.split(line)
    command = max((path for path in every_command() if words[: len(path.split())] == path.split()), key=len)
    typed = {word.split("=")[0] for word in words if word.startswith("--")}
    assert typed <= long_options(every_command()[command])


def test_every_sentence_that_may_be_odd_is_said_by_the_program() -> None:
    """Whoever searches the page for what a terminal says finds it."""
    sources = [path for folder in ("auth", "peer", "coordinator") for path in (ROOT / folder).rglob("*.py")]
    said = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in sources)
    page = (ROOT / "docs/volunteers/odd.md").read_text(encoding="utf-8")
    sentences = [
        text for row in re.findall(r"^\| (`.+?) \|", page, re.MULTILINE) for text in re.findall(r"`(.+?)`", row)
    ]
    assert len(sentences) > 20
    parts = {part.strip(" ,.:") for sentence in sentences for part in sentence.split("...")} - {""}
    assert [part for part in sorted(parts) if part not in said] == []


NEVER_AGAIN_FOR_A_VOLUNTEER = [
    "ConfigError",
    "LinkError",
    "FingerprintError",
    "NotInvitedError",
    "UnknownInviteError",
    "UsedInviteError",
    "ExpiredInviteError",
    "RevokedError",
    "VersionError",
    "UnfitError",
    "MemoryLimitError",
    "LoginDeniedError",
    "LoginExpiredError",
    "NotAllowedError",
]


@pytest.mark.parametrize(
    ("page", "never_again", "longest_stop_s"),
    [
        ("volunteers/running.md", NEVER_AGAIN_FOR_A_VOLUNTEER, LONGEST_STOP_OF_AGENT_S),
        ("operators/start.md", ["ConfigError", "DatabaseError"], LONGEST_STOP_OF_SERVE_S),
    ],
)
def test_a_unit_of_the_guide_starts_again_what_another_start_can_mend(
    page: str, never_again: list[str], longest_stop_s: float
) -> None:
    """By the exit codes of the errors; and systemd waits until the program has ended in order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    [unit] = [block for language, block in CODE_BLOCK.findall(text) if language == "ini"]
    values = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    wrong_options, second_interrupt = 2, 130
    codes = {getattr(errors, name).exit_code for name in never_again} | {wrong_options, second_interrupt}
    assert values["RestartPreventExitStatus"].split() == [str(code) for code in sorted(codes)]
    assert float(values["TimeoutStopSec"]) > longest_stop_s
    assert values["ExecStart"].split()[0] == "%h/manyhands/bin/manyhands"
