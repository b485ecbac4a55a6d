"""The packages keep their order and their processes apart: who may import whom, and who may import what.

`auth` <- `peer` <- `coordinator`, and `manyhands.py` sees all. hivemind forks, and neither gRPC nor an accelerator
survives a fork; so the processes that train (worker, keeper) never import gRPC, and those that serve or show something
(agent, service, commands) never import torch or hivemind, which also keeps them small and quick to start.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "auth": {"auth"},
    "peer": {"auth", "peer"},
    "dashboards": {"dashboards"},
    "coordinator": {"auth", "peer", "dashboards", "coordinator"},
    "manyhands": {"auth", "peer", "dashboards", "coordinator", "manyhands"},
}
HEAVY = {"torch", "hivemind", "transformers"}
# The modules of the worker and the keeper: all others stay free of HEAVY.
TRAINING = (
    "auth.swarm_auth",
    "coordinator.checkpoints",
    "coordinator.keeper",
    "coordinator.probe",
    "peer.averaging",
    "peer.backends.*",
    "peer.data.*",
    "peer.models",
    "peer.objectives",
    "peer.optim",
    "peer.progress",
    "peer.swarm",
    "peer.trainer",
    "peer.worker",
)


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, for every module of ours."""
    paths = [path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in names.items()} | {"manyhands": ROOT / "manyhands.py"}


def statements(body: list[ast.stmt], inside_functions: bool) -> Iterator[ast.stmt]:
    """Every statement that runs on import; with `inside_functions` also those that run on a call."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions:
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        for field in ("body", "orelse", "finalbody", "handlers"):
            for child in getattr(statement, field, []):
                children = child.body if isinstance(child, ast.ExceptHandler) else [child]
                yield from statements(children, inside_functions)


@cache
def imports(module: str, inside_functions: bool = False) -> frozenset[str]:
    """The modules that `module` imports, ours and others', as written in its source."""
    found: set[str] = set()
    for statement in statements(ast.parse(modules()[module].read_text(encoding="utf-8")).body, inside_functions):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            names = {f"{statement.module}.{alias.name}" for alias in statement.names}
            found |= {statement.module} | (names & modules().keys())
    return frozenset(found)


def reached(module: str) -> set[str]:
    """Everything that importing `module` imports, through any number of our own modules and their packages."""
    seen: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        queue += [parent for parent in (name.rpartition(".")[0],) if parent in modules()]
        if name in modules():
            queue += imports(name)
    return seen


def trains(module: str) -> bool:
    """Whether `module` belongs to the worker's or the keeper's process."""
    return any(fnmatch(module, pattern) for pattern in TRAINING)


@pytest.mark.parametrize("module", sorted(modules()))
def test_packages_only_import_what_lies_below_them(module: str) -> None:
    """`auth` imports no other package of ours, `peer` only `auth`, `coordinator` both; also inside functions."""
    package = module.split(".")[0]
    ours = {name.split(".")[0] for name in imports(module, inside_functions=True)} & MAY_IMPORT.keys()
    assert ours <= MAY_IMPORT[package]


@pytest.mark.parametrize("module", sorted(name for name in modules() if not trains(name)))
def test_serving_modules_do_not_import_the_training_stack(module: str) -> None:
    """Outside the worker and the keeper no import reaches torch, hivemind or transformers, not even a later one."""
    names = reached(module) | imports(module, inside_functions=True)
    assert not {name for name in names if name.split(".")[0] in HEAVY}


@pytest.mark.parametrize("module", sorted(name for name in modules() if trains(name)))
def test_training_modules_do_not_import_grpc(module: str) -> None:
    """What the worker and the keeper import never reaches gRPC, whose threads do not survive hivemind's forks."""
    assert not {name for name in reached(module) if name.split(".")[0] in {"grpc", "grpc_health"}}


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("peer.agent", HEAVY),
        ("peer.cli", HEAVY),
        ("coordinator.cli", HEAVY),
        ("coordinator.service", HEAVY),
        ("manyhands", HEAVY),
        ("peer.swarm", {"grpc"}),
        ("coordinator.keeper", {"grpc"}),
    ],
)
def test_import_really_stays_clear(module: str, forbidden: set[str]) -> None:
    """In a fresh interpreter the import leaves out the other side's libraries, third parties' own imports included."""
    script = f"import sys, {module}; print(*({forbidden!r} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.split() == []


def test_every_training_pattern_names_a_module() -> None:
    """No exception outlives the module it was made for."""
    assert [pattern for pattern in TRAINING if not any(fnmatch(name, pattern) for name in modules())] == []
