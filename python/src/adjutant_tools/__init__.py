"""Serves tools to agents of adjutant.

    from adjutant_tools import serve

    def search(query: str, limit: int = 5) -> list[str]:
        "Searches the library."
        ...

    serve([search])
"""

from ._app import App, app, serve
from ._call import (
    Delegation,
    Question,
    Result,
    ToolContext,
    ToolError,
    ask,
    ask_all,
    current_context,
    delegate,
    output,
    progress,
    run_subagent,
    update,
)
from ._reader import ReadError, RunReader
from ._sources import tool
from ._tool import Tool

__all__ = [
    "App",
    "Delegation",
    "Question",
    "ReadError",
    "Result",
    "RunReader",
    "Tool",
    "ToolContext",
    "ToolError",
    "app",
    "ask",
    "ask_all",
    "current_context",
    "delegate",
    "output",
    "progress",
    "run_subagent",
    "serve",
    "tool",
    "update",
]
