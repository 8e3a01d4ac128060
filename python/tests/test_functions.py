from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import pytest
from conftest import Service
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from adjutant_tools import (
    Delegation,
    Question,
    Result,
    ToolContext,
    ToolError,
    ask,
    ask_all,
    delegate,
    output,
    progress,
    run_subagent,
    tool,
    update,
)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(TypedDict):
    city: str


@dataclass
class Size:
    width: int
    height: int = 1


class Item(BaseModel):
    label: str = Field(description="Its label.")


def paint(
    text: str,
    color: Color,
    place: Place,
    size: Size,
    item: Item,
    mode: Literal["a", "b"] = "a",
    schema: Optional[int] = None,
    tags: Annotated[list[str], Field(description="Some tags.")] = ["x"],  # noqa: B006
) -> str:
    """Paints something.

    It takes a while.

    Args:
        text: What to paint,
            over two lines.
        color (Color): Which color.

    Returns:
        Nothing of interest.
    """
    return f"{text} {color.value} {place['city']} {size.width}x{size.height} {item.label} {mode} {schema} {tags}"


def test_schemas_are_made_of_type_hints_and_docstrings(run: Any) -> None:
    entry = run(Service(paint).list())["paint"]
    assert entry["description"] == "Paints something.\n\nIt takes a while."
    parameters = entry["parameters"]
    assert parameters["type"] == "object" and parameters["additionalProperties"] is False
    assert parameters["required"] == ["text", "color", "place", "size", "item"]
    properties = parameters["properties"]
    assert properties["text"] == {"type": "string", "description": "What to paint, over two lines."}
    assert properties["mode"] == {"type": "string", "enum": ["a", "b"], "default": "a"}
    assert properties["schema"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert properties["tags"]["description"] == "Some tags." and properties["tags"]["default"] == ["x"]
    assert parameters["$defs"]["Color"] == {"enum": ["red", "blue"], "type": "string"}
    assert parameters["$defs"]["Item"]["properties"]["label"]["description"] == "Its label."
    assert parameters["$defs"]["Size"]["required"] == ["width"]


def test_arguments_arrive_as_the_types_say(run: Any) -> None:
    args = {"text": "t", "color": "blue", "place": {"city": "Rome"}, "size": {"width": 2}, "item": {"label": "l"}}
    answer = run(Service(paint).call("paint", args))
    assert answer == {"content": "t blue Rome 2x1 l a None ['x']"}


def test_arguments_that_do_not_fit_are_named_and_nothing_is_run(run: Any) -> None:
    answer = run(Service(paint).call("paint", {"text": 1, "colour": "red"}))
    message = answer["error"]["message"]
    assert "Nothing was run." in message and "- text: " in message and "- colour: " in message


@pytest.mark.parametrize(
    "text",
    [
        "Adds.\n\nParameters\n----------\na : int\n    The first.\nb\n    The second.\n\nReturns\n-------\nint\n",
        "Adds.\n\n:param a: The first.\n:param int b: The second.\n:returns: The sum.",
        "Adds.\n\nArgs:\n    a: The first.\n    b (int): The second.\n\nReturns:\n    The sum.",
    ],
)
def test_three_styles_of_docstrings_are_read(run: Any, text: str) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    add.__doc__ = text
    entry = run(Service(add).list())["add"]
    assert entry["description"] == "Adds."
    described = {name: item["description"] for name, item in entry["parameters"]["properties"].items()}
    assert described == {"a": "The first.", "b": "The second."}


def test_functions_that_cannot_be_tools_are_refused_when_they_are_given() -> None:
    def many(*values: int) -> None: ...

    def odd(value: threading.Lock) -> None: ...  # type: ignore[valid-type]

    for wrong in (many, odd, lambda x: x, 7):
        with pytest.raises(TypeError):
            Service(wrong)
    with pytest.raises(ValueError, match="two tools"):
        Service(paint, paint)
    with pytest.raises(TypeError, match="no setting retries"):
        tool(paint, retries=1)


def test_the_context_is_given_and_not_shown_to_the_model(run: Any) -> None:
    async def whoami(context: ToolContext, loud: bool = False) -> str:
        return f"{context.agent_name} {context.thread_id} {context.context['user']} {context.task_id}"

    service = Service(whoami)
    assert list(run(service.list())["whoami"]["parameters"]["properties"]) == ["loud"]
    answer = run(service.call("whoami", {}, thread_id="th", context={"user": "u1"}))
    assert answer == {"content": "agent th u1 t1"}


def test_pieces_are_streamed_before_the_result(run: Any) -> None:
    def plain() -> Iterator[Any]:
        yield "one "
        yield {"done": 0.5}
        yield "two"

    async def later() -> AsyncIterator[Any]:
        yield "x"
        yield Result("whole", artifact=[1])

    def said() -> str:
        progress({"at": 1})
        output("wo")
        output("rds")
        return "words"

    service = Service(plain, later, said)
    assert run(service.lines("plain", {})) == [
        {"output": "one "},
        {"custom": [{"done": 0.5}]},
        {"output": "two"},
        {"content": "one two"},
    ]
    assert run(service.lines("later", {}, task="t9")) == [{"output": "x"}, {"content": "whole", "artifact": [1]}]
    told = [{"custom": [{"at": 1}]}, {"output": "wo"}, {"output": "rds"}, {"content": "words"}]
    assert run(service.lines("said", {}, task="t2")) == told
    assert run(service.call("said", {}, task="t3")) == {"content": "words"}


def test_a_result_may_write_into_the_state_and_may_delegate(run: Any) -> None:
    def note(text: str) -> Result:
        update({"seen": [text]})
        return Result({"n": 1}, artifact={"a": 1}, update={"more": 2})

    def hand_over(work: str) -> Delegation:
        return delegate(work, "helper", response_format=Size)

    service = Service(note, hand_over)
    noted = {"content": '{"n": 1}', "artifact": {"a": 1}, "update": {"seen": ["x"], "more": 2}}
    assert run(service.call("note", {"text": "x"})) == noted
    delegated = run(service.call("hand_over", {"work": "w"}, task="t2"))["delegate"]
    assert delegated["description"] == "w" and delegated["subagent_type"] == "helper"
    assert delegated["response_format"]["required"] == ["width"]


def test_a_function_goes_on_with_the_results_of_subagents(run: Any) -> None:
    calls = []

    def compare(first: str) -> str:
        calls.append(first)
        about = run_subagent(f"Describe {first}", "researcher")
        size = run_subagent(f"Measure {about}", "surveyor", response_format=Size)
        return f"{about}: {size.width}"

    service = Service(compare)
    asked = run(service.call("compare", {"first": "a"}))["delegate"]
    assert asked == {"description": "Describe a", "subagent_type": "researcher", "then": "call_again"}
    first = {"subagent_type": "researcher", "status": "success", "content": "an a"}
    asked = run(service.call("compare", {"first": "a"}, delegations=[first]))["delegate"]
    assert asked["description"] == "Measure an a" and asked["response_format"]["required"] == ["width"]
    second = {"subagent_type": "surveyor", "status": "success", "content": '{"width": 3}'}
    assert run(service.call("compare", {"first": "a"}, delegations=[first, second])) == {"content": "an a: 3"}
    assert run(service.call("compare", {"first": "a"}, delegations=[first, second])) == {"content": "an a: 3"}
    assert len(calls) == 3
    failed = {"subagent_type": "researcher", "status": "error", "content": "no"}
    assert run(service.call("compare", {"first": "a"}, delegations=[failed])) == {"error": {"message": "no"}}


def test_a_question_suspends_the_call_and_its_answer_goes_on(run: Any) -> None:
    calls = []

    def book(city: str) -> str:
        calls.append(city)
        if not ask(f"Book {city}?", bool):
            return "not booked"
        seat, meal = ask_all(["Which seat?", Question("Which meal?", {"enum": ["fish"]}, key="meal")])
        return f"{city}, {seat}, {meal}"

    service = Service(book)
    first = run(service.call("book", {"city": "Rome"}))
    assert first == {"interrupts": [{"key": "q1", "value": "Book Rome?", "response_schema": {"type": "boolean"}}]}
    assert run(service.call("book", {"city": "Rome"})) == first, "a repeated call does not run again"
    answers = [{"key": "q1", "value": "Book Rome?", "response": True}]
    second = run(service.call("book", {"city": "Rome"}, answers=answers))
    assert [asked["key"] for asked in second["interrupts"]] == ["q2", "meal"]
    answers += [{"key": "q2", "response": "4a"}, {"key": "meal", "response": "fish"}]
    assert run(service.call("book", {"city": "Rome"}, answers=answers)) == {"content": "Rome, 4a, fish"}
    assert len(calls) == 3


def test_a_question_cannot_be_swallowed_by_except_exception(run: Any) -> None:
    async def careful() -> str:
        try:
            return str(ask("Sure?"))
        except Exception:  # noqa: BLE001
            return "swallowed"

    assert "interrupts" in run(Service(careful).call("careful", {}))


def test_errors_tell_the_model_what_happened_and_no_more(run: Any, caplog: Any) -> None:
    def broken() -> None:
        raise KeyError("who")

    def refuses() -> None:
        raise ToolError("Not on Sundays.")

    def ends() -> None:
        raise StopIteration("over")

    service = Service(broken, refuses, ends)
    assert run(service.call("broken", {})) == {"error": {"type": "KeyError", "message": "'who'"}}
    assert "Traceback" in caplog.text
    assert run(service.call("refuses", {}, task="t2")) == {"error": {"message": "Not on Sundays."}}
    assert run(service.call("ends", {}, task="t3"))["error"]["type"] == "RuntimeError"


def test_a_call_that_takes_too_long_is_an_error_and_its_function_learns_it(run: Any) -> None:
    told = threading.Event()

    def slow(context: ToolContext) -> None:
        if context.cancelled.wait(30):
            told.set()

    answer = run(Service(tool(slow, timeout_s=0.05)).call("slow", {}))
    assert answer["error"]["type"] == "TimeoutError"
    assert told.wait(30)


def test_a_decorated_function_is_a_tool_with_settings_and_still_a_function(run: Any) -> None:
    @tool(name="sum", idempotent=True, after_crash="repeat", on_error="fail_run", timeout_s=5, state=["notes"])
    def add(a: int, b: int) -> int:
        "Adds."
        return a + b

    assert add(1, 2) == 3
    entry = run(Service(add).list())["sum"]
    del entry["parameters"]
    assert entry == {
        "name": "sum",
        "description": "Adds.",
        "idempotent": True,
        "after_crash": "repeat",
        "on_error": "fail_run",
        "timeout_s": 5,
        "state": ["notes"],
    }


def test_methods_and_callable_objects_are_tools(run: Any) -> None:
    class Shelf:
        def find(self, title: str) -> str:
            return f"found {title}"

        async def __call__(self, title: str) -> str:
            return f"called {title}"

    shelf = Shelf()
    service = Service(shelf.find, tool(shelf, name="shelf"))
    assert run(service.call("find", {"title": "x"})) == {"content": "found x"}
    assert run(service.call("shelf", {"title": "x"}, task="t2")) == {"content": "called x"}


def test_async_functions_run_side_by_side(run: Any) -> None:
    async def scene() -> list[Any]:
        met = asyncio.Barrier(2) if hasattr(asyncio, "Barrier") else None

        async def meet() -> str:
            if met is not None:
                await met.wait()
            return "met"

        service = Service(meet)
        return await asyncio.gather(service.call("meet", {}, task="a"), service.call("meet", {}, task="b"))

    assert run(scene()) == [{"content": "met"}, {"content": "met"}]
