from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from conftest import Service

from adjutant_tools import ReadError, RunReader, ToolContext

FILE = bytes(range(256)) * 6_000
ACCESS = {"path": "/call", "token": "adjc_1", "expires_at": "2026-01-01T00:00:00Z"}


class Adjutant(BaseHTTPRequestHandler):
    """The endpoints of a call."""

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def answer(self, body: Any = None) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if self.headers["authorization"] != "Bearer adjc_1":
            return self.send(401, {"code": "call_over", "detail": "its call is over"})
        if url.path == "/call/state":
            if "offset" in query:
                at = int(query["offset"][0])
                return self.send(200, {"values": {"messages": [1, 2, 3][at : at + int(query["limit"][0])]}})
            if "secret" in query.get("fields", []):
                return self.send(403, {"code": "not_declared", "detail": "not allowed"})
            return self.send(200, {"values": {"messages": [1], "asked": query.get("fields", [])}})
        if url.path == "/call/files":
            return self.send(200, {"files": [{"path": "/a", "size": len(FILE)}], "total": 1})
        if url.path == "/call/files/content":
            at = int(query["offset"][0])
            return self.send(200, FILE[at : at + int(query["limit"][0])], {"x-file-size": str(len(FILE))})
        if url.path == "/call/store/items":
            return self.send(200, {"namespace": query["namespace"], "key": query["key"][0]})
        if url.path == "/call/store/items/search":
            return self.send(200, {"items": [body]})
        return self.send(302, b"", {"location": "/call/state"})

    def send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Adjutant)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_a_call_reads_the_state_files_and_items_of_its_run(url: str) -> None:
    reader = RunReader(url, ACCESS)
    assert reader.state() == {"messages": [1], "asked": []}
    assert reader.state("a", "b")["asked"] == ["a", "b"]
    assert reader.entries("messages", offset=1, limit=1) == [2]
    assert reader.files()[0]["path"] == "/a"
    assert reader.read_file("/a") == FILE
    assert reader.item(["memories", "u"], "k") == {"namespace": ["memories.u"], "key": "k"}
    found = reader.search(["memories"], query="otters", filter={"kind": "note"}, limit=2)
    wanted = {"namespace_prefix": ["memories"], "limit": 2, "offset": 0, "query": "otters", "filter": {"kind": "note"}}
    assert found == [wanted]
    assert "adjc_1" not in repr(reader)


def test_what_is_refused_is_an_error_with_its_status_and_no_redirect_is_followed(url: str) -> None:
    with pytest.raises(ReadError, match="not allowed") as refused:
        RunReader(url, ACCESS).state("secret")
    assert (refused.value.status, refused.value.code) == (403, "not_declared")
    with pytest.raises(ReadError) as over:
        RunReader(url, {**ACCESS, "token": "adjc_2"}).files()
    assert over.value.status == 401
    with pytest.raises(ReadError) as moved:
        RunReader(url, {**ACCESS, "path": "/elsewhere"}).files()
    assert moved.value.status == 302
    with pytest.raises(ValueError, match="must begin with http"):
        RunReader("file:///etc", ACCESS)


def test_a_function_gets_the_reader_of_its_call(run: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADJUTANT_URL", raising=False)

    def count(context: ToolContext) -> int:
        "Counts the messages."
        assert "adjc_1" not in repr(context)
        return len(context.reader().state()["messages"])

    service = Service(count, adjutant_url=url)
    assert run(service.call("count", {}, read_access=ACCESS)) == {"content": "1"}
    assert "no `read_access`" in run(service.call("count", {}, task="t2"))["error"]["message"]
    assert run(service.post("count", {}, task="t3", read_access={"token": 1}))[0] == 400
    monkeypatch.setenv("ADJUTANT_URL", url)
    assert run(Service(count).call("count", {}, read_access=ACCESS)) == {"content": "1"}
