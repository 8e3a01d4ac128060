"""Has a program of deepagents and a configuration of adjutant play one scenario, and compares what the model is asked.

    python tests/comparison/compare.py --program target/debug/adjutant            # fails if a difference is not listed
    python tests/comparison/compare.py --program target/debug/adjutant --update   # also writes the page

Texts that both sides write in words of their own are compared by what they tell: paths, numbers and names. The
differences and their reasons are listed in `differences.toml`; `docs/comparison-with-deepagents.md` is made of them.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import configured
import deepagent
import page
import scenario
from differences import Differences, differences
from provider import Provider


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--program", required=True, help="the program adjutant")
    options.add_argument("--storage", default="sqlite::memory:", help="the address of adjutant's database")
    options.add_argument("--update", action="store_true", help="write the page")
    options.add_argument("--record", help="a file for the requests of both sides")
    given = options.parse_args()
    program = str(Path(given.program).resolve())
    theirs = _played(lambda provider, folder: deepagent.converse(provider, folder / "work"))
    ours = _played(lambda provider, folder: configured.converse(provider, folder, program, given.storage))
    if given.record:
        Path(given.record).write_text(json.dumps({"deepagents": theirs, "adjutant": ours}, indent=1))
    found = differences(theirs, ours)
    problems = page.check(found, given.update)
    for problem in problems:
        print(problem)
    if not problems:
        print(_summary(found))
    return 1 if problems else 0


def _played(converse: Callable[[str, Path], None]) -> dict[str, list[dict]]:
    with tempfile.TemporaryDirectory() as name, Provider() as provider:
        folder = Path(name)
        (folder / "work").mkdir()
        scenario.write_files(folder / "work")
        try:
            converse(provider.base, folder)
        finally:
            # A side may take the refusal for a failure of the model and go on, or fail with less to say.
            for complaint in provider.complaints:
                print(complaint, file=sys.stderr)
        if provider.complaints:
            raise SystemExit(1)
        return provider.requests


def _summary(found: Differences) -> str:
    return f"{found.requests} requests were compared; all {len(found.all)} differences are listed"


if __name__ == "__main__":
    sys.exit(main())
