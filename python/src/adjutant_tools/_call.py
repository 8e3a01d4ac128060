"""One call of a tool: what the tool knows about it, and what it may do besides returning a result."""

from __future__ import annotations

import contextvars
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from ._reader import RunReader


class ToolError(Exception):
    """An error whose text the model reads as it is, without the name of its type."""


@dataclass(frozen=True)
class ToolContext:
    """Who calls: the agent, its run, and the context of the request.

    A function gets it in a parameter of this type, which the model does not see.
    """

    tool_call_id: str
    """The id that the model gave to the call."""
    agent_name: str = ""
    """The name of the agent that calls."""
    agent_path: tuple[str, ...] = ()
    """The names of the agents from the main agent down to this one."""
    thread_id: str = ""
    run_id: str = ""
    task_id: str = ""
    """Names the call over all threads; the same when the call is repeated after a crash."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """The context of the run's request, as far as the agent may see it."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the thread's state that the tool asks for (`state=[…]`)."""
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    """Set when the caller has gone and the tool is to stop, or when its time is over."""
    run_reader: RunReader | None = field(default=None, repr=False, compare=False)

    def reader(self) -> RunReader:
        """Returns what the call may read of its run: the state, files and the Store.

        The section of the tool in the configuration of adjutant needs `read_access`, and the service the address of
        adjutant: `serve(…, adjutant_url="http://…")` or the environment variable `ADJUTANT_URL`.
        """
        if self.run_reader is None:
            raise RuntimeError("the tool has no `read_access`, or the service has no `adjutant_url`")
        return self.run_reader


@dataclass
class Result:
    """A result with more than text for the model."""

    content: Any
    """What the model reads: text, a list of content blocks, or a value that becomes JSON."""
    artifact: Any = None
    """Data for clients that the model does not read."""
    update: Mapping[str, Any] | None = None
    """What the call writes into the state of the thread."""


@dataclass
class Delegation:
    """A subagent finds the result of the call."""

    description: str
    subagent_type: str
    system_prompt: str | None = None
    response_format: Mapping[str, Any] | None = None
    initial_messages: Sequence[Mapping[str, Any]] | None = None


@dataclass
class Question:
    """A question to a human."""

    value: Any
    """The question, as clients read it: a text or any JSON."""
    schema: Any = None
    """A type, or the JSON Schema, of a valid answer. Without it any JSON is an answer."""
    key: str | None = None
    """Tells the questions of one call apart. By default their number, so that their order has to stay the same."""
    approvers: Mapping[str, Any] | None = None
    """Who may answer: `{"users": […], "roles": […]}`."""


class Suspended(BaseException):
    """Leaves a function that waits. It is no `Exception`, so that functions do not catch it."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__("the call waits")
        self.answer = answer


class Execution:
    """One run of a tool's function for a call. The function may run again, with more answers."""

    def __init__(
        self,
        context: ToolContext,
        answers: Sequence[Mapping[str, Any]],
        emit: Callable[[dict[str, Any]], None],
        delegations: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.context = context
        self.delegations = list(delegations)
        self.delegated = 0
        self.ordered = [answer.get("response") for answer in answers]
        self.answers = {str(answer.get("key")): answer.get("response") for answer in answers}
        self.update: dict[str, Any] = {}
        self.delegation: Delegation | None = None
        self.asked = 0
        self._emit = emit

    def emit(self, line: dict[str, Any]) -> None:
        """Sends a line to the caller while the function runs."""
        self._emit(line)

    def ask(self, questions: Sequence[Question]) -> list[Any]:
        """Returns the answers, or leaves the function until they are there."""
        numbered = []
        for question in questions:
            self.asked += 1
            numbered.append((question.key or f"q{self.asked}", question))
        missing = [pair for pair in numbered if pair[0] not in self.answers]
        if missing:
            raise Suspended({"interrupts": [_question(key, question) for key, question in missing]})
        return [_answer(question, self.answers[key]) for key, question in numbered]

    def run_subagent(self, delegation: Delegation) -> str:
        """Returns the result of the subagent, or leaves the function until it is there."""
        at = self.delegated
        self.delegated += 1
        if at >= len(self.delegations):
            raise Suspended({"delegate": {**_fields(delegation), "then": "call_again"}})
        done = self.delegations[at]
        text = content_of(done.get("content") or "")
        if done.get("status") == "error":
            raise ToolError(str(text))
        return str(text)


_EXECUTION: contextvars.ContextVar[Execution] = contextvars.ContextVar("adjutant_tools_execution")


def bind(execution: Execution) -> contextvars.Token[Execution]:
    """Makes this the execution of the current context."""
    return _EXECUTION.set(execution)


def execution() -> Execution:
    """Returns the execution of the current call."""
    try:
        return _EXECUTION.get()
    except LookupError:
        raise RuntimeError("this works only inside of a tool that is being called") from None


def _question(key: str, question: Question) -> dict[str, Any]:
    asked: dict[str, Any] = {"key": key, "value": to_jsonable_python(question.value)}
    if question.schema is not None:
        own = question.schema
        asked["response_schema"] = dict(own) if isinstance(own, Mapping) else TypeAdapter(own).json_schema()
    if question.approvers is not None:
        asked["approvers"] = dict(question.approvers)
    return asked


def _answer(question: Question, response: Any) -> Any:
    if question.schema is None or isinstance(question.schema, Mapping):
        return response
    try:
        return TypeAdapter(question.schema).validate_python(response)
    except ValidationError:
        # JSON has no dates, sets and the like.
        return TypeAdapter(question.schema).validate_json(json.dumps(response))


def current_context() -> ToolContext:
    """Returns the context of the current call."""
    return execution().context


def ask(
    value: Any,
    schema: Any = None,
    *,
    key: str | None = None,
    approvers: Mapping[str, Any] | None = None,
) -> Any:
    """Asks a human and returns the answer.

    The first time this leaves the function: the run waits, for days and over restarts if need be. When the question is
    answered, the function is called again from its beginning, and then this returns the answer. What comes before
    `ask` therefore happens again.
    """
    return execution().ask([Question(value, schema, key, approvers)])[0]


def ask_all(questions: Sequence[Question | str]) -> list[Any]:
    """Asks several questions at once and returns the answers in their order."""
    return execution().ask([Question(asked) if isinstance(asked, str) else asked for asked in questions])


def progress(value: Any) -> None:
    """Tells clients something while the tool works: an event of the stream mode `custom`."""
    execution().emit({"custom": [to_jsonable_python(value)]})


def output(text: str) -> None:
    """Shows clients the next piece of the text to come."""
    execution().emit({"output": str(text)})


def update(values: Mapping[str, Any]) -> None:
    """Writes into the state of the thread when the call has succeeded."""
    execution().update.update(to_jsonable_python(dict(values)))


def delegate(
    description: str,
    subagent_type: str,
    *,
    system_prompt: str | None = None,
    response_format: Any = None,
    initial_messages: Sequence[Mapping[str, Any]] | None = None,
) -> Delegation:
    """Returns a delegation, for the function to return: a subagent finds the result of the call."""
    form = response_format
    if form is not None and not isinstance(form, Mapping):
        form = TypeAdapter(form).json_schema()
    return Delegation(description, subagent_type, system_prompt, form, initial_messages)


def run_subagent(
    description: str,
    subagent_type: str,
    *,
    system_prompt: str | None = None,
    response_format: Any = None,
    initial_messages: Sequence[Mapping[str, Any]] | None = None,
) -> Any:
    """Has a subagent do something and returns its result, for the function to go on with.

    As with `ask`, the function is left the first time, and called again from its beginning when the subagent has
    ended. With a `response_format` the result is a value of that type; otherwise it is the subagent's last text. A
    subagent that fails raises `ToolError`.
    """
    delegation = delegate(
        description,
        subagent_type,
        system_prompt=system_prompt,
        response_format=response_format,
        initial_messages=initial_messages,
    )
    text = execution().run_subagent(delegation)
    if response_format is None:
        return text
    if isinstance(response_format, Mapping):
        return json.loads(text)
    return TypeAdapter(response_format).validate_json(text)


def _fields(delegation: Delegation) -> dict[str, Any]:
    fields = {name: found for name, found in vars(delegation).items() if found is not None}
    return to_jsonable_python(fields)


def answer_of(value: Any, own: Execution) -> dict[str, Any]:
    """Returns the answer to the caller for what a function returned."""
    if isinstance(value, Delegation):
        if own.update:
            raise ToolError("a call that delegates cannot write into the state, too")
        return {"delegate": _fields(value)}
    result = value if isinstance(value, Result) else Result(value)
    answer: dict[str, Any] = {"content": content_of(result.content)}
    if result.artifact is not None:
        answer["artifact"] = to_jsonable_python(result.artifact)
    written = {**own.update, **to_jsonable_python(dict(result.update or {}))}
    if written:
        answer["update"] = written
    return answer


def content_of(value: Any) -> str | list[dict[str, Any]]:
    """Returns the content of a message: text, or blocks."""
    if isinstance(value, str):
        return value
    plain = to_jsonable_python(value, fallback=str)
    if isinstance(plain, list) and plain and all(_is_block(block) for block in plain):
        return plain
    return json.dumps(plain, ensure_ascii=False)


def _is_block(value: Any) -> bool:
    kinds = ("text", "image", "image_url", "audio", "file", "video")
    return isinstance(value, dict) and value.get("type") in kinds
