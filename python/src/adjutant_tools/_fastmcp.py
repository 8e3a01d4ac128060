"""Tools and whole servers of FastMCP, and of the MCP SDK (`mcp.server.fastmcp`), in this process."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from typing import Any

from pydantic_core import to_jsonable_python

from ._call import Execution, Question, Result, Suspended, ToolError
from ._tool import Tool


def of_tool(made: Any) -> Tool:
    """Makes a tool of a single one."""

    async def run(args: dict[str, Any], own: Execution) -> Any:
        returned = await made.run(args)
        content = getattr(returned, "content", returned)
        structured = getattr(returned, "structured_content", None)
        return _result(content, structured, is_error=bool(getattr(returned, "is_error", False)))

    return Tool(made.name, made.description or made.name, _schema(made.parameters), run)


def of_server(server: Any) -> list[Tool]:
    """Makes tools of all those that a server has now. Progress that they report is shown to clients."""
    return [_of_listed(server, listed) for listed in _now(_listed(server))]


async def _listed(server: Any) -> list[Any]:
    client = _client(server)
    async with client:
        return list(await client.list_tools())


def _client(server: Any, **settings: Any) -> Any:
    try:
        from fastmcp import Client
    except ImportError:
        raise TypeError("a server of FastMCP needs the package fastmcp") from None
    if "mode" in inspect.signature(Client).parameters:
        # Only with this version of the protocol may a tool ask back in the middle of a call.
        settings["mode"] = "legacy"
    return Client(server, **settings)


def _of_listed(server: Any, listed: Any) -> Tool:
    schema = getattr(listed, "input_schema", None) or getattr(listed, "inputSchema", None)
    hints = getattr(listed, "annotations", None)
    is_idempotent = any(
        bool(getattr(hints, name, None))
        for name in ("idempotent_hint", "idempotentHint", "read_only_hint", "readOnlyHint")
    )

    async def run(args: dict[str, Any], own: Execution) -> Any:
        asked: list[Suspended] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            own.emit({"custom": [{"progress": done, "total": total, "message": message}]})

        async def elicitation(message: str, response_type: Any, params: Any, context: Any) -> Any:
            from fastmcp.client.elicitation import ElicitResult

            schema = getattr(params, "requested_schema", None) or getattr(params, "requestedSchema", None)
            try:
                answer = own.ask([Question(message, schema)])[0]
            except Suspended as suspended:
                asked.append(suspended)
                return ElicitResult(action="cancel")
            return ElicitResult(action="accept", content=answer)

        async with _client(server, elicitation_handler=elicitation) as client:
            settings: dict[str, Any] = {"progress_handler": progress, "raise_on_error": False}
            if "meta" in inspect.signature(client.call_tool).parameters:
                settings["meta"] = {"adjutant/call": _about(own)}
            returned = await client.call_tool(listed.name, args, **settings)
        if asked:
            raise asked[0]
        return _result(returned.content, returned.structured_content, is_error=bool(returned.is_error))

    return Tool(
        listed.name,
        listed.description or getattr(listed, "title", None) or listed.name,
        _schema(schema),
        run,
        idempotent=is_idempotent,
    )


def _about(own: Execution) -> dict[str, Any]:
    """Returns what the server is told in `_meta` about a call."""
    context = own.context
    return {
        "tool_call_id": context.tool_call_id,
        "task_id": context.task_id,
        "agent_name": context.agent_name,
        "agent_path": list(context.agent_path),
        "thread_id": context.thread_id,
        "run_id": context.run_id,
        "context": to_jsonable_python(dict(context.context)),
    }


def _schema(schema: Any) -> dict[str, Any]:
    plain = dict(schema or {})
    plain.setdefault("type", "object")
    plain.setdefault("properties", {})
    return plain


def _result(content: Any, structured: Any, *, is_error: bool) -> Result:
    blocks = [_block(to_jsonable_python(block)) for block in content or []]
    if all(block.get("type") == "text" for block in blocks):
        text = "\n".join(block["text"] for block in blocks)
        if not blocks and structured is not None:
            from ._call import content_of

            text = str(content_of(structured))
        value: Any = text
    else:
        value = blocks
    if is_error:
        raise ToolError(value if isinstance(value, str) and value else "the tool gives no reason")
    return Result(value, artifact=to_jsonable_python(structured) if structured is not None else None)


def _block(block: dict[str, Any]) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": block.get("text", "")}
    if kind in ("image", "audio"):
        mime = block.get("mimeType") or block.get("mime_type") or f"{kind}/*"
        return {"type": kind, "base64": block.get("data", ""), "mime_type": mime}
    if kind == "resource" and isinstance(block.get("resource"), dict) and "text" in block["resource"]:
        return {"type": "text", "text": block["resource"]["text"]}
    import json

    return {"type": "text", "text": json.dumps(block, ensure_ascii=False)}


def _now(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs async work to its end, also where an event loop is running already."""
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again below
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
