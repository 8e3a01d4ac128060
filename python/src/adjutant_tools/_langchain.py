"""Tools of LangChain, as they are: `@tool`, `StructuredTool`, subclasses of `BaseTool`, and those of deepagents."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from typing import Any

from langchain_core.messages import ToolMessage, convert_to_messages
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic_core import to_jsonable_python

from ._call import Execution, Result, Suspended, ToolError, content_of, progress
from ._tool import Tool

_WHOLE_STATE = ("messages", "files")


def of_langchain(made: BaseTool) -> Tool:
    """Makes a tool of one of LangChain."""
    described = convert_to_openai_tool(made)["function"]
    parameters = described.get("parameters") or {"type": "object", "properties": {}}
    parameters.setdefault("type", "object")
    parameters.setdefault("properties", {})
    injected = _injected(made)
    wanted: list[str] = []
    for kind, name in injected.values():
        if kind == "state":
            wanted.extend([name] if name else _WHOLE_STATE)

    async def run(args: dict[str, Any], own: Execution) -> Any:
        given = {**args, **_values(made.name, injected, own)}
        call = {"type": "tool_call", "name": made.name, "args": given, "id": own.context.tool_call_id}
        try:
            returned = await made.ainvoke(call, _config(own))
        except Exception as error:
            questions = _interrupts(error, own)
            if questions is None:
                raise
            raise Suspended({"interrupts": questions}) from None
        return _result(returned, own)

    return Tool(
        made.name,
        described.get("description") or made.name,
        parameters,
        run,
        state=tuple(dict.fromkeys(wanted)),
        function=getattr(made, "func", None) or getattr(made, "coroutine", None),
    )


def _injected(made: BaseTool) -> dict[str, tuple[str, str]]:
    """Returns the arguments that no model gives, with their kinds."""
    hints: dict[str, Any] = {}
    for function in (getattr(made, "func", None), getattr(made, "coroutine", None), type(made)._run):
        if function is None:
            continue
        try:
            found = typing.get_type_hints(function, include_extras=True)
        except Exception:  # noqa: BLE001 - hints that only type checkers can read
            continue
        found.pop("return", None)
        if function is not type(made)._run or made.__class__.__module__.partition(".")[0] != "langchain_core":
            hints = {**found, **hints}
    marks: dict[str, tuple[Any, ...]] = {}
    for name, item in getattr(made.get_input_schema(), "model_fields", {}).items():
        if name not in hints:
            hints[name] = item.annotation
            marks[name] = tuple(item.metadata)
    kinds = {name: _kind(hint, marks.get(name, ())) for name, hint in hints.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _kind(hint: Any, marks: tuple[Any, ...]) -> tuple[str, str] | None:
    if typing.get_origin(hint) is typing.Annotated:
        hint, *rest = typing.get_args(hint)
        marks = tuple(rest)
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if any(getattr(typing.get_origin(one) or one, "__name__", "") == "ToolRuntime" for one in options):
        return ("runtime", "")
    for mark in marks:
        kind = mark if inspect.isclass(mark) else type(mark)
        if not issubclass(kind, InjectedToolArg) or issubclass(kind, InjectedToolCallId):
            continue
        if kind.__name__ == "InjectedState":
            return ("state", getattr(mark, "field", None) or "")
        if kind.__name__ == "InjectedStore":
            return ("store", "")
        return ("argument", "")
    return None


def _values(tool: str, injected: dict[str, tuple[str, str]], own: Execution) -> dict[str, Any]:
    """Returns the injected arguments. Others than state and runtime are taken from the context of the run."""
    values: dict[str, Any] = {}
    for name, (kind, about) in injected.items():
        if kind == "runtime":
            values[name] = _runtime(own)
        elif kind == "state":
            state = _state(own)
            if about and about not in state:
                raise ToolError(f"the tool {tool} needs the state field {about}, which the thread does not have")
            values[name] = state[about] if about else state
        elif kind == "store":
            raise ToolError(f"the tool {tool} needs a Store, which cannot be reached from here")
        elif name in own.context.context:
            values[name] = own.context.context[name]
    return values


def _state(own: Execution) -> dict[str, Any]:
    state = dict(own.context.state)
    if isinstance(state.get("messages"), list):
        state["messages"] = convert_to_messages(state["messages"])
    return state


def _runtime(own: Execution) -> Any:
    from langgraph.prebuilt.tool_node import ToolRuntime

    known = {
        "state": _state(own),
        "context": dict(own.context.context) or None,
        "config": _config(own),
        "stream_writer": progress,
        "tool_call_id": own.context.tool_call_id,
        "store": None,
        "tools": [],
    }
    fields = {item.name for item in dataclasses.fields(ToolRuntime)}
    return ToolRuntime(**{name: value for name, value in known.items() if name in fields})


class _Scratchpad:
    """What `langgraph.types.interrupt` reads: the answers so far, in the order of the questions."""

    def __init__(self, answers: list[Any]) -> None:
        self.resume = list(answers)
        self._asked = -1

    def interrupt_counter(self) -> int:
        self._asked += 1
        return self._asked

    def get_null_resume(self, consume: bool = False) -> Any:
        return None


def _config(own: Execution) -> Any:
    context = own.context
    configurable: dict[str, Any] = {
        **context.context,
        "thread_id": context.thread_id,
        "run_id": context.run_id,
        "agent_name": context.agent_name,
    }
    try:
        from langgraph._internal import _constants as keys
        from langgraph.runtime import Runtime
    except ImportError:
        return {"configurable": configurable}
    configurable[keys.CONFIG_KEY_SCRATCHPAD] = _Scratchpad(own.ordered)
    configurable[keys.CONFIG_KEY_SEND] = lambda writes: None
    configurable[keys.CONFIG_KEY_CHECKPOINT_NS] = ""
    configurable[keys.CONFIG_KEY_RUNTIME] = Runtime(context=dict(context.context), stream_writer=progress)
    return {"configurable": configurable}


def _interrupts(error: Exception, own: Execution) -> list[dict[str, Any]] | None:
    """Returns the questions of LangGraph's `interrupt`; none for another error."""
    if type(error).__name__ != "GraphInterrupt" or not type(error).__module__.startswith("langgraph."):
        return None
    questions = []
    for at, asked in enumerate(error.args[0], start=len(own.ordered) + 1):
        question = {"key": f"interrupt-{at}", "value": to_jsonable_python(asked.value, fallback=str)}
        schema = getattr(asked, "response_schema", None)
        if schema is not None:
            question["response_schema"] = schema
        questions.append(question)
    return questions


def _result(returned: Any, own: Execution) -> Any:
    """Returns the result for what a tool returned: a message, or a `Command` that writes into the state."""
    if isinstance(returned, ToolMessage):
        return _of_message(returned)
    if type(returned).__name__ == "Command" and hasattr(returned, "goto"):
        return _of_command(returned, own)
    if isinstance(returned, list) and returned and all(_is_outcome(one) for one in returned):
        parts = [_result(one, own) for one in returned]
        written: dict[str, Any] = {}
        for part in parts:
            written.update(part.update or {})
        text = "\n".join(str(content_of(part.content)) for part in parts)
        return Result(text, update=written or None)
    return Result(returned)


def _is_outcome(value: Any) -> bool:
    return isinstance(value, ToolMessage) or type(value).__name__ == "Command" and hasattr(value, "goto")


def _of_message(message: ToolMessage) -> Result:
    if message.status == "error":
        content = message.content
        raise ToolError(content if isinstance(content, str) else str(content_of(content)))
    return Result(message.content, artifact=message.artifact)


def _of_command(command: Any, own: Execution) -> Result:
    if command.goto or command.graph:
        raise ToolError("the tool returned a Command with `goto` or `graph`, which only a graph can follow")
    written = dict(command.update or {}) if isinstance(command.update, dict) else dict(command.update or [])
    messages = written.pop("messages", None) or []
    answer = Result("")
    for message in messages:
        is_own = isinstance(message, ToolMessage) and message.tool_call_id == own.context.tool_call_id
        if not is_own:
            raise ToolError("the tool's Command adds messages besides its own result, which is not supported")
        answer = _of_message(message)
    return Result(answer.content, answer.artifact, to_jsonable_python(written, fallback=str) or None)
