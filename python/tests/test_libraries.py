"""Tools of LangChain, deepagents and FastMCP, as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from conftest import Service

pytest.importorskip("langchain_core")
pytest.importorskip("langgraph")
pytest.importorskip("fastmcp")
import fastmcp
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, StructuredTool
from langchain_core.tools import tool as langchain_tool
from langgraph.prebuilt import InjectedState
from langgraph.prebuilt.tool_node import ToolRuntime
from langgraph.types import Command, interrupt
from pydantic import BaseModel, Field

from adjutant_tools import tool


def test_tools_of_langchain_are_served_as_they_are(run: Any) -> None:
    @langchain_tool(parse_docstring=True)
    def multiply(a: int, b: int = 2) -> int:
        """Multiplies.

        Args:
            a: The first.
            b: The second.
        """
        return a * b

    class Arguments(BaseModel):
        text: str = Field(description="Some text.")

    async def shout(text: str) -> str:
        return text.upper()

    class Reverse(BaseTool):
        name: str = "reverse"
        description: str = "Reverses."
        args_schema: type[BaseModel] = Arguments

        def _run(self, text: str) -> str:
            return text[::-1]

    shouting = StructuredTool.from_function(coroutine=shout, name="shout", description="Shouts.", args_schema=Arguments)
    service = Service(multiply, shouting, Reverse())
    listed = run(service.list())
    assert listed["multiply"]["parameters"]["properties"]["a"] == {"description": "The first.", "type": "integer"}
    assert listed["multiply"]["parameters"]["required"] == ["a"]
    assert run(service.call("multiply", {"a": 3}, task="1")) == {"content": "6"}
    assert run(service.call("shout", {"text": "ab"}, task="2")) == {"content": "AB"}
    assert run(service.call("reverse", {"text": "ab"}, task="3")) == {"content": "ba"}
    assert "error" in run(service.call("multiply", {"a": "x"}, task="4"))


def test_artifacts_commands_and_errors_of_langchain_become_those_of_the_contract(run: Any) -> None:
    @langchain_tool(response_format="content_and_artifact")
    def find(what: str) -> tuple[str, list[int]]:
        "Finds."
        return f"found {what}", [1, 2]

    @langchain_tool
    def remember(what: str, call: Annotated[str, InjectedToolCallId]) -> Command:
        "Remembers."
        return Command(update={"facts": [what], "messages": [ToolMessage("noted", tool_call_id=call)]})

    @langchain_tool
    def jump() -> Command:
        "Jumps."
        return Command(goto="elsewhere")

    @langchain_tool
    def broken() -> str:
        "Breaks."
        raise ValueError("no")

    service = Service(find, remember, jump, broken)
    assert run(service.call("find", {"what": "x"}, task="1")) == {"content": "found x", "artifact": [1, 2]}
    assert list(run(service.list())["remember"]["parameters"]["properties"]) == ["what"]
    remembered = {"content": "noted", "update": {"facts": ["x"]}}
    assert run(service.call("remember", {"what": "x"}, task="2")) == remembered
    assert "goto" in run(service.call("jump", {}, task="3"))["error"]["message"]
    assert run(service.call("broken", {}, task="4")) == {"error": {"type": "ValueError", "message": "no"}}


def test_what_langchain_injects_is_given(run: Any) -> None:
    @langchain_tool
    def who(
        greeting: str,
        user: Annotated[str, InjectedToolArg],
        notes: Annotated[list[str], InjectedState("notes")],
        runtime: ToolRuntime,
    ) -> str:
        "Says who."
        runtime.stream_writer({"seen": True})
        return f"{greeting} {user} {notes} {runtime.tool_call_id} {runtime.context['user']}"

    service = Service(who)
    entry = run(service.list())["who"]
    assert list(entry["parameters"]["properties"]) == ["greeting"] and entry["state"] == ["notes"]
    more = {"context": {"user": "u1"}, "state": {"notes": ["n"]}}
    assert run(service.lines("who", {"greeting": "hi"}, **more)) == [
        {"custom": [{"seen": True}]},
        {"content": "hi u1 ['n'] c1 u1"},
    ]
    assert "notes" in run(service.call("who", {"greeting": "hi"}, task="2", context={"user": "u"}))["error"]["message"]


def test_the_interrupt_of_langgraph_asks_a_human(run: Any) -> None:
    @langchain_tool
    def book(city: str) -> str:
        "Books."
        first = interrupt({"book": city})
        second = interrupt("Which seat?")
        return f"{first} {second}"

    service = Service(book)
    asked = run(service.call("book", {"city": "Rome"}))["interrupts"]
    assert asked == [{"key": "interrupt-1", "value": {"book": "Rome"}}]
    answers = [{"key": "interrupt-1", "response": "yes"}]
    asked = run(service.call("book", {"city": "Rome"}, answers=answers))["interrupts"]
    assert asked == [{"key": "interrupt-2", "value": "Which seat?"}]
    answers.append({"key": "interrupt-2", "response": "4a"})
    assert run(service.call("book", {"city": "Rome"}, answers=answers)) == {"content": "yes 4a"}


def test_tools_that_deepagents_brings_are_served_as_they_are(run: Any) -> None:
    middleware = pytest.importorskip("langchain.agents.middleware")
    todos = middleware.TodoListMiddleware().tools[0]
    service = Service(todos)
    plan = [{"content": "look", "status": "pending"}]
    answer = run(service.call("write_todos", {"todos": plan}))
    assert answer["update"] == {"todos": plan} and "look" in answer["content"]


def test_what_deepagents_takes_and_brings_is_served_as_it_is(run: Any, tmp_path: Path) -> None:
    deepagents = pytest.importorskip("deepagents")
    from deepagents.backends import FilesystemBackend
    from deepagents.middleware.filesystem import FilesystemMiddleware
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel

    def search(query: str) -> str:
        "Searches."
        return f"found {query}"

    @langchain_tool
    def multiply(a: int, b: int) -> int:
        "Multiplies."
        return a * b

    tools = [search, multiply]
    deepagents.create_deep_agent(model=GenericFakeChatModel(messages=iter([])), tools=tools)
    (tmp_path / "a.txt").write_text("otters")
    files = FilesystemMiddleware(backend=FilesystemBackend(root_dir=tmp_path, virtual_mode=True)).tools
    service = Service(*tools, *files)
    assert run(service.call("search", {"query": "x"}, task="1")) == {"content": "found x"}
    assert run(service.call("multiply", {"a": 2, "b": 3}, task="2")) == {"content": "6"}
    assert "otters" in run(service.call("read_file", {"file_path": "/a.txt"}, task="3"))["content"]
    run(service.call("write_file", {"file_path": "/b.txt", "content": "seals"}, task="4"))
    assert (tmp_path / "b.txt").read_text() == "seals"


def test_a_server_of_fastmcp_is_served_as_it_is(run: Any) -> None:
    server = fastmcp.FastMCP("shelf")

    @server.tool
    async def add(a: int, b: int = 2, context: fastmcp.Context = None) -> int:  # type: ignore[assignment]
        "Adds."
        await context.report_progress(1, 2, "half")
        return a + b

    @server.tool(annotations={"idempotentHint": True})
    def broken() -> str:
        "Breaks."
        raise ValueError("no way")

    @server.tool
    async def book(context: fastmcp.Context) -> str:
        "Books."
        answer = await context.elicit("Which seat?", response_type=str)
        return f"{answer.action} {getattr(answer, 'data', None)}"

    service = Service(server)
    listed = run(service.list())
    assert listed["add"]["description"] == "Adds." and listed["add"]["parameters"]["required"] == ["a"]
    assert listed["broken"]["idempotent"] is True
    lines = run(service.lines("add", {"a": 1}))
    assert lines[0] == {"custom": [{"progress": 1.0, "total": 2.0, "message": "half"}]}
    assert lines[1]["content"] == "3" and lines[1]["artifact"] == {"result": 3}
    assert "no way" in run(service.call("broken", {}, task="2"))["error"]["message"]
    asked = run(service.call("book", {}, task="3"))["interrupts"][0]
    assert asked["value"] == "Which seat?" and asked["response_schema"]["type"] == "object"
    answers = [{"key": "q1", "response": {"value": "4a"}}]
    assert run(service.call("book", {}, task="3", answers=answers))["content"] == "accept 4a"


def test_a_single_tool_of_fastmcp_is_served_as_it_is(run: Any) -> None:
    tools = pytest.importorskip("fastmcp.tools")

    def double(n: int) -> int:
        "Doubles."
        return n * 2

    service = Service(tool(tools.Tool.from_function(double), idempotent=True))
    assert run(service.list())["double"]["idempotent"] is True
    assert run(service.call("double", {"n": 4}))["content"] == "8"
