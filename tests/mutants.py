"""Change the modules of [tool.mutmut] in one small way at a time, and count the changes that their tests notice.

`make mutants` runs it; mutmut makes the mutants and runs the tests, this draws a sample of them and prints a table.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name

LEAST_NOTICED = 90  # per cent


def main() -> int:
    """Run the chosen mutants; return 1 if too few were noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", help="a single one, such as peer/audit.py")
    parser.add_argument("--sample", type=int, default=25, help="mutants drawn from each module; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    paths = [path for path in walk_mutatable_files() if options.module in (None, str(path))]
    if not paths:
        parser.error(f"--module {options.module} is not listed under [tool.mutmut] of pyproject.toml")
    drawn = {path: _draw(path, options.sample, options.seed) for path in sorted(paths)}
    names = [name for sample in drawn.values() for name in sample]
    shutil.rmtree("mutants", ignore_errors=True)  # mutmut does not renew its copies of the sources
    mutmut = Path(sys.executable).with_name("mutmut")
    if status := subprocess.run([mutmut, "run", "--max-children", str(options.workers), *names]).returncode:
        return status
    missed = {path: _missed(path, sample) for path, sample in drawn.items()}
    for name in (every_missed := [name for sample in missed.values() for name in sample]):
        print("missed:", name)
    print(f"{'module':36}{'mutants':>8}{'noticed':>8}{'missed':>8}{'%':>8}")
    for path, sample in drawn.items():
        print(_line(str(path), len(sample), len(missed[path])))
    print(_line("all", len(names), len(every_missed)))
    return int(100 * (len(names) - len(every_missed)) < LEAST_NOTICED * len(names))


def _draw(path: Path, count: int, seed: int) -> list[str]:
    names = [get_mutant_name(path, name) for name in mutate_file_contents(str(path), path.read_text()).mutant_names]
    return random.Random(f"{seed} {path}").sample(names, count) if 0 < count < len(names) else names


def _missed(path: Path, names: list[str]) -> list[str]:
    results = SourceFileMutationData(path=path)
    results.load()
    return [name for name in names if status_by_exit_code[results.exit_code_by_key[name]] in {"survived", "no tests"}]


def _line(title: str, count: int, missed: int) -> str:
    return f"{title:36}{count:8}{count - missed:8}{missed:8}{100 * (count - missed) / count:8.1f}"


if __name__ == "__main__":
    sys.exit(main())
