"""Makes tools of functions and of the tools of other libraries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, overload

from pydantic import BaseModel

from ._tool import Tool, of_function


@overload
def tool(made_of: Callable[..., Any], /, **settings: Any) -> Tool: ...
@overload
def tool(made_of: None = None, /, **settings: Any) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(made_of: Any = None, /, **settings: Any) -> Any:
    """Makes a tool with settings, of a function or of a tool of LangChain or FastMCP. Also a decorator.

    The settings are the fields of `Tool`: `name`, `description`, `idempotent`, `after_crash`, `on_error`, `timeout_s`,
    `cancel_on_disconnect` and `state`.
    """
    allowed = {item.name for item in dataclasses.fields(Tool)} - {"run", "parameters", "function"}
    unknown = set(settings) - allowed
    if unknown:
        raise TypeError(f"a tool has no setting {', '.join(sorted(unknown))}; there are {', '.join(sorted(allowed))}")
    if made_of is None:
        return lambda function: tool(function, **settings)
    made = tools_of(made_of)
    if not isinstance(made, Tool):
        raise TypeError("settings go with a single tool, not with a server of several")
    return dataclasses.replace(made, **settings)


def tools_of(source: Any) -> Tool | list[Tool]:
    """Returns the tools of a source: a function, a tool of LangChain or FastMCP, or a whole FastMCP server."""
    if isinstance(source, Tool):
        return source
    module = _modules(source)
    if "langchain_core" in module and hasattr(source, "tool_call_schema"):
        from ._langchain import of_langchain

        return of_langchain(source)
    if module & {"fastmcp", "mcp"}:
        from ._fastmcp import of_server, of_tool

        if hasattr(source, "parameters") and hasattr(source, "run") and not hasattr(source, "list_tools"):
            return of_tool(source)
        if hasattr(source, "list_tools"):
            return of_server(source)
    if isinstance(source, BaseModel) or isinstance(source, dict) or not callable(source):
        raise TypeError(
            f"{source!r} is no tool: give functions, tools of LangChain, or tools or servers of FastMCP"
        )
    return of_function(source)


def _modules(source: Any) -> set[str]:
    """Returns the packages of the classes of an object."""
    return {kind.__module__.partition(".")[0] for kind in type(source).__mro__}
