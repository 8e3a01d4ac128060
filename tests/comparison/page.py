"""The list of the known differences, and the page that is made of it."""

import fnmatch
import tomllib
from pathlib import Path

import scenario
from differences import Difference, Differences

HERE = Path(__file__).parent
LISTED = HERE / "differences.toml"
PAGE = HERE.parent.parent / "docs" / "comparison-with-deepagents.md"
KINDS = {
    "wire": "The form of requests",
    "deliberate": "What the model is told",
    "wording": "Other words",
}
"""The kinds of differences, with their headings."""
WORDED = ": wording"
"""The end of the ids of texts in other words."""


def check(found: Differences, update: bool) -> list[str]:
    """Returns what is wrong: differences that are not listed, entries without a difference, and an old page."""
    entries = tomllib.loads(LISTED.read_text())["difference"]
    problems = []
    shown: list[list[Difference]] = [[] for _ in entries]
    for difference in found.all.values():
        matching = [at for at, entry in enumerate(entries) if _matches(entry, difference.id)]
        if not matching:
            seen = f"deepagents: {difference.theirs[:300]} | adjutant: {difference.ours[:300]}"
            problems.append(f"not listed: {difference.id} (request {difference.place}): {seen}")
        else:
            shown[matching[0]].append(difference)
    for entry, differences in zip(entries, shown, strict=True):
        for pattern in entry["ids"]:
            if not any(fnmatch.fnmatchcase(difference.id, pattern) for difference in differences):
                problems.append(f"listed, but not there: {pattern}")
    text = _page(found, entries, shown)
    if update and not problems:
        PAGE.write_text(text)
    elif not problems and (not PAGE.exists() or PAGE.read_text() != text):
        problems.append(f"{PAGE.name} is out of date: run with --update, or the test with UPDATE_DOCS=1")
    return problems


def _matches(entry: dict, id: str) -> bool:
    return any(fnmatch.fnmatchcase(id, pattern) for pattern in entry["ids"])


def _page(found: Differences, entries: list[dict], shown: list[list[Difference]]) -> str:
    agents = len(scenario.ANSWERS) - 1
    worded = found.results - found.equal_results
    parts = [
        (HERE / "introduction.md")
        .read_text()
        .format(
            requests=found.requests,
            agents=agents,
            turns=len(scenario.TURNS),
            tools=found.tools,
            results=len(found.results),
            equal=len(found.equal_results),
            worded=len(worded),
            versions=", ".join(_versions()),
        )
    ]
    for kind, heading in KINDS.items():
        rows = [
            f"| {entry['what']} | {_evidence(differences)} | {entry['why']} |"
            for entry, differences in zip(entries, shown, strict=True)
            if entry["kind"] == kind
        ]
        head = ["| Difference | deepagents → adjutant | Reason |", "|---|---|---|"]
        parts.append("\n".join([f"## {heading}", "", *head, *rows, ""]))
    return "\n".join(parts)


def _versions() -> list[str]:
    lines = (HERE / "requirements.txt").read_text().splitlines()
    return [line.replace("==", " ") for line in lines if "==" in line]


def _evidence(differences: list[Difference]) -> str:
    """Returns the differences of an entry, with the values of both sides unless only the words differ."""
    by_values: dict[str, list[str]] = {}
    for difference in differences:
        is_worded = difference.id.endswith(WORDED)
        values = "other words" if is_worded else f"{_cell(difference.theirs)} → {_cell(difference.ours)}"
        by_values.setdefault(values, []).append(f"`{difference.id.removesuffix(WORDED)}`")
    return "; ".join(f"{', '.join(ids)}: {values}" for values, ids in by_values.items())


def _cell(value: str) -> str:
    short = value if len(value) <= 90 else f"{value[:87]}…"
    short = " ".join(short.split()).replace("|", "\\|")
    return short if short in ("absent", "nothing", "null", "error") else f"`{short}`"
