"""The agent, its files, and the conversation: what both sides are given, and what the model answers them."""

from pathlib import Path

COORDINATOR = "You coordinate the work on a small library of animals."
RESEARCHER = "You look things up, one question at a time."
WRITER = "You write notes, briefly."
JUDGE = "You judge notes."
MARKS = {"main": COORDINATOR, "researcher": RESEARCHER, "writer": WRITER, "judge": JUDGE}
"""The instructions by which the provider tells the agents apart."""

VERDICT = {
    "title": "Verdict",
    "description": "The verdict about a note.",
    "type": "object",
    "properties": {"verdict": {"type": "string"}, "confidence": {"type": "number"}},
    "required": ["verdict", "confidence"],
}

SUBAGENTS = [
    {
        "name": "researcher",
        "description": "Answers one question about an animal.",
        "system_prompt": RESEARCHER,
        "tools": ["lookup"],
    },
    {"name": "writer", "description": "Writes a note about what it is told.", "system_prompt": WRITER},
    {
        "name": "judge",
        "description": "Judges a note.",
        "system_prompt": JUDGE,
        "tools": [],
        "response_format": VERDICT,
    },
]

TRIGGER_MESSAGES = 70
KEPT_MESSAGES = 4

MEMORY_FILES = {
    "/AGENTS.md": "Notes are kept in /notes. <!-- not for the model -->\nNames of animals are in the plural.\n",
    "/more/AGENTS.md": "The reader is a child.\n",
}
SKILLS = {
    "citing": "Name the source of every fact.",
    "drawing": "Describe pictures in words.",
}


def _skill(name: str, description: str) -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\nThe whole text about {name}.\n"


FILES = {
    **MEMORY_FILES,
    **{f"/skills/{name}/SKILL.md": _skill(name, description) for name, description in SKILLS.items()},
    "/docs/long.txt": "".join(f"line {number}\n" for number in range(1, 251)),
    "/docs/empty.txt": "",
    "/docs/.hidden.txt": "Otters hide.\n",
    "/docs/wide.txt": "Otters " + "x" * 6000 + "\nnarrow\n",
}


def write_files(root: Path) -> None:
    """Writes the files into the directory of the workspace."""
    for path, text in FILES.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / "nothing").mkdir()


def lookup(query: str) -> str:
    """Returns what is known about an animal."""
    if query == "unicorns":
        raise ValueError("nothing is known about unicorns")
    return f"{query} live in the wild"


def report(lines: int = 3) -> str:
    """Returns a report of this many lines."""
    return "\n".join(f"{number}: a line of the report about animals in the wild" for number in range(1, lines + 1))


DESCRIPTIONS = {"lookup": "Looks up an animal.", "report": "Gets a report."}
"""The tools of the agents, as both sides describe them."""


def call(id: str, tool: str, /, **args: object) -> dict:
    """Returns a call of the model."""
    return {"id": id, "name": tool, "args": args}


def calls(*several: dict, text: str = "") -> dict:
    """Returns an answer with calls."""
    return {"text": text, "calls": list(several)}


def says(text: str) -> dict:
    """Returns an answer without calls."""
    return {"text": text, "calls": []}


OTTERS = "/notes/otters.md"
FOXES = "/notes/foxes.md"
REPORT = "/large_tool_results/report_long"

TODOS = [
    {"content": "Set up the notes", "status": "in_progress"},
    {"content": "Look up otters", "status": "pending"},
]

TURNS = [
    "Plan the work, and set up the notes.",
    "Now make every mistake that there is.",
    "Have both colleagues work.",
    "Get the long report.",
    "How are you?",
    "And what did I ask for at first?",
    "Look at the notes again.",
]
"""What the user says, one run for each."""

ANSWERS = {
    "main": [
        # The plan and the notes.
        calls(call("todos", "write_todos", todos=TODOS), text="First a plan."),
        calls(
            call("write_otters", "write_file", file_path=OTTERS, content="Otters swim.\nOtters eat fish.\n"),
            call("write_foxes", "write_file", file_path=FOXES, content="foxes run\nfoxes hunt\n"),
        ),
        calls(
            call("ls_root", "ls", path="/"),
            call("ls_notes", "ls", path="/notes"),
            call("ls_nothing", "ls", path="/nothing"),
            call("read_otters", "read_file", file_path=OTTERS),
            call("read_long", "read_file", file_path="/docs/long.txt"),
            call("read_part", "read_file", file_path="/docs/long.txt", offset=245, limit=10),
            call("read_empty", "read_file", file_path="/docs/empty.txt"),
            call("read_zero", "read_file", file_path="/docs/long.txt", limit=0),
            call("read_skill", "read_file", file_path="/skills/citing/SKILL.md"),
            call("read_wide", "read_file", file_path="/docs/wide.txt"),
        ),
        calls(
            call("edit_otters", "edit_file", file_path=OTTERS, old_string="Otters swim.", new_string="Otters dive."),
            call("edit_foxes", "edit_file", file_path=FOXES, old_string="foxes", new_string="Foxes", replace_all=True),
        ),
        calls(
            call("glob_names", "glob", pattern="*.md"),
            call("glob_below", "glob", pattern="**/*.md", path="/notes"),
            call("glob_none", "glob", pattern="*.rs"),
            call("glob_rooted", "glob", pattern="/docs/*.txt"),
            call("grep_files", "grep", pattern="Otters"),
            call("grep_content", "grep", pattern="Otters", path="/notes", output_mode="content"),
            call("grep_count", "grep", pattern="Otters", path="/notes", output_mode="count"),
            call("grep_glob", "grep", pattern="oxes", glob="*.md"),
            call("grep_none", "grep", pattern="badgers"),
            call("grep_regex", "grep", pattern="Ott.*"),
            call("grep_some", "grep", pattern="line", path="/docs/long.txt", output_mode="content", max_count=2),
        ),
        calls(
            call("write_again", "write_file", file_path=FOXES, content="Foxes rest.\n"),
            call("write_scratch", "write_file", file_path="/notes/scratch/a.md", content="a"),
        ),
        calls(call("delete_scratch", "delete", file_path="/notes/scratch")),
        says("The notes are set up."),
        # Every mistake.
        calls(
            call("read_missing", "read_file", file_path="/notes/missing.md"),
            call("read_beyond", "read_file", file_path=OTTERS, offset=50),
            call("read_directory", "read_file", file_path="/notes"),
            call("read_relative", "read_file", file_path="notes/otters.md"),
            call("read_outside", "read_file", file_path="/../secret.txt"),
            call("edit_missing", "edit_file", file_path="/notes/missing.md", old_string="a", new_string="b"),
            call("ls_missing", "ls", path="/missing"),
            call("grep_missing", "grep", pattern="a", path="/missing"),
            call("delete_missing", "delete", file_path="/notes/lost.md"),
            call("teleport", "teleport", place="home"),
            call("lookup_unicorns", "lookup", query="unicorns"),
        ),
        calls(
            call("edit_absent", "edit_file", file_path=OTTERS, old_string="Otters fly", new_string="b"),
            call("edit_several", "edit_file", file_path=FOXES, old_string="s", new_string="z"),
        ),
        calls(
            call("write_incomplete", "write_file", file_path="/notes/a.md"),
            call("read_wrong_type", "read_file", file_path=OTTERS, limit="many"),
            call("grep_wrong_mode", "grep", pattern="a", output_mode="lines"),
            call("todos_wrong", "write_todos", todos=[{"content": "x", "status": "maybe"}]),
            call("lookup_wrong", "lookup", name="otters"),
            call("write_twice_1", "write_file", file_path="/notes/twice.md", content="1"),
            call("write_twice_2", "write_file", file_path="/notes/twice.md", content="2"),
        ),
        calls(
            call("todos_one", "write_todos", todos=TODOS[:1]),
            call("todos_two", "write_todos", todos=TODOS[1:]),
        ),
        # Calls whose arguments are no JSON, beside one that can be made.
        calls(
            {"id": "malformed", "name": "write_file", "text": '{"file_path": "/notes/b.md", "content": '},
            {"id": "garbled", "name": "write_file", "text": "/notes/b.md"},
            call("read_beside", "read_file", file_path=FOXES),
        ),
        says("Those were the mistakes."),
        # Delegation.
        calls(
            call("task_researcher", "task", description="Where do otters live?", subagent_type="researcher"),
            call("task_writer", "task", description="Write a note about otters.", subagent_type="writer"),
            text="Both at once.",
        ),
        calls(
            call("task_judge", "task", description="Judge the note.", subagent_type="judge"),
            call("task_general", "task", description="Count the notes.", subagent_type="general-purpose"),
        ),
        calls(
            call("task_unknown", "task", description="Dance.", subagent_type="dancer"),
            call("task_prompt", "task", description="Write.", subagent_type="writer", prompt="Be brief."),
            call("task_incomplete", "task", subagent_type="writer"),
        ),
        # Files that others have written meanwhile, and one that was never read.
        calls(
            call("edit_summary", "edit_file", file_path="/notes/summary.md", old_string="the wild", new_string="rivers"),
            call("edit_unread", "edit_file", file_path="/more/AGENTS.md", old_string="child", new_string="grown-up"),
            call("write_unread", "write_file", file_path="/docs/empty.txt", content="No longer empty.\n"),
        ),
        calls(
            call("write_summary", "write_file", file_path="/notes/summary.md", content="Otters.\n"),
            call("ls_file", "ls", path=OTTERS),
            call("grep_file", "grep", pattern="dive", path=OTTERS, output_mode="content"),
        ),
        says("Both have worked."),
        # The large result.
        calls(call("report_long", "report", lines=2000)),
        calls(
            call("read_report", "read_file", file_path=REPORT, offset=1000, limit=2),
            call("grep_report", "grep", pattern="1999: a line", path="/large_tool_results"),
        ),
        says("The report is long."),
        # Talk, until the conversation is summarised.
        says("Well."),
        says("For notes."),
        calls(call("read_after", "read_file", file_path=OTTERS)),
        says("They are as they were."),
    ],
    "researcher": [
        calls(call("lookup_otters", "lookup", query="otters")),
        says("Otters live in the wild.\n\n"),
    ],
    "writer": [
        calls(
            call("note", "write_file", file_path="/notes/summary.md", content="Otters live in the wild.\n"),
            call("report_short", "report"),
        ),
        calls(call("read_note", "read_file", file_path="/notes/summary.md")),
        calls(call("report_writer", "report", lines=2000)),
        says("The note is in /notes/summary.md."),
    ],
    "judge": [
        calls(call("verdict_incomplete", "Verdict", verdict="good")),
        calls(call("verdict", "Verdict", verdict="good", confidence=0.5)),
    ],
    "general-purpose": [calls(call("count", "ls", path="/notes")), says("There are notes.")],
    "summary": [says("The user asked for notes about animals.")],
}
"""What the model answers to the requests of each agent, and to the one for a summary."""


def traces() -> list[str]:
    """Returns texts of the main agent's conversation by which a part of it is recognised."""
    answers = ANSWERS["main"]
    texts = [*TURNS, *(answer["text"] for answer in answers)]
    for call in (call for answer in answers for call in answer["calls"]):
        texts += [value for value in call.get("args", {}).values() if isinstance(value, str)]
    # Short texts occur elsewhere, and line breaks are written in different ways.
    return [text for text in dict.fromkeys(texts) if len(text) > 6 and "\n" not in text]


def expected(lane: str) -> list[str]:
    """Returns the configured texts that an agent's instructions have to contain."""
    skills = [part for name, text in SKILLS.items() for part in (text, f"`/skills/{name}/SKILL.md`")]
    if lane == "general-purpose":
        return skills
    if lane != "main":
        return [MARKS[lane]]
    memory = ["Notes are kept in /notes.", "Names of animals are in the plural.", "The reader is a child."]
    return [COORDINATOR, *skills, *memory, "not for the model"]
