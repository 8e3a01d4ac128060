"""Calls every public method of the Python SDK with every parameter, once async and once sync, and checks what comes back.

Usage: python every_method.py BASE_URL. The last lines name, as JSON, the methods that work. A method that the SDK has
and nobody calls here is a failure, unless it is excused with the reason.
"""

import json
import queue
import sys
import threading
import uuid
import warnings
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer

from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.errors import ConflictError, NotFoundError

from calls import Calls

EXCUSED = {"threads.stream": "the second version of the wire, which has tests of its own"}
EXCUSED_PARAMETERS = {"langsmith_tracing": "reports to a service of the SDK's vendor"}

# Once a year, so that it is not due during the test.
NEW_YEAR = "0 0 1 1 *"


def script(*turns):
    return json.dumps({"script": turns})


def calls_tool(id, name, args):
    return {"tool_calls": [{"id": id, "name": name, "args": args}]}


def human(content):
    return {"messages": [{"role": "user", "content": content}]}


def last(values):
    return values["messages"][-1]["content"]


def slow():
    """Input of a run that does not end by itself within a test."""
    return human(script({"text": "never " * 100, "delay_ms": 500}))


def same(actual, expected):
    assert actual == expected, f"{actual!r} is not {expected!r}"


def raises(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def ids(things, name):
    return [thing[name] for thing in things]


class Reports(BaseHTTPRequestHandler):
    """Where the ends of runs are reported."""

    received = queue.Queue()

    def do_POST(self):
        self.received.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def receiver():
    """The address of a receiver of reports."""
    listening = HTTPServer(("127.0.0.1", 0), Reports)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{listening.server_port}/ended"


HOOK = receiver()


def server(client, _):
    same(client.http.get("/ok"), {"ok": True, "services": {}})
    headers = []
    info = client.http.get("/info", on_response=lambda response: headers.append(response.headers))
    assert info["flags"]["assistants"] and info["flags"]["crons"], info
    assert headers[0]["content-type"] == "application/json", headers
    answer = []
    client.http.put(
        "/store/items",
        json={"namespace": ["http"], "key": "k", "value": {"a": 1}},
        on_response=lambda response: answer.append(response.status_code),
    )
    client.http.delete(
        "/store/items",
        json={"namespace": ["http"], "key": "k"},
        on_response=lambda response: answer.append(response.status_code),
    )
    thread = client.http.post("/threads", json={}, on_response=lambda response: answer.append(response.status_code))
    path = f"/threads/{thread['thread_id']}"
    changed = client.http.patch(
        path, json={"metadata": {"by": "hand"}}, on_response=lambda response: answer.append(response.status_code)
    )
    same(changed["metadata"], {"by": "hand"})
    body = {"assistant_id": "plain", "input": human("over http")}
    parts = list(
        client.http.stream(
            f"{path}/runs/stream", "POST", json=body, on_response=lambda response: answer.append(response.status_code)
        )
    )
    same([parts[0].event, last(parts[-1].data)], ["metadata", "echo: over http"])
    values = client.http.request_reconnect(
        f"{path}/runs/wait",
        "POST",
        json=body,
        on_response=lambda response: answer.append(response.status_code),
        reconnect_limit=1,
    )
    same(last(values), "echo: over http")
    same(answer, [204, 204, 200, 200, 200, 200])


def assistants(client, tag):
    [system] = client.assistants.search(graph_id="agent", metadata={"created_by": "system"})
    same([system["name"], system["version"], system["config"], system["context"]], ["main-agent", 1, {}, {}])
    id = str(uuid.uuid4())
    settings = {
        "config": {"tags": ["t"], "recursion_limit": 40, "configurable": {"user": "u1"}},
        "metadata": {"tag": tag},
        "assistant_id": id,
        "name": f"Mine {tag}",
        "description": "the first",
    }
    first = client.assistants.create("agent", if_exists="raise", **settings)
    same({name: first[name] for name in settings}, settings)
    same([first["graph_id"], first["version"], first["created_at"]], ["agent", 1, first["updated_at"]])
    same(client.assistants.get(id), first)
    raises(ConflictError, lambda: client.assistants.create("agent", assistant_id=id))
    same(client.assistants.create("agent", assistant_id=id, if_exists="do_nothing", name="other"), first)
    other = client.assistants.create("plain", context={"who": "me"}, metadata={"tag": tag})
    same([other["context"], other["config"]["configurable"]], [{"who": "me"}, {"who": "me"}])
    same([other["name"], other["description"]], ["Untitled", None])

    second = client.assistants.update(
        id, graph_id="plain", config={"recursion_limit": 50}, metadata={"more": 1}, name="Renamed", description="new"
    )
    same([second["version"], second["graph_id"], second["name"]], [2, "plain", "Renamed"])
    same([second["config"], second["metadata"]], [{"recursion_limit": 50}, {"tag": tag, "more": 1}])
    same(client.assistants.update(id, context={"who": "you"})["context"], {"who": "you"})
    same(ids(client.assistants.get_versions(id), "version"), [3, 2, 1])
    [one] = client.assistants.get_versions(id, metadata={"tag": tag}, limit=1, offset=2)
    same([one["version"], one["name"], one["graph_id"]], [1, f"Mine {tag}", "agent"])
    latest = client.assistants.set_latest(id, 1)
    same([latest["version"], latest["name"], latest["graph_id"]], [1, f"Mine {tag}", "agent"])

    page = client.assistants.search(
        metadata={"tag": tag}, limit=1, offset=0, sort_by="name", sort_order="asc", response_format="object"
    )
    same([ids(page["assistants"], "assistant_id"), page["next"]], [[id], "1"])
    page = client.assistants.search(metadata={"tag": tag}, limit=1, offset=1, response_format="object")
    same([len(page["assistants"]), page["next"]], [1, None])
    found = client.assistants.search(graph_id="agent", name=f"mine {tag}".upper(), select=["assistant_id", "name"])
    same(found, [{"assistant_id": id, "name": f"Mine {tag}"}])
    same(client.assistants.count(metadata={"tag": tag}), 2)
    same(client.assistants.count(graph_id="agent", name=f"mine {tag}"), 1)

    graph = client.assistants.get_graph(id, xray=True)
    nodes = ids(graph["nodes"], "id")
    assert {"__start__", "model", "tools", "__end__"} <= set(nodes), nodes
    assert {edge["source"] for edge in graph["edges"]} <= set(nodes), graph["edges"]
    schemas = client.assistants.get_schemas(id)
    same(schemas["graph_id"], "agent")
    assert "messages" in schemas["input_schema"]["properties"], schemas
    assert {"output_schema", "state_schema", "config_schema", "context_schema"} <= set(schemas), schemas
    subgraphs = client.assistants.get_subgraphs(id)
    assert {"researcher", "mailer"} <= set(subgraphs), subgraphs
    same(list(client.assistants.get_subgraphs(id, namespace="mailer", recurse=True)), ["mailer"])
    assert "messages" in subgraphs["mailer"]["input_schema"]["properties"], subgraphs["mailer"]

    thread_id = client.threads.create()["thread_id"]
    client.runs.wait(thread_id, id, input=human("hello"))
    same(client.threads.get(thread_id)["metadata"]["assistant_id"], id)
    client.assistants.delete(id, delete_threads=True)
    raises(NotFoundError, lambda: client.assistants.get(id))
    raises(NotFoundError, lambda: client.threads.get(thread_id))
    client.assistants.delete(other["assistant_id"])


def threads(client, tag):
    id = str(uuid.uuid4())
    thread = client.threads.create(metadata={"tag": tag}, thread_id=id, if_exists="raise", graph_id="agent", ttl=60)
    same([thread["thread_id"], thread["status"], thread["values"]], [id, "idle", None])
    same(thread["metadata"], {"tag": tag, "graph_id": "agent"})
    raises(ConflictError, lambda: client.threads.create(thread_id=id))
    same(client.threads.create(thread_id=id, if_exists="do_nothing")["metadata"], thread["metadata"])
    same(client.threads.get(id, include=["ttl"])["ttl"]["strategy"], "delete")
    same(client.threads.update(id, metadata={"a": 1}, ttl={"ttl": 90, "strategy": "delete"})["metadata"]["a"], 1)
    same(client.threads.update(id, metadata={"a": 2}, return_minimal=True), None)
    values = client.runs.wait(id, "agent", input=human("hello"))
    thread = client.threads.get(id)
    same([thread["status"], thread["values"], thread["interrupts"]], ["idle", values, {}])
    same([thread["metadata"]["tag"], thread["metadata"]["a"]], [tag, 2])

    found = client.threads.search(
        metadata={"tag": tag},
        ids=[id],
        status="idle",
        limit=5,
        offset=0,
        sort_by="created_at",
        sort_order="asc",
        select=["thread_id", "status"],
        extract={"said": "values.messages[-1].content"},
    )
    same(found, [{"thread_id": id, "status": "idle", "extracted": {"said": "echo: hello"}}])
    same(ids(client.threads.search(values={"messages": values["messages"]}), "thread_id"), [id])
    same(client.threads.count(metadata={"tag": tag}, status="idle"), 1)
    same(client.threads.count(values={"messages": values["messages"]}), 1)
    same(client.threads.count(metadata={"tag": tag}, status="busy"), 0)

    copy = client.threads.copy(id)["thread_id"]
    assert copy != id, copy
    same(client.threads.get_state(copy)["values"], values)
    same(len(client.threads.get_history(copy, limit=100)), len(client.threads.get_history(id, limit=100)))
    same(client.threads.prune([copy], strategy="keep_latest"), {"pruned_count": 1})
    same(client.threads.get_state(copy)["values"], values)
    same(len(client.threads.get_history(copy, limit=100)), 1)
    same(client.threads.prune([copy, str(uuid.uuid4())]), {"pruned_count": 1})
    raises(NotFoundError, lambda: client.threads.get(copy))

    told = client.threads.create(
        graph_id="agent",
        supersteps=[
            {"updates": [{"values": human("asked before"), "as_node": "__input__"}]},
            {"updates": [{"values": {"messages": [{"role": "ai", "content": "answered"}]}, "as_node": "model"}]},
        ],
    )
    state = client.threads.get_state(told["thread_id"])
    same(ids(state["values"]["messages"], "content"), ["asked before", "answered"])
    client.threads.delete(told["thread_id"])
    client.threads.delete(id)
    raises(NotFoundError, lambda: client.threads.get(id))


def states(client, _):
    thread_id = client.threads.create()["thread_id"]
    empty = client.threads.get_state(thread_id)
    same([empty["values"], empty["next"], empty["checkpoint"]], [{}, [], None])
    client.runs.wait(thread_id, "agent", input=human("one"), metadata={"turn": "first"})
    values = client.runs.wait(thread_id, "agent", input=human("two"))
    history = client.threads.get_history(thread_id, limit=100)
    same([history[0]["values"], history[0]["next"]], [values, []])
    earlier = next(state for state in history if state["values"].get("messages", [{}])[-1].get("content") == "echo: one")
    checkpoint = earlier["checkpoint"]

    state = client.threads.get_state(thread_id, subgraphs=True, select=["values.messages", "next"])
    same(state, {"values": {"messages": values["messages"]}, "next": []})
    same(client.threads.get_state(thread_id, checkpoint_id=checkpoint["checkpoint_id"])["values"], earlier["values"])
    same(client.threads.get_state(thread_id, checkpoint=checkpoint)["values"], earlier["values"])
    same(client.threads.get_state(thread_id, checkpoint=checkpoint, select=["next"]), {"next": earlier["next"]})
    before = client.threads.get_history(thread_id, limit=100, before=checkpoint)
    same(before, history[history.index(earlier) + 1 :])
    same(client.threads.get_history(thread_id, limit=100, before={"configurable": checkpoint}), before)
    inputs = client.threads.get_history(thread_id, limit=100, metadata={"source": "input"}, select=["metadata"])
    same([sorted(state) for state in inputs], [["metadata"], ["metadata"]])
    main = {"checkpoint_ns": "", "thread_id": thread_id}
    same(client.threads.get_history(thread_id, limit=1, checkpoint=main), history[:1])

    note = {"messages": [{"role": "ai", "content": "noted"}]}
    updated = client.threads.update_state(thread_id, note, as_node="model")
    state = client.threads.get_state(thread_id)
    same([last(state["values"]), state["metadata"]["source"]], ["noted", "update"])
    same(state["checkpoint"]["checkpoint_id"], updated["checkpoint"]["checkpoint_id"])
    for place in ({"checkpoint": checkpoint}, {"checkpoint_id": checkpoint["checkpoint_id"]}):
        client.threads.update_state(thread_id, note, **place)
        state = client.threads.get_state(thread_id)
        same(ids(state["values"]["messages"], "content"), ["one", "echo: one", "noted"])
        same(state["parent_checkpoint"]["checkpoint_id"], checkpoint["checkpoint_id"])
    client.threads.delete(thread_id)


def thread_streams(client, _):
    thread_id = client.threads.create()["thread_id"]
    text = human(script({"text": "one two three four", "delay_ms": 100}))
    run = client.runs.create(thread_id, "plain", input=text, stream_mode=["values"], stream_resumable=True, after_seconds=1)
    seen = []
    stream = client.threads.join_stream(thread_id, stream_mode=["run_modes", "lifecycle"])
    for part in stream:
        seen.append(part)
        if part.event == "metadata" and part.data.get("status") == "run_done":
            break
    stream.close()
    same(seen[-1].data["run_id"], run["run_id"])
    assert any(part.event == "values" and last(part.data) == "one two three four" for part in seen), seen
    again = client.threads.join_stream(thread_id, last_event_id=seen[0].id)
    rest = [next(again) for _ in seen[1:]]
    again.close()
    same(ids([part._asdict() for part in rest], "id"), ids([part._asdict() for part in seen[1:]], "id"))
    client.threads.delete(thread_id)


def answers(client, tag):
    """Runs that are waited for and streamed, with every field of a request."""
    thread_id = str(uuid.uuid4())
    created = []
    options = {
        "metadata": {"tag": tag},
        "config": {"tags": ["t"], "recursion_limit": 50},
        "context": {"user": "u1"},
        "multitask_strategy": "enqueue",
        "if_not_exists": "create",
        "on_completion": "keep",
        "after_seconds": 0,
        "durability": "sync",
        "webhook": HOOK,
        "on_run_created": created.append,
    }
    ask = human(script(calls_tool("c1", "lookup", {"query": "x"}), {"text": "done"}))
    values = client.runs.wait(thread_id, "agent", input=ask, on_disconnect="continue", strict_resume=False, **options)
    same(ids(values["messages"][1:], "content"), ["", "found x", "done"])
    same(created[0]["thread_id"], thread_id)
    run = client.runs.get(thread_id, created[0]["run_id"])
    same([run["status"], run["metadata"]["tag"], run["kwargs"]["context"]], ["success", tag, {"user": "u1"}])
    parts = list(
        client.runs.stream(
            thread_id,
            "agent",
            input=human("more"),
            stream_mode=["values", "updates", "messages-tuple"],
            stream_subgraphs=True,
            stream_resumable=True,
            feedback_keys=["thumb"],
            on_disconnect="cancel",
            strict_resume=False,
            **options,
        )
    )
    same([parts[0].event, parts[0].data["run_id"]], ["metadata", created[1]["run_id"]])
    same({part.event for part in parts[1:]}, {"values", "updates", "messages"})
    same(last([part for part in parts if part.event == "values"][-1].data), "echo: more")
    assert all(part.id for part in parts), parts
    typed = list(client.runs.stream(thread_id, "agent", input=human("typed"), version="v2"))
    same([typed[0]["type"], typed[-1]["type"], last(typed[-1]["data"])], ["metadata", "values", "echo: typed"])
    run = client.runs.create(
        thread_id,
        "agent",
        input=human("later"),
        stream_mode="values",
        stream_subgraphs=True,
        stream_resumable=True,
        strict_resume=False,
        **options,
    )
    same([run["thread_id"], run["multitask_strategy"]], [thread_id, "enqueue"])
    same(created[2]["run_id"], run["run_id"])
    same(last(client.runs.join(thread_id, run["run_id"])), "echo: later")
    reports = [Reports.received.get(timeout=30) for _ in created]
    same(sorted(ids(reports, "run_id")), sorted(ids(created, "run_id")))
    same(set(ids(reports, "status")), {"success"})
    listed = client.runs.list(thread_id, limit=1, offset=0, status="success", select=["run_id", "status"])
    same(listed, [{"run_id": run["run_id"], "status": "success"}])
    client.threads.delete(thread_id)


def branches(client, _):
    """Runs that begin at an earlier checkpoint, stop at nodes, and fail."""
    thread_id = client.threads.create()["thread_id"]
    values = client.runs.wait(thread_id, "agent", input=human("one"))
    client.runs.wait(thread_id, "agent", input=human("two"))
    history = client.threads.get_history(thread_id, limit=100)
    checkpoint = next(state["checkpoint"] for state in history if state["values"] == values)
    expected = ["one", "echo: one", "else", "echo: else"]
    for place in ({"checkpoint": checkpoint}, {"checkpoint_id": checkpoint["checkpoint_id"]}):
        same(ids(client.runs.wait(thread_id, "agent", input=human("else"), **place)["messages"], "content"), expected)
        parts = list(client.runs.stream(thread_id, "agent", input=human("else"), **place))
        same(ids(parts[-1].data["messages"], "content"), expected)
        run = client.runs.create(thread_id, "agent", input=human("else"), **place)
        same(ids(client.runs.join(thread_id, run["run_id"])["messages"], "content"), expected)

    def stops(**where):
        client.runs.wait(thread_id, "agent", input=human(f"stops {where}"), **where)
        return client.threads.get_state(thread_id)["next"]

    same(stops(interrupt_before=["model"]), ["model"])
    list(client.runs.stream(thread_id, "agent", input=None, interrupt_after="*"))
    list(client.runs.stream(thread_id, "agent", input=human("again"), interrupt_before="*"))
    assert client.threads.get_state(thread_id)["next"], "the run did not stop"
    run = client.runs.create(thread_id, "agent", input=human("x"), interrupt_before=["model"], interrupt_after=["model"])
    client.runs.join(thread_id, run["run_id"])
    same(client.threads.get_state(thread_id)["next"], ["model"])
    client.runs.wait(thread_id, "agent", input=None, interrupt_after=["model"])
    client.threads.delete(thread_id)

    failing = {"input": human(script({"error": 400})), "if_not_exists": "create", "raise_error": False}
    thread_id = str(uuid.uuid4())
    values = client.runs.wait(thread_id, "agent", **failing)
    assert values["__error__"]["error"] and values["__error__"]["message"], values
    raises(Exception, lambda: client.runs.wait(thread_id, "agent", input=human(script({"error": 400}))))
    client.threads.delete(thread_id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for during in (True, False):
            old = {"input": human("old"), "checkpoint_during": during}
            same(last(client.runs.wait(None, "agent", **old)), "echo: old")
            same(last(list(client.runs.stream(None, "agent", **old))[-1].data), "echo: old")
            run = client.runs.create(None, "agent", on_completion="keep", **old)
            same(last(client.runs.join(run["thread_id"], run["run_id"])), "echo: old")
            client.threads.delete(run["thread_id"])


def approvals(client, _):
    mail = script(calls_tool("m1", "send_email", {"to": "bob", "body": "hi"}), {"text": "handled"})
    decision = {"resume": {"decisions": [{"type": "approve"}]}}

    def asked():
        thread_id = client.threads.create()["thread_id"]
        values = client.runs.wait(thread_id, "agent", input=human(mail))
        [interrupt] = values["__interrupt__"]
        same(interrupt["value"]["action_requests"][0]["name"], "send_email")
        same(client.threads.get(thread_id)["status"], "interrupted")
        same([task["interrupts"][0]["id"] for task in client.threads.get_state(thread_id)["tasks"]], [interrupt["id"]])
        return thread_id, interrupt["id"]

    thread_id, _ = asked()
    same(last(client.runs.wait(thread_id, "agent", command=decision, strict_resume=True)), "handled")
    thread_id, id = asked()
    by_id = {"resume": {id: decision["resume"]}}
    parts = list(client.runs.stream(thread_id, "agent", command=by_id, stream_mode="updates", strict_resume=True))
    same(last(list(parts[-1].data.values())[0]) if "model" in parts[-1].data else "handled", "handled")
    thread_id, _ = asked()
    run = client.runs.create(thread_id, "agent", command={**decision, "update": {"messages": []}}, strict_resume=True)
    same(last(client.runs.join(thread_id, run["run_id"])), "handled")


def background(client, tag):
    """Runs that are joined, cancelled and deleted."""
    thread_id = client.threads.create(metadata={"tag": tag})["thread_id"]
    run = client.runs.create(
        thread_id, "agent", input=human("one two"), stream_mode=["values", "messages-tuple"], stream_resumable=True
    )
    run_id = run["run_id"]
    client.runs.join(thread_id, run_id)
    every = list(client.runs.join_stream(thread_id, run_id, last_event_id="-1"))
    same({part.event for part in every}, {"metadata", "values", "messages"})
    some = list(
        client.runs.join_stream(
            thread_id, run_id, last_event_id="-1", stream_mode=["values"], cancel_on_disconnect=False
        )
    )
    same(some, [part for part in every if part.event == "values"])
    client.runs.delete(thread_id, run_id)
    raises(NotFoundError, lambda: client.runs.get(thread_id, run_id))

    def status(run):
        return client.runs.get(thread_id, run["run_id"])["status"]

    run = client.runs.create(thread_id, "agent", input=slow())
    raises(
        ConflictError, lambda: client.runs.create(thread_id, "agent", input=human("no"), multitask_strategy="reject")
    )
    client.runs.cancel(thread_id, run["run_id"], wait=True, action="interrupt")
    same(status(run), "interrupted")
    run = client.runs.create(thread_id, "agent", input=slow())
    client.runs.cancel(thread_id, run["run_id"], wait=True, action="rollback")
    raises(NotFoundError, lambda: client.runs.get(thread_id, run["run_id"]))
    runs = [client.runs.create(thread_id, "agent", input=slow()) for _ in range(3)]
    chosen = ids(runs[1:], "run_id")
    same(client.runs.cancel_many(thread_id=thread_id, run_ids=chosen, action="interrupt"), None)
    same([status(run) for run in runs[1:]], ["interrupted", "interrupted"])
    client.runs.cancel(thread_id, runs[0]["run_id"], wait=True)
    waiting = client.runs.create(thread_id, "agent", input=human("later"), after_seconds=3600)
    same([status(waiting), client.threads.get(thread_id)["status"]], ["pending", "busy"])
    client.runs.cancel_many(status="pending")
    same([status(waiting), client.threads.get(thread_id)["status"] == "busy"], ["interrupted", False])
    client.threads.delete(thread_id)

    body = {"assistant_id": "agent", "metadata": {"tag": tag}, "on_completion": "keep"}
    batch = client.runs.create_batch([{**body, "input": human(text)} for text in ("a", "b")])
    same([run["metadata"]["tag"] for run in batch], [tag, tag])
    same([last(client.runs.join(run["thread_id"], run["run_id"])) for run in batch], ["echo: a", "echo: b"])
    for run in batch:
        client.threads.delete(run["thread_id"])
    alone = client.runs.create(None, "agent", input=human("alone"), on_completion="keep")
    same(last(client.runs.join(alone["thread_id"], alone["run_id"])), "echo: alone")
    client.threads.delete(alone["thread_id"])


def crons(client, tag):
    thread_id = client.threads.create()["thread_id"]
    end = datetime.now(timezone.utc) + timedelta(days=4000)
    every = {
        "schedule": NEW_YEAR,
        "input": human("happy new year"),
        "metadata": {"tag": tag},
        "config": {"tags": ["t"]},
        "context": {"user": "u1"},
        "interrupt_before": ["tools"],
        "interrupt_after": ["tools"],
        "webhook": HOOK,
        "multitask_strategy": "enqueue",
        "end_time": end,
        "enabled": False,
        "timezone": "Europe/Paris",
        "stream_mode": ["values"],
        "stream_subgraphs": True,
        "stream_resumable": True,
        "durability": "async",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        bound = client.crons.create_for_thread(thread_id, "agent", checkpoint_during=True, **every)
        free = client.crons.create("agent", checkpoint_during=True, on_run_completed="keep", **every)
    same([bound["thread_id"], free["thread_id"], free["on_run_completed"]], [thread_id, None, "keep"])
    for cron in (bound, free):
        same([cron["schedule"], cron["timezone"], cron["enabled"]], [NEW_YEAR, "Europe/Paris", False])
        same([cron["metadata"], cron["payload"]["input"]], [{"tag": tag}, every["input"]])
        same(cron["payload"]["webhook"], HOOK)
        same(datetime.fromisoformat(cron["end_time"]), end)
        due = datetime.fromisoformat(cron["next_run_date"])
        same([due.month, due.day, due.hour, due.utcoffset()], [12, 31, 23, timedelta()])

    changed = client.crons.update(
        free["cron_id"],
        schedule="30 12 * * *",
        end_time=None,
        input=human("lunch"),
        metadata={"tag": tag, "more": 1},
        config={"tags": ["u"]},
        interrupt_before=[],
        interrupt_after=[],
        webhook=f"{HOOK}/again",
        on_run_completed="delete",
        enabled=False,
        timezone="Asia/Tokyo",
        stream_mode=["updates"],
        stream_subgraphs=False,
        stream_resumable=False,
        durability="sync",
    )
    same([changed["schedule"], changed["timezone"], changed["end_time"]], ["30 12 * * *", "Asia/Tokyo", None])
    same([changed["metadata"], changed["payload"]["input"]], [{"tag": tag, "more": 1}, human("lunch")])
    due = datetime.fromisoformat(changed["next_run_date"])
    same([due.hour, due.minute], [3, 30])
    same(client.crons.update(bound["cron_id"], context={"user": "u2"})["payload"]["context"], {"user": "u2"})

    found = client.crons.search(metadata={"tag": tag}, limit=1, offset=1, sort_by="created_at", sort_order="asc")
    same(ids(found, "cron_id"), [free["cron_id"]])
    found = client.crons.search(
        assistant_id=bound["assistant_id"], thread_id=thread_id, enabled=False, select=["cron_id", "enabled"]
    )
    same(found, [{"cron_id": bound["cron_id"], "enabled": False}])
    same(client.crons.count(metadata={"tag": tag}), 2)
    same(client.crons.count(assistant_id=bound["assistant_id"], thread_id=thread_id), 1)
    for cron in (bound, free):
        client.crons.delete(cron["cron_id"])
        raises(NotFoundError, lambda id=cron["cron_id"]: client.crons.delete(id))
    client.threads.delete(thread_id)


def store(client, tag):
    place = ["sdk", tag]
    same(client.store.put_item(place, key="k1", value={"a": 1, "b": "x"}, index=False), None)
    client.store.put_item([*place, "sub"], key="k2", value={"a": 2}, index=["a"], ttl=60)
    item = client.store.get_item(place, key="k1", refresh_ttl=True)
    same([item["namespace"], item["key"], item["value"]], [place, "k1", {"a": 1, "b": "x"}])
    assert item["created_at"] and item["updated_at"], item
    same(client.store.get_item(place, key="none"), None)
    found = client.store.search_items(place)
    same(ids(found["items"], "key"), ["k1", "k2"])
    found = client.store.search_items(place, filter={"a": 2}, limit=1, offset=0, query="two", refresh_ttl=False)
    same([(one["key"], one["value"]) for one in found["items"]], [("k2", {"a": 2})])
    listed = client.store.list_namespaces(prefix=place, suffix=["sub"], max_depth=3, limit=5, offset=0)
    same(listed, {"namespaces": [[*place, "sub"]]})
    same(client.store.list_namespaces(prefix=place)["namespaces"], [place, [*place, "sub"]])
    same(client.store.delete_item(place, key="k1"), None)
    client.store.delete_item([*place, "sub"], key="k2")
    same(client.store.search_items(place)["items"], [])


SCENES = [server, assistants, threads, states, thread_streams, answers, branches, approvals, background, crons, store]


def run(kind, client, scenes):
    calls = Calls(client)
    for scene in scenes:
        try:
            scene(calls, f"{kind}-{uuid.uuid4().hex[:8]}")
        except Exception as error:
            raise AssertionError(f"the {kind} client, scene {scene.__name__}") from error
    left = calls.left_out(EXCUSED, EXCUSED_PARAMETERS) if scenes == SCENES else []
    calls.close()
    assert not left, f"the {kind} client: nobody called {left}"
    return calls.table(EXCUSED)


def main():
    base, chosen = sys.argv[1], sys.argv[2:]
    scenes = [scene for scene in SCENES if not chosen or scene.__name__ in chosen]
    tables = [run(kind, make(url=base), scenes) for kind, make in (("async", get_client), ("sync", get_sync_client))]
    same(tables[0], tables[1])
    print(json.dumps(tables[0]))


main()
