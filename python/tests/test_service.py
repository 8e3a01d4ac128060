from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import Service

from adjutant_tools import serve, tool


def counter() -> tuple[Any, list[int]]:
    calls: list[int] = []

    def count(step: int = 1) -> int:
        "Counts."
        calls.append(step)
        return len(calls)

    return count, calls


def test_the_list_has_a_version_and_is_sent_only_when_it_is_new(run: Any) -> None:
    service = Service(counter()[0])
    status, headers, body = run(service.request("GET", "/tools"))
    assert status == 200 and json.loads(body)["version"] == 1
    again = run(service.request("GET", "/tools", headers={"If-None-Match": headers["etag"]}))
    assert again[0] == 304 and again[2] == b""


def test_one_call_runs_once_however_often_it_is_sent(run: Any) -> None:
    count, calls = counter()
    service = Service(count)
    assert run(service.call("count", {})) == run(service.call("count", {})) == {"content": "1"}
    assert run(service.call("count", {}, task="t2")) == {"content": "2"}
    assert calls == [1, 1]


def test_repeats_wait_for_the_call_that_is_being_made(run: Any) -> None:
    calls = []

    async def scene() -> list[Any]:
        go = asyncio.Event()

        async def slow() -> str:
            calls.append(1)
            await go.wait()
            return "once"

        service = Service(slow)
        waiting = [asyncio.create_task(service.call("slow", {})) for _ in range(3)]
        while not calls:
            await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*waiting)

    assert run(scene()) == [{"content": "once"}] * 3
    assert calls == [1]


def test_the_same_call_with_other_arguments_is_refused(run: Any) -> None:
    service = Service(counter()[0])
    run(service.call("count", {"step": 1}))
    status, _, body = run(service.post("count", {"step": 2}))
    assert status == 409 and "other arguments" in json.loads(body)["detail"]


def test_stored_results_outlive_the_service(run: Any, tmp_path: Path) -> None:
    count, calls = counter()
    file = tmp_path / "results.sqlite"
    first = Service(count, results=file)
    assert run(first.call("count", {})) == {"content": "1"}
    first.app._results.close()
    assert run(Service(count, results=file).call("count", {})) == {"content": "1"}
    assert calls == [1]


def test_a_call_that_the_service_did_not_survive_is_made_again_only_if_it_may(run: Any, tmp_path: Path) -> None:
    for idempotent, outcome in ((False, "UnknownOutcome"), (True, None)):
        count, calls = counter()
        service = Service(tool(count, idempotent=idempotent), results=tmp_path / f"{idempotent}.sqlite")
        results = service.app._results
        ended, results.end = results.end, lambda *_: None  # type: ignore[method-assign]
        run(service.call("count", {}))
        results.end = ended  # type: ignore[method-assign]
        answer = run(service.call("count", {}))
        assert answer.get("error", {}).get("type") == outcome
        assert len(calls) == (1 if outcome else 2)


def test_kept_results_have_limits(run: Any, tmp_path: Path) -> None:
    for place in (None, tmp_path / "results.sqlite"):
        count, calls = counter()
        service = Service(count, results=place, max_results=2)
        for task in ("a", "b", "c", "a"):
            run(service.call("count", {}, task=task))
        assert len(calls) == 4, "the oldest result is gone"
        count, calls = counter()
        service = Service(count, result_ttl_s=-1.0)
        run(service.call("count", {}))
        run(service.call("count", {}))
        assert len(calls) == 2


def test_a_token_is_demanded_of_everything_but_the_health(run: Any) -> None:
    service = Service(counter()[0], token="s3cret-token")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret-token"}):
        assert run(service.request("GET", "/tools", headers=headers))[0] == 401
        assert run(service.request("POST", "/tools/count", b"{}", headers))[0] == 401
    assert run(service.request("GET", "/tools", headers={"Authorization": "Bearer s3cret-token"}))[0] == 200
    assert run(service.request("GET", "/health"))[0] == 200


def test_a_service_for_others_needs_a_token() -> None:
    with pytest.raises(ValueError, match="token"):
        serve([counter()[0]], host="0.0.0.0")


def test_requests_that_are_wrong_are_refused(run: Any) -> None:
    service = Service(counter()[0], max_body_bytes=1_000)
    call = b'{"args": {}, "tool_call_id": "c"'
    for status, method, path, body in (
        (404, "POST", "/tools/none", call + b"}"),
        (404, "GET", "/", b""),
        (405, "GET", "/tools/count", b""),
        (405, "POST", "/tools", b""),
        (400, "POST", "/tools/count", b"{"),
        (400, "POST", "/tools/count", b"[" * 900),
        (400, "POST", "/tools/count", b'{"args": []}'),
        (400, "POST", "/tools/count", b"{}"),
        (400, "POST", "/tools/count", call + b', "answers": [1]}'),
        (413, "POST", "/tools/count", b" " * 1_001),
    ):
        assert run(service.request(method, path, body))[0] == status, (method, path, body)


def test_a_service_that_is_busy_says_so(run: Any) -> None:
    async def scene() -> int:
        go = asyncio.Event()

        async def slow() -> None:
            await go.wait()

        service = Service(slow, max_calls=1)
        first = asyncio.create_task(service.call("slow", {}))
        while not service.app._running:
            await asyncio.sleep(0)
        status, _, _ = await service.post("slow", {}, task="t2")
        go.set()
        await first
        return status

    assert run(scene()) == 503


def test_a_caller_that_leaves_ends_only_the_calls_that_say_so(run: Any) -> None:
    async def scene(cancel: bool) -> tuple[bool, bool]:
        begun, go = asyncio.Event(), asyncio.Event()
        ended = threading.Event()

        async def slow() -> str:
            begun.set()
            await go.wait()
            ended.set()
            return "done"

        service = Service(tool(slow, cancel_on_disconnect=cancel))
        body = json.dumps({"args": {}, "tool_call_id": "c"}).encode()
        messages: list[dict[str, Any]] = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop(0)
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            raise AssertionError("nobody is there")

        scope = {"type": "http", "method": "POST", "path": "/tools/slow", "headers": []}
        await service.app(scope, receive, send)
        left = [running.task for running in service.app._running.values()]
        go.set()
        await asyncio.gather(*left, return_exceptions=True)
        return ended.is_set(), left[0].cancelled() if left else True

    assert run(scene(False)) == (True, False)
    assert run(scene(True)) == (False, True)


def test_a_tool_that_is_silent_shows_that_it_is_alive(run: Any) -> None:
    async def scene() -> bytes:
        async def slow() -> str:
            await asyncio.sleep(0.2)
            return "done"

        service = Service(slow, heartbeat_s=0.01)
        _, headers, body = await service.post("slow", {}, accept="application/x-ndjson")
        assert headers["content-type"] == "application/x-ndjson"
        return body

    body = run(scene())
    assert body.startswith(b"\n") and json.loads(body.split()[-2] + body.split()[-1]) == {"content": "done"}
