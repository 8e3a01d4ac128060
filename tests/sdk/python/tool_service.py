"""A service of tools of all kinds, for the tests: python tool_service.py PORT FOLDER TOKEN."""

import sys
import time
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[3] / "python/src"))

from deepagents.backends import FilesystemBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from fastmcp import Context, FastMCP
from langchain.agents.middleware import TodoListMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId
from langchain_core.tools import tool as langchain_tool
from langgraph.types import Command, interrupt

from adjutant_tools import Result, ToolContext, ask, ask_all, delegate, progress, run_subagent, serve, tool

port, folder, token = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]


def add(a: int, b: int = 2) -> int:
    """Adds.

    Args:
        a: The first.
    """
    return a + b


async def whoami(context: ToolContext) -> dict:
    "Says who calls."
    return {"agent": context.agent_name, "thread": context.thread_id, "user": context.context.get("user")}


def note(text: str) -> Result:
    "Notes."
    return Result("noted", artifact={"length": len(text)}, update={"topic": text})


@tool(state=["topic"])
def recall(context: ToolContext) -> str:
    "Recalls what was noted."
    return f"the topic is {context.state.get('topic')}"


def study(context: ToolContext) -> dict:
    "Reads of the run that calls it."
    run = context.reader()
    reports = {file["path"]: run.read_text(file["path"]) for file in run.files()}
    likes = [item["value"] for item in run.search(["memories"])]
    return {"messages": len(run.state("messages")["messages"]), "reports": reports, "likes": likes}


def broken() -> None:
    "Breaks."
    raise ValueError("no such thing")


def tell(wait: bool = False):
    "Tells a story in pieces."
    yield "Once "
    yield {"part": 1}
    while wait and not (folder / "go").exists():
        time.sleep(0.02)
    yield "upon a time."


def hand_over(work: str):
    "Hands work over."
    return delegate(work, "helper")


def compare(works: list[str]) -> str:
    "Has subagents work one after the other."
    found = [run_subagent(work, "helper") for work in works]
    return " / ".join(found)


def book(city: str) -> str:
    "Books a journey."
    with (folder / "book").open("a") as log:
        log.write("run\n")
    if not ask(f"Book {city}?", bool, key="sure"):
        return "not booked"
    seat, meal = ask_all(["Which seat?", "Which meal?"])
    return f"{city}: {seat}, {meal}"


@tool(idempotent=True)
def pay(sum: int) -> str:
    "Pays, and takes its time."
    with (folder / "pay").open("a") as log:
        log.write(f"{sum}\n")
    while not (folder / "go").exists():
        time.sleep(0.02)
    return f"paid {sum}"


@langchain_tool(response_format="content_and_artifact")
def multiply(a: int, b: int) -> tuple[str, dict]:
    "Multiplies."
    return str(a * b), {"product": a * b}


@langchain_tool
def remember(what: str, call: Annotated[str, InjectedToolCallId]) -> Command:
    "Remembers."
    progress({"remembering": what})
    return Command(update={"topic": what, "messages": [ToolMessage("remembered", tool_call_id=call)]})


@langchain_tool
def confirm(what: str) -> str:
    "Asks as LangGraph does."
    return f"{what}: {interrupt({'confirm': what})}"


shelf = FastMCP("shelf")


@shelf.tool
async def measure(text: str, context: Context) -> dict[str, int]:
    "Measures a text."
    await context.report_progress(1, 2, "half")
    return {"length": len(text)}


def late() -> str:
    "Comes later."
    return "better"


tools = [add, whoami, note, recall, study, broken, tell, hand_over, compare, book]
tools += [pay, multiply, remember, confirm, shelf]
tools += TodoListMiddleware().tools
tools += FilesystemMiddleware(backend=FilesystemBackend(root_dir=folder, virtual_mode=True)).tools
if (folder / "late").exists():
    tools.append(late)
serve(tools, port=port, token=token, results=folder / "results.sqlite")
