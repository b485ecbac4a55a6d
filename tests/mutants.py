"""Change the modules of [tool.mutmut] in one small way at a time, and count the changes that their tests notice.

`make mutants` runs it; mutmut makes the mutants and runs the tests, this draws a sample of them and prints a table.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name

LEAST_NOTICED = 0.9
MISSED, UNREACHED = ("survived", "not checked", "check was interrupted by user"), "no tests"


def main() -> int:
    """Run the chosen mutants; return 1 if too few were noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", help="a single one, such as peer/reduction/audit.py")
    parser.add_argument("--sample", type=int, default=25, help="mutants drawn from each module; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    paths = sorted(path for path in walk_mutatable_files() if options.module in (None, str(path)))
    if not paths:
        parser.error(f"--module {options.module} is not listed under [tool.mutmut] of pyproject.toml")
    drawn = {path: _draw(path, options.sample, options.seed) for path in paths}
    shutil.rmtree("mutants", ignore_errors=True)  # mutmut does not renew its copies of the sources
    command = [Path(sys.executable).with_name("mutmut"), "run", "--max-children", str(options.workers)]
    if status := subprocess.run([*command, *(name for names in drawn.values() for name in names)]).returncode:
        return status
    print(f"{'module':36}{'mutants':>10}{'noticed':>10}{'missed':>10}{'unreached':>10}{'%':>8}")
    in_all: Counter[str] = Counter()
    for path, names in drawn.items():
        in_all += (found := _results(path, names))
        _print_line(str(path), found)
    return int(_print_line("all", in_all) < LEAST_NOTICED)


def _draw(path: Path, count: int, seed: int) -> list[str]:
    names = [get_mutant_name(path, name) for name in mutate_file_contents(str(path), path.read_text()).mutant_names]
    return random.Random(f"{seed} {path}").sample(names, count) if 0 < count < len(names) else names


def _results(path: Path, names: list[str]) -> Counter[str]:
    """The number of mutants by status."""
    data = SourceFileMutationData(path=path)
    data.load()
    return Counter(status_by_exit_code[data.exit_code_by_key[name]] for name in names)


def _print_line(title: str, found: Counter[str]) -> float:
    """The share that was noticed of what the tests reach."""
    reached, missed = found.total() - found[UNREACHED], sum(found[end] for end in MISSED)
    share = 1 - missed / reached if reached else 1.0
    print(f"{title:36}{found.total():10}{reached - missed:10}{missed:10}{found[UNREACHED]:10}{100 * share:8.1f}")
    return share


if __name__ == "__main__":
    sys.exit(main())
