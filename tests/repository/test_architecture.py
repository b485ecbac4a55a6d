"""The packages keep their order and their processes apart: who may import whom, and who may import what.

Nor does any of them have a way to run what came over the network.

`auth` <- `peer` <- `coordinator`, and `manyhands.py` sees all. The swarm node is a fork, and neither gRPC nor an
accelerator survives a fork; so the processes that compute (worker, keeper, validator) never import gRPC, and those that
serve or show something (agent, service, commands) never import torch or hivemind, which keeps them small and quick to
start.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAY_IMPORT = {
    "auth": {"auth"},
    "peer": {"auth", "peer"},
    "dashboards": {"dashboards"},
    "coordinator": {"auth", "peer", "dashboards", "coordinator"},
    "manyhands": {"auth", "peer", "dashboards", "coordinator", "manyhands"},
}
HEAVY = {"torch", "hivemind", "transformers"}
GRPC = {"grpc", "grpc_health"}
# Where each process starts. The second group is spawned by the first; so what it needs is not the first group's.
SERVING = (
    "peer.cli.join",
    "peer.cli.corpus",
    "peer.cli.doctor",
    "peer.cli.name",
    "peer.cli.replay",
    "peer.cli.doctor",
    "peer.cli.tokenizer",
    "peer.cli.verify",
    "peer.agent.agent",
    "coordinator.cli.administration",
    "coordinator.cli.configure",
    "coordinator.cli.copies",
    "coordinator.cli.evaluator",
    "coordinator.cli.main",
    "coordinator.cli.members",
    "coordinator.cli.serve",
    "coordinator.cli.status",
    "coordinator.cli.steer",
    "coordinator.cli.demo",
    "coordinator.cli.evaluate",
    "coordinator.evaluation.evaluator",
    "coordinator.cli.export_model",
    "coordinator.announcements.herald",
    "coordinator.publishing.publisher",
    "coordinator.cli.release",
    "coordinator.service.supervisor",
    "coordinator.service.service",
    "coordinator.tracking.process",
    "manyhands",
)
TRAINING = (
    "peer.backends.device_trial",
    "peer.training.worker",
    "peer.doctor.swarm_helper",
    "peer.doctor.training_helper",
    "coordinator.playground.answerer",
    "coordinator.keeper.opening",
    "coordinator.checkpoints.validator",
    "coordinator.evaluation.tasks.worker",
)


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, for every module of ours."""
    paths = [path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in names.items()} | {"manyhands": ROOT / "manyhands.py"}


@cache
def tree_of(module: str) -> ast.Module:
    """A module's statements."""
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def without_types(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node but those that only type checkers read."""
    queue: list[ast.AST] = [tree]
    while queue:
        node = queue.pop()
        yield node
        for_checkers = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        queue += node.orelse if for_checkers else ast.iter_child_nodes(node)


@cache
def import_statements(module: str, types: bool = False) -> list[ast.Import | ast.ImportFrom]:
    """The imports of `module`, at its top or inside a function; with `types` also those only for type checkers."""
    nodes = ast.walk(tree_of(module)) if types else without_types(tree_of(module))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


@cache
def imports(module: str) -> frozenset[str]:
    """The modules that `module` imports, ours and others', at its top or inside a function."""
    found: set[str] = set()
    for node in import_statements(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module:
            found |= {node.module} | ({f"{node.module}.{alias.name}" for alias in node.names} & modules().keys())
    return frozenset(found)


def reached(start: str, border: tuple[str, ...] = ()) -> dict[str, str]:
    """All that the process which starts at `start` may import, now or in a call, each with the module that imports it.

    The walk goes through our own modules and their packages, and stops at those in `border`.
    """
    importer: dict[str, str] = {start: ""}
    queue = [start]
    while queue:
        name = queue.pop()
        parent = name.rpartition(".")[0]
        found = imports(name) | ({parent} if parent else set())
        for other in found - importer.keys():
            importer[other] = name
            if other in modules() and other not in border:
                queue.append(other)
    return importer


def chains(importer: dict[str, str], libraries: set[str]) -> list[str]:
    """How each of `libraries` is reached, written as `agent -> session -> torch`, for the failure's message."""
    found = []
    for name in importer:
        if name.split(".")[0] in libraries:
            steps = [name]
            while importer[steps[-1]]:
                steps.append(importer[steps[-1]])
            found.append(" -> ".join(reversed(steps)))
    return sorted(found)


def test_packages_only_import_what_lies_below_them() -> None:
    """`auth` imports no other package of ours, `peer` only `auth`, `coordinator` both; inside functions too."""
    ours = {module: {name.split(".")[0] for name in imports(module)} & MAY_IMPORT.keys() for module in modules()}
    upward = {module: found - MAY_IMPORT[module.split(".")[0]] for module, found in ours.items()}
    assert {module: found for module, found in upward.items() if found} == {}


# A folder imports only what stands left of it; folders between two `<` do not import each other.
LAYERS = {
    "peer": "config, protocol, installer < runtime, network < transport < reporting, verification, data.tokenization"
    " < reduction, data.selection, control, limits < node, gradients < averaging, data.sources < data.batching,"
    " data.corpus, data < models, progress < backends, swarm < training, doctor < rehearsal < agent < cli",
    "coordinator": "store, throttling < run < ledger < members < checkpoints, context < statistics, evaluation.tasks,"
    " backup, playground, tracking, control < keeper, evaluation, announcements < publishing < web.http < web.state"
    " < web.api, web.admin < web.pages < web < service < cli",
}
# Only these import a folder that can be deleted in one commit.
LEAVES = {
    "coordinator.announcements": {"coordinator.service.parts"},
    "coordinator.backup": {"coordinator.cli"},
    "coordinator.evaluation": {"coordinator.cli", "coordinator.publishing", "coordinator.web"},
    "coordinator.playground": {"coordinator.service.parts", "coordinator.web"},
    "coordinator.publishing": {"coordinator.cli", "coordinator.service.parts", "coordinator.web"},
    "coordinator.tracking": {"coordinator.service.parts"},
    "peer.data.corpus": {"peer.cli"},
    "peer.doctor": {"peer.cli", "coordinator.cli", "coordinator.service.doctor"},
    "peer.rehearsal": {"peer.cli"},
}
MOST_MODULES = 14  # of a folder


@cache
def own_imports(module: str, types: bool = True) -> frozenset[str]:
    """Our modules that `module` imports, also only for type checkers if `types`; of a name, the one that defines it."""
    found: set[str] = set()
    for node in import_statements(module, types):
        if isinstance(node, ast.ImportFrom) and node.module in modules():
            found |= {
                name if (name := f"{node.module}.{alias.name}") in modules() else node.module for alias in node.names
            }
    return frozenset(found)


def within(module: str, folder: str) -> bool:
    """Whether a module is the folder's own or of a folder in it."""
    return module == folder or module.startswith(f"{folder}.")


@cache
def layer_of(module: str) -> tuple[int, str] | None:
    """The place in its package's row of the innermost folder that the row names, and that folder."""
    package = module.split(".")[0]
    rows = [
        (i, f"{package}.{name}")
        for i, row in enumerate(LAYERS.get(package, "").split("<"))
        for name in row.replace(",", " ").split()
    ]
    holding = [place for place in rows if within(module, place[1])]
    return max(holding, key=lambda place: len(place[1]), default=None)


def test_folders_import_only_lower_layers() -> None:
    """No module imports, even for type checkers only, a folder on its own level of the package or above it."""
    upward = []
    for module in modules():
        for other in own_imports(module):
            here, there = layer_of(module), layer_of(other)
            if here and there and module.split(".")[0] == other.split(".")[0] and here != there and there[0] >= here[0]:
                upward.append(f"{module} imports {other}")
    assert upward == []


def test_every_folder_has_a_layer() -> None:
    """A new folder gets its place in `LAYERS`."""
    inner = [module for module in modules() if module.count(".") > 1 and ".migrations" not in module]
    assert [module for module in inner if module.split(".")[0] in LAYERS and layer_of(module) is None] == []


@pytest.mark.parametrize("package", LAYERS)
def test_the_architecture_draws_these_layers(package: str) -> None:
    """docs/architecture.md shows the same rows, the top one first, each with a few words beside it."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = text.split(f"`{package}`, from the top:\n\n```\n")[1].split("```")[0]
    rows = [line.split("  ")[0] for line in picture.splitlines()]
    assert " < ".join(reversed(rows)) == LAYERS[package]


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaves_can_be_deleted(leaf: str) -> None:
    """Only the command line, the list of the service's parts and the pages that show it import a leaf."""
    importers = {
        module
        for module in modules()
        if not within(module, leaf) and any(within(name, leaf) for name in own_imports(module))
    }
    assert [module for module in importers if not any(within(module, allowed) for allowed in LEAVES[leaf])] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Each module can be understood after those that it imports."""
    left = {module: own_imports(module, types=False) - {module} for module in modules() if ".migrations" not in module}
    while free := [module for module, needed in left.items() if not needed & left.keys()]:
        for module in free:
            del left[module]
    assert sorted(left) == []


def test_folders_are_small() -> None:
    """A folder with more modules holds more than one idea."""
    paths = [*modules().values(), *(ROOT / "benchmarks").rglob("*.py")]
    sizes = Counter(path.parent for path in paths if path.name != "__init__.py" and "_pb2" not in path.name)
    assert {
        str(folder): size for folder, size in sizes.items() if size > MOST_MODULES and folder.name != "versions"
    } == {}


def test_each_public_class_has_a_name_of_its_own() -> None:
    """A name means one thing in the whole project, so that a reader who meets it knows which class it is."""
    owners = defaultdict(list)
    for module in modules():
        if "_pb2" in module or ".migrations" in module:
            continue
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners[node.name].append(module)
    assert {name: found for name, found in owners.items() if len(found) > 1} == {}


@pytest.mark.parametrize("start", SERVING)
def test_serving_processes_never_import_the_training_stack(start: str) -> None:
    """No import on any path from the agent, the service or a command reaches torch, hivemind or transformers."""
    assert chains(reached(start, border=TRAINING), HEAVY) == []


@pytest.mark.parametrize("start", TRAINING)
def test_training_processes_never_import_grpc(start: str) -> None:
    """No import on any path from worker, keeper or validator reaches gRPC, whose threads do not survive a fork."""
    assert chains(reached(start), GRPC) == []


def test_the_validator_never_forks() -> None:
    """It is no part of the swarm: nothing that it imports reaches hivemind."""
    assert chains(reached("coordinator.checkpoints.validator"), {"hivemind"}) == []


@pytest.mark.parametrize(("starts", "libraries"), [(SERVING, HEAVY), (TRAINING, GRPC)], ids=["serving", "training"])
def test_a_fresh_interpreter_confirms_it(starts: tuple[str, ...], libraries: set[str]) -> None:
    """Importing each process's first module loads none of the other side's libraries, third parties' included.

    One interpreter imports one after the other and names the first that loads a library. Nor do the imports print
    anything: most tests fork such processes after them, and would not see it.
    """
    script = f"""
import importlib, sys
for start in {starts!r}:
    importlib.import_module(start)
    if found := {libraries!r} & sys.modules.keys():
        sys.exit(f"{{start}} loads {{found}}")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


# What the supervisor may load of third parties: it does nothing but watch, for as long as a run is served.
OF_SUPERVISOR = {"typer", "click", "annotated_doc", "psutil", "setproctitle", "shellingham", "typing_extensions"}
OF_SUPERVISOR |= {"pydantic", "pydantic_core", "annotated_types", "typing_inspection"}  # its event log


def test_the_supervisor_loads_no_more_than_it_needs() -> None:
    """Database, settings and keys are loaded by the preparation and the parts, each in a process of its own."""
    script = """
import sys
before = set(sys.modules)
import manyhands, peer.runtime.commands, peer.runtime.software, coordinator.cli.main, coordinator.cli.serve
print(*{name.split(".")[0] for name in set(sys.modules) - before if not name.startswith("_")} - sys.stdlib_module_names)
"""
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert set(loaded) - OF_SUPERVISOR <= MAY_IMPORT.keys()


@cache
def suite() -> dict[str, ast.Module]:
    """Every module of the tests by its path."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def test_no_test_module_imports_another() -> None:
    """Helpers of several test modules are in `tests/support`, so that a test can be moved or removed alone."""
    found = {
        path: [name for name in imported(tree) if re.match(r"tests\.(.*\.)?test_", name)]
        for path, tree in suite().items()
    }
    assert {path: names for path, names in found.items() if names} == {}


def imported(tree: ast.Module) -> Iterator[str]:
    """The names that a module imports, each with its module's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_each_fixture_is_defined_once() -> None:
    """A fixture that two files need is in a `conftest.py` above both."""
    files = defaultdict(list)
    for path, tree in suite().items():
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_fixture(node):
                files[code_of(node)].append(path)
    assert [paths for paths in files.values() if len(paths) > 1] == []


def is_fixture(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether one of its decorators makes it a fixture."""
    return any(ast.unparse(decorator).startswith("pytest.fixture") for decorator in function.decorator_list)


def code_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Decorators, parameters and statements of a function, whatever its name, its docstring and its variables are."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    local = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    parameters = [argument.arg for argument in function.args.args]
    code = "\n".join([*map(ast.unparse, function.decorator_list), *parameters, *map(ast.unparse, body)])
    return re.sub(r"\w+", lambda word: "_" if word[0] in local else word[0], code)


# What turns data into code, or may.
UNPACKERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
RUNNERS = {"eval", "exec", "compile", "__import__"}  # as plain calls; `re.compile` is another
LOADERS = {"torch.load", "torch.hub.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.jit.load"}


def dotted(node: ast.expr) -> str:
    """`a.b.c` for such an expression, else nothing."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def test_each_top_folder_keeps_its_budget_of_lines() -> None:
    """CONTRIBUTING has the table; generated files, and the guide once it is built, do not count."""
    budgets = re.findall(
        r"^\| `(\w+)/` \| ([\d ]+) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {name for name, _ in budgets} == {*MAY_IMPORT, "benchmarks", "tests"} - {"manyhands"}
    lines = {name: sum(map(length, sources(ROOT / name))) for name, _ in budgets}
    assert {name: lines[name] for name, most in budgets if lines[name] > int(most.replace(" ", ""))} == {}


def sources(folder: Path) -> Iterator[Path]:
    """The files of a folder that somebody has written as code."""
    for path in folder.rglob("*"):
        if path.suffix in {".py", ".js", ".css", ".html"} and "guide" not in path.parts and "_pb2" not in path.name:
            yield path


def length(path: Path) -> int:
    """The lines of a file."""
    return path.read_text(encoding="utf-8").count("\n")


def dangers(tree: ast.Module) -> list[str]:
    """The calls and imports in a module that could execute what somebody else wrote."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [name for name in names if name.split(".")[0] in UNPACKERS]
        if isinstance(node, ast.Call):
            found += dangers_of_call(node)
    return found


def dangers_of_call(call: ast.Call) -> list[str]:
    """Why a call is one of them: by its name, or by how it is asked."""
    name, keywords = dotted(call.func), {keyword.arg: keyword.value for keyword in call.keywords}
    found = [name] if name in RUNNERS | LOADERS else []
    found += [f"{name}({key}=...)" for key in ("trust_remote_code", "allow_pickle") if key in keywords]
    if name.endswith(".from_pretrained") and not name.split(".")[-2].endswith(("Tokenizer", "Config")):
        safe = keywords.get("use_safetensors")
        found += (
            [] if isinstance(safe, ast.Constant) and safe.value is True else [f"{name} without use_safetensors=True"]
        )
    return found


def test_nothing_that_comes_from_elsewhere_is_executed() -> None:
    """No module of ours unpickles, evaluates, asks for remote code, or loads weights other than safetensors."""
    found = {module: dangers(tree_of(module)) for module in modules()}
    assert {module: dangerous for module, dangerous in found.items() if dangerous} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "def f():\n    import torch\n    torch.load(path)",
        "yaml.load(text)",
        "eval(text)",
        "AutoModel.from_pretrained(path)",
        "AutoModel.from_pretrained(path, use_safetensors=False)",
        "AutoTokenizer.from_pretrained(path, trust_remote_code=False)",
        "numpy.load(path, allow_pickle=True)",
    ],
)
def test_what_would_execute_it_is_recognized(source: str) -> None:
    """The test above sees each of the ways."""
    assert len(dangers(ast.parse(source))) == 1
