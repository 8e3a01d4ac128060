"""The service: an ASGI application, and a server for it.

uvicorn serves it. The HTTP server of the standard library has no limits on slow clients and one thread for each
connection; ASGI also lets the tools be a part of an application that exists already.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ._call import Execution, Suspended, ToolContext, ToolError, answer_of
from ._reader import reader_of
from ._results import Results, StoredResults
from ._sources import tools_of
from ._tool import THREADS, Tool, bound

VERSION = 1
LOG = logging.getLogger("adjutant_tools")
_JSON = b"application/json"
_LINES = b"application/x-ndjson"
_MAX_WAITING_LINES = 1_000

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _Refused(Exception):
    """A request that is refused."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Running:
    """A call that is being carried out, and the requests that wait for it."""

    def __init__(self, fingerprint: str, context: ToolContext) -> None:
        self.fingerprint = fingerprint
        self.context = context
        self.listeners: set[asyncio.Queue[dict[str, Any]]] = set()
        self.task: asyncio.Task[dict[str, Any]] | None = None


class App:
    """An ASGI application that serves tools."""

    def __init__(
        self,
        tools: Iterable[Any],
        *,
        token: str | None = None,
        results: str | Path | None = None,
        max_results: int = 10_000,
        result_ttl_s: float = 86_400.0,
        max_body_bytes: int = 8 * 1024 * 1024,
        max_calls: int = 128,
        heartbeat_s: float = 15.0,
        adjutant_url: str | None = None,
    ) -> None:
        if token is not None and not token.strip():
            raise ValueError("the token is blank; leave it out to let everybody call")
        self.tools: dict[str, Tool] = {}
        for source in tools:
            found = tools_of(source)
            for made in [found] if isinstance(found, Tool) else found:
                if made.name in self.tools:
                    raise ValueError(f"there are two tools with the name {made.name}")
                self.tools[made.name] = made
        listing = {"version": VERSION, "tools": [made.listing() for made in self.tools.values()]}
        self._listing = json.dumps(listing, ensure_ascii=False).encode()
        self._etag = b'"' + hashlib.sha256(self._listing).hexdigest()[:32].encode() + b'"'
        self._token = token
        self._max_body_bytes = max_body_bytes
        self._max_calls = max_calls
        self._heartbeat_s = heartbeat_s
        self._adjutant_url = adjutant_url
        self._results = (
            Results(max_results, result_ttl_s)
            if results is None
            else StoredResults(results, max_results, result_ttl_s)
        )
        self._running: dict[str, _Running] = {}
        self.owns_loop = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            if self.owns_loop:
                # Blocking tools of libraries wait in threads of the loop, which has only a few by itself.
                asyncio.get_running_loop().set_default_executor(THREADS)
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        try:
            await self._serve(scope, receive, send)
        except _Refused as refused:
            body = json.dumps({"detail": str(refused)}).encode()
            headers = [(b"retry-after", b"1")] if refused.status == 503 else []
            await _respond(send, refused.status, body, headers)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        root = scope.get("root_path", "")
        if root and path.startswith(root):
            path = path[len(root) :]
        raw = scope.get("raw_path")
        if isinstance(raw, bytes) and not root:
            # A name may hold an encoded slash.
            path = raw.decode("ascii", "replace").partition("?")[0]
        method = scope["method"]
        headers = {name.lower(): value for name, value in scope["headers"]}
        if path == "/health" and method == "GET":
            await _respond(send, 200, b'{"status": "ok"}')
            return
        self._admit(headers)
        if path == "/tools":
            if method not in ("GET", "HEAD"):
                raise _Refused(405, "the list of tools is read with GET")
            is_known = headers.get(b"if-none-match") == self._etag
            body = b"" if is_known or method == "HEAD" else self._listing
            await _respond(send, 304 if is_known else 200, body, [(b"etag", self._etag)])
            return
        if not path.startswith("/tools/"):
            raise _Refused(404, "there is nothing here; the tools are at /tools")
        if method != "POST":
            raise _Refused(405, "a tool is called with POST")
        name = unquote(path[len("/tools/") :])
        made = self.tools.get(name)
        if made is None:
            raise _Refused(404, f"there is no tool {name}")
        request = _read_request(await self._body(headers, receive))
        await self._answer(made, request, headers, receive, send)

    def _admit(self, headers: dict[bytes, bytes]) -> None:
        if self._token is None:
            return
        given = headers.get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
            raise _Refused(401, "the header Authorization has not the token of this service")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        most = self._max_body_bytes
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > most:
            raise _Refused(413, f"the request is longer than {most} bytes")
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Refused(400, "the request ended early")
            body += message.get("body", b"")
            if len(body) > most:
                raise _Refused(413, f"the request is longer than {most} bytes")
            if not message.get("more_body"):
                return bytes(body)

    async def _answer(
        self,
        made: Tool,
        request: dict[str, Any],
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
    ) -> None:
        """Makes the call, or waits for the same call that is being made, and sends the answer."""
        key, fingerprint = _identity(made, request, headers)
        running = self._running.get(key)
        if running is None:
            kept = self._results.find(key)
            if kept is not None:
                self._check(kept[0], fingerprint)
                if kept[1] is not None:
                    await _respond(send, 200, json.dumps(kept[1]).encode())
                    return
                if not made.idempotent:
                    lost = {"type": "UnknownOutcome", "message": "the service stopped while it worked on this call"}
                    await _respond(send, 200, json.dumps({"error": lost}).encode())
                    return
            running = self._begin(made, request, headers, key, fingerprint)
        self._check(running.fingerprint, fingerprint)
        takes_lines = _LINES in headers.get(b"accept", b"")
        lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MAX_WAITING_LINES)
        running.listeners.add(lines)
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await self._follow(running, lines, gone, takes_lines, send)
        finally:
            running.listeners.discard(lines)
            gone.cancel()
            task = running.task
            if made.cancel_on_disconnect and not running.listeners and task is not None and not task.done():
                running.context.cancelled.set()
                task.cancel()

    async def _follow(
        self,
        running: _Running,
        lines: asyncio.Queue[dict[str, Any]],
        gone: asyncio.Task[None],
        takes_lines: bool,
        send: Send,
    ) -> None:
        task = running.task
        assert task is not None
        started = False

        async def write(line: bytes) -> None:
            nonlocal started
            if not started:
                await _start(send, 200, [(b"content-type", _LINES)])
                started = True
            await send({"type": "http.response.body", "body": line, "more_body": True})

        while True:
            next_line = asyncio.create_task(lines.get())
            await asyncio.wait(
                {task, gone, next_line}, timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED
            )
            if gone.done() and not task.done():
                next_line.cancel()
                return
            if next_line.done():
                if takes_lines:
                    await write(json.dumps(next_line.result(), ensure_ascii=False).encode() + b"\n")
                continue
            next_line.cancel()
            if task.done():
                break
            if takes_lines:
                # A blank line tells the caller that the tool is still at work.
                await write(b"\n")
        while takes_lines and not lines.empty():
            await write(json.dumps(lines.get_nowait(), ensure_ascii=False).encode() + b"\n")
        if task.cancelled():
            answer = {"error": {"type": "Cancelled", "message": "the call was cancelled"}}
        else:
            answer = task.result()
        body = json.dumps(answer, ensure_ascii=False).encode()
        if started:
            await send({"type": "http.response.body", "body": body + b"\n"})
        else:
            await _respond(send, 200, body)

    def _check(self, known: str, fingerprint: str) -> None:
        if known != fingerprint:
            raise _Refused(409, "this call was made before with other arguments")

    def _begin(
        self, made: Tool, request: dict[str, Any], headers: dict[bytes, bytes], key: str, fingerprint: str
    ) -> _Running:
        if len(self._running) >= self._max_calls:
            raise _Refused(503, f"{self._max_calls} calls are being made already")
        context = ToolContext(
            tool_call_id=_text(request, "tool_call_id"),
            agent_name=_text(request, "agent_name"),
            agent_path=tuple(str(name) for name in request.get("agent_path") or ()),
            thread_id=_text(request, "thread_id"),
            run_id=_text(request, "run_id"),
            task_id=headers.get(b"adjutant-task-id", b"").decode("latin-1"),
            context=request.get("context") or {},
            state=request.get("state") or {},
            run_reader=reader_of(self._adjutant_url, request.get("read_access")),
        )
        self._results.begin(key, fingerprint)
        running = _Running(fingerprint, context)
        loop = asyncio.get_running_loop()

        def deliver(line: dict[str, Any]) -> None:
            for listener in running.listeners:
                # A caller that does not read misses progress; the result comes in any case.
                if not listener.full():
                    listener.put_nowait(line)

        def emit(line: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(deliver, line)

        own = Execution(context, request.get("answers") or [], emit, request.get("delegations") or [])
        work = self._carry_out(made, request.get("args") or {}, own, key, fingerprint)
        # The task has a copy of this context, in which the call is known.
        running.task = bound(own).run(loop.create_task, work)
        self._running[key] = running
        running.task.add_done_callback(lambda _: self._running.pop(key, None))
        return running

    async def _carry_out(
        self, made: Tool, args: dict[str, Any], own: Execution, key: str, fingerprint: str
    ) -> dict[str, Any]:
        try:
            value = await asyncio.wait_for(made.run(args, own), made.timeout_s)
            answer = answer_of(value, own)
            # What cannot be sent is an error of the tool.
            json.dumps(answer)
        except Suspended as suspended:
            answer = suspended.answer
        except ToolError as error:
            answer = {"error": {"message": str(error)}}
        except (asyncio.TimeoutError, TimeoutError) as error:
            own.context.cancelled.set()
            about = str(error) or f"the tool did not end within {made.timeout_s} s"
            answer = {"error": {"type": "TimeoutError", "message": about}}
        except asyncio.CancelledError:
            self._results.forget(key)
            raise
        except Exception as error:
            LOG.exception("the tool %s failed", made.name)
            answer = {"error": {"type": type(error).__name__, "message": str(error)}}
        self._results.end(key, fingerprint, answer)
        return answer


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    return value if isinstance(value, str) else ""


def _identity(made: Tool, request: dict[str, Any], headers: dict[bytes, bytes]) -> tuple[str, str]:
    """Returns what names the call with its answers so far, and what tells it from others under the same name."""
    task = headers.get(b"adjutant-task-id", b"").decode("latin-1")
    call = task or "/".join(_text(request, name) for name in ("thread_id", "run_id", "tool_call_id"))
    answers = [[answer.get("key"), answer.get("response")] for answer in request.get("answers") or []]
    known = [call, answers, *([done] if (done := request.get("delegations")) else [])]
    key = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    fingerprint = json.dumps([made.name, request.get("args") or {}], sort_keys=True)
    return key, hashlib.sha256(fingerprint.encode()).hexdigest()


def _read_request(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise _Refused(400, "the request is not JSON") from None
    if not isinstance(request, dict) or not isinstance(request.get("args", {}), dict):
        raise _Refused(400, "the request is not an object with `args`")
    for name, kind in (("context", dict), ("state", dict), ("answers", list), ("delegations", list), ("agent_path", list)):
        if request.get(name) is not None and not isinstance(request[name], kind):
            raise _Refused(400, f"`{name}` has the wrong form")
    access = request.get("read_access")
    if access is not None and not (isinstance(access, dict) and {"path", "token", "expires_at"} <= access.keys()):
        raise _Refused(400, "`read_access` has the wrong form")
    for name in ("answers", "delegations"):
        if not all(isinstance(one, dict) for one in request.get(name) or []):
            raise _Refused(400, f"`{name}` has the wrong form")
    if not _text(request, "tool_call_id"):
        raise _Refused(400, "`tool_call_id` is missing")
    return request


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _respond(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    length = (b"content-length", str(len(body)).encode())
    own = [] if status == 304 else [(b"content-type", _JSON), length]
    await _start(send, status, [*own, *headers])
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return


def app(tools: Iterable[Any], **settings: Any) -> App:
    """Returns an ASGI application that serves tools.

    `tools` holds functions, tools made by `tool`, tools of LangChain, and tools or whole servers of FastMCP. The
    settings are those of `App`:

    - `token`: requests need the header `Authorization: Bearer TOKEN`.
    - `results`: a SQLite file that keeps the results of calls over restarts of the service.
    - `max_results`, `result_ttl_s`: how many results are kept, and for how long.
    - `max_body_bytes`, `max_calls`: the limits of a request, and of calls at a time.
    - `adjutant_url`: the address of adjutant, for tools that read of their run (`ToolContext.reader`).
    """
    return App(tools, **settings)


def serve(tools: Iterable[Any], *, host: str = "127.0.0.1", port: int = 9400, **settings: Any) -> None:
    """Serves tools until the process is told to stop. The settings are those of `app`.

    Without a token everybody who reaches the service may call its tools, so it listens on this machine only; other
    addresses need a token.
    """
    import uvicorn

    if settings.get("token") is None and host not in ("127.0.0.1", "localhost", "::1"):
        raise ValueError(f"to listen on {host}, give a token: everybody who reaches the service may call its tools")
    service = app(tools, **settings)
    service.owns_loop = True
    uvicorn.run(service, host=host, port=port, log_level="info", access_log=False)
