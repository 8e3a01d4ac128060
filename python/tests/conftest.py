"""A client for the contract that speaks to the application without a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from adjutant_tools import App


class Service:
    """An application, and the requests to it."""

    def __init__(self, *tools: Any, **settings: Any) -> None:
        self.app = App(tools, **settings)

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        }
        messages = [{"type": "http.request", "body": body}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop(0)
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start = sent[0]
        answer = b"".join(message.get("body", b"") for message in sent[1:])
        return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, answer

    async def list(self) -> dict[str, Any]:
        _, _, body = await self.request("GET", "/tools")
        return {entry["name"]: entry for entry in json.loads(body)["tools"]}

    async def call(self, name: str, args: dict[str, Any], *, task: str = "t1", **more: Any) -> Any:
        _, _, body = await self.post(name, args, task=task, **more)
        return json.loads(body)

    async def post(
        self, name: str, args: dict[str, Any], *, task: str = "t1", accept: str = "application/json", **more: Any
    ) -> tuple[int, dict[str, str], bytes]:
        request = {"name": name, "args": args, "tool_call_id": "c1", "agent_name": "agent", **more}
        headers = {"adjutant-task-id": task, "accept": accept}
        return await self.request("POST", f"/tools/{name}", json.dumps(request).encode(), headers)

    async def lines(self, name: str, args: dict[str, Any], **more: Any) -> list[Any]:
        _, _, body = await self.post(name, args, accept="application/json, application/x-ndjson", **more)
        return [json.loads(line) for line in body.splitlines() if line.strip()]


@pytest.fixture
def run() -> Any:
    return asyncio.run
