"""Tools of all kinds as the service offers and calls them."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from . import _docstring
from ._call import Delegation, Execution, Result, ToolContext, ToolError, bind, execution, progress

# Blocking functions wait in threads. The service limits how many calls there are at a time.
THREADS = ThreadPoolExecutor(max_workers=256, thread_name_prefix="adjutant-tools")

Run = Callable[[dict[str, Any], Execution], Awaitable[Any]]


@dataclass
class Tool:
    """A tool that is served."""

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON Schema of the arguments."""
    run: Run
    """Carries out a call."""
    idempotent: bool = False
    """Whether a call may be made twice."""
    after_crash: Literal["repeat", "ask", "fail"] | None = None
    """What happens to a call that was under way when the server of the agents died."""
    on_error: Literal["report", "fail_run"] | None = None
    """What an error does: the model reads it, or the run ends."""
    timeout_s: float | None = None
    """Seconds after which a call is an error."""
    cancel_on_disconnect: bool = False
    """Whether a call ends when its caller goes away. Otherwise it goes on, and a repeated call gets its result."""
    state: Sequence[str] = ()
    """The fields of the thread's state that are sent with each call."""
    function: Callable[..., Any] | None = field(default=None, repr=False)
    """The function that the tool was made of."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function itself, as if it were no tool."""
        if self.function is None:
            raise TypeError(f"the tool {self.name} is not made of a function")
        return self.function(*args, **kwargs)

    def listing(self) -> dict[str, Any]:
        """Returns the entry in the list of tools."""
        entry: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        if self.idempotent:
            entry["idempotent"] = True
        if self.state:
            entry["state"] = list(self.state)
        for key in ("after_crash", "on_error", "timeout_s"):
            if getattr(self, key) is not None:
                entry[key] = getattr(self, key)
        return entry


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that pydantic makes of names: models have to read them, and they say nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the JSON Schema of a model without made-up titles."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_Untitled)
    schema.pop("title", None)
    schema.pop("description", None)
    for inner in schema.get("$defs", {}).values():
        inner.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def of_function(function: Callable[..., Any]) -> Tool:
    """Makes a tool of a function with type hints."""
    name = getattr(function, "__name__", type(function).__name__)
    target = function
    if not (inspect.isroutine(function) or isinstance(function, functools.partial)):
        target = type(function).__call__.__get__(function)
    if isinstance(function, functools.partial):
        name = getattr(function.func, "__name__", name)
    if not name.isidentifier():
        raise TypeError(f"a tool made of {function!r} needs a name: tool({name}, name=\"…\")")
    try:
        hints = typing.get_type_hints(_unwrapped(target), include_extras=True)
    except Exception as error:
        raise TypeError(f"the type hints of {name} cannot be read: {error}") from error
    about, described = _docstring.read(_unwrapped(target))
    fields: dict[str, Any] = {}
    contexts: list[str] = []
    names: dict[str, str] = {}
    takes_more = False
    for parameter in inspect.signature(target).parameters.values():
        hint = hints.get(parameter.name, Any)
        if _is_context(hint):
            contexts.append(parameter.name)
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_more = True
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(f"{name} takes *{parameter.name}, which no tool can: give it a list")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TypeError(f"{name} takes {parameter.name} by position only, but arguments have names")
        # Names of their own, since a parameter may be called like a method of a model.
        own = f"field_{len(fields)}"
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[own] = (hint, _field(default, parameter.name, described.get(parameter.name)))
        names[own] = parameter.name
    extra: Literal["allow", "forbid"] = "allow" if takes_more else "forbid"
    config = ConfigDict(extra=extra, arbitrary_types_allowed=False)
    try:
        model = create_model(f"{name}_arguments", __config__=config, **fields)
        parameters = json_schema(model)
    except Exception as error:
        raise TypeError(f"no schema can be made of the type hints of {name}: {error}") from error

    async def run(args: dict[str, Any], own: Execution) -> Any:
        try:
            read = model.model_validate(args)
        except ValidationError as error:
            raise ToolError(_wrong(error)) from None
        given = {real: getattr(read, made) for made, real in names.items() if made in read.model_fields_set}
        given.update(read.model_extra or {})
        given.update(dict.fromkeys(contexts, own.context))
        return await call(target, given)

    return Tool(name, about or name, parameters, run, function=function)


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


def _is_context(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    return hint is ToolContext or ToolContext in typing.get_args(hint)


def _field(default: Any, alias: str, about: str | None) -> FieldInfo:
    if isinstance(default, FieldInfo):
        merged = FieldInfo.merge_field_infos(default, alias=alias, validation_alias=alias, serialization_alias=alias)
        merged.description = merged.description or about
        return merged
    # A description in `Annotated` precedes that of the docstring only if this has none.
    settings: dict[str, Any] = {"alias": alias}
    if about:
        settings["description"] = about
    return typing.cast(FieldInfo, Field(default, **settings))


def _wrong(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False)[:20]:
        place = ".".join(str(part) for part in problem["loc"]) or "the arguments"
        lines.append(f"- {place}: {problem['msg']}")
    return "The arguments do not fit. Nothing was run.\n" + "\n".join(lines)


async def call(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Calls a function of any kind: plain, async, or a generator whose pieces clients see at once."""
    if inspect.isasyncgenfunction(function):
        return await _pieces(function(**given))
    if inspect.iscoroutinefunction(function):
        return await function(**given)
    if inspect.isgeneratorfunction(function):
        return await in_thread(lambda: _generated(function(**given)))
    returned = await in_thread(lambda: function(**given))
    if inspect.isasyncgen(returned):
        return await _pieces(returned)
    return await returned if inspect.isawaitable(returned) else returned


async def in_thread(work: Callable[[], Any]) -> Any:
    """Runs blocking work in a thread that knows the current call."""
    own = contextvars.copy_context()

    def guarded() -> tuple[bool, Any]:
        try:
            return True, own.run(work)
        except StopIteration as error:
            return False, RuntimeError(f"the function raised StopIteration: {error}")
        except BaseException as error:  # noqa: BLE001 - a future cannot carry every exception
            return False, error

    succeeded, value = await asyncio.get_running_loop().run_in_executor(THREADS, guarded)
    if not succeeded:
        raise value
    return value


def _emit(piece: Any, text: list[str]) -> None:
    if isinstance(piece, str):
        text.append(piece)
        execution().emit({"output": piece})
    else:
        progress(piece)


def _generated(generator: Iterable[Any]) -> Any:
    text: list[str] = []
    iterator = iter(generator)
    while True:
        try:
            piece = next(iterator)
        except StopIteration as end:
            return "".join(text) if end.value is None else end.value
        _emit(piece, text)


async def _pieces(generator: AsyncIterator[Any]) -> Any:
    text: list[str] = []
    last: Any = None
    async for piece in generator:
        last = piece
        if not isinstance(piece, Result | Delegation):
            _emit(piece, text)
    # An async generator cannot return a value, so its last piece may be the whole result.
    return last if isinstance(last, Result | Delegation) else "".join(text)


def bound(own: Execution) -> contextvars.Context:
    """Returns a context in which the call is known."""
    context = contextvars.copy_context()
    context.run(bind, own)
    return context
