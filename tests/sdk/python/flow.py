"""The whole flow as a user of the Python SDK writes it. Usage: python flow.py BASE_URL"""

import asyncio
import json
import sys

import httpx
from langgraph_sdk import get_client

client = get_client(url=sys.argv[1])


def script(*turns):
    return json.dumps({"script": turns})


def calls(id, name, args):
    return {"tool_calls": [{"id": id, "name": name, "args": args}]}


def task(id, subagent, description):
    return calls(id, "task", {"description": description, "subagent_type": subagent})


def human(content):
    return {"messages": [{"role": "user", "content": content}]}


def contents(values):
    return [message["content"] for message in values["messages"][1:]]


async def refused(call, status):
    try:
        await call
    except httpx.HTTPStatusError as error:
        assert error.response.status_code == status, error
        return
    except Exception as error:
        assert getattr(error, "status_code", None) == status, repr(error)
        return
    raise AssertionError(f"not refused with {status}")


async def delegation_with_approval():
    [assistant] = await client.assistants.search(graph_id="agent")
    assert assistant["name"] == "main-agent", assistant

    thread = await client.threads.create(metadata={"flow": "python"})
    thread_id = thread["thread_id"]
    mail = script(calls("m1", "send_email", {"to": "bob", "body": "hi"}), {"text": "sent"})
    text = script(task("t1", "mailer", mail), {"text": "the mailer sent it"})

    created = []
    parts = []
    async for part in client.runs.stream(
        thread_id,
        "agent",
        input=human(text),
        stream_mode=["values", "messages-tuple", "updates"],
        stream_subgraphs=True,
        on_run_created=created.append,
    ):
        parts.append(part)
    assert parts[0].event == "metadata", parts[0]
    assert parts[0].data["run_id"] == created[0]["run_id"], created
    assert created[0]["thread_id"] == thread_id, created
    names = {part.data[1]["lc_agent_name"] for part in parts if part.event.split("|")[0] == "messages"}
    assert names == {"main-agent", "mailer"}, names
    asked = [one for part in parts if "__interrupt__" in part.data for one in part.data["__interrupt__"]]
    assert asked, parts

    waiting = await client.threads.get(thread_id)
    assert waiting["status"] == "interrupted", waiting
    [[interrupt]] = waiting["interrupts"].values()
    assert interrupt["id"] == asked[0]["id"], interrupt
    [request] = interrupt["value"]["action_requests"]
    assert (request["name"], request["args"]) == ("send_email", {"to": "bob", "body": "hi"}), request

    values = await client.runs.wait(thread_id, "agent", command={"resume": {"decisions": [{"type": "approve"}]}})
    assert contents(values) == ["", "sent", "the mailer sent it"], values
    state = await client.threads.get_state(thread_id)
    assert (state["next"], state["values"]) == ([], values), state
    history = await client.threads.get_history(thread_id, limit=100)
    assert history[-1]["metadata"]["source"] == "input", history[-1]
    assert history[0]["values"] == values, history[0]
    assert len(await client.runs.list(thread_id)) == 2


async def joining():
    thread_id = (await client.threads.create())["thread_id"]
    text = script(calls("c1", "lookup", {"query": "x"}), {"text": "done"})
    run = await client.runs.create(
        thread_id, "agent", input=human(text), stream_mode=["values", "messages-tuple"], stream_resumable=True
    )
    values = await client.runs.join(thread_id, run["run_id"])
    assert contents(values) == ["", "found x", "done"], values
    every = [part async for part in client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1")]
    assert every[0].event == "metadata", every
    half = len(every) // 2
    rest = client.runs.join_stream(thread_id, run["run_id"], last_event_id=every[half].id)
    assert [part async for part in rest] == every[half + 1 :]
    assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "success"


async def cancelling():
    thread_id = (await client.threads.create())["thread_id"]
    slow = script({"text": "never " * 50, "delay_ms": 1000})
    run = await client.runs.create(thread_id, "agent", input=human(slow))
    await refused(client.runs.create(thread_id, "agent", input=human("no"), multitask_strategy="reject"), 409)
    await client.runs.cancel(thread_id, run["run_id"], wait=True)
    assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "interrupted"
    values = await client.runs.wait(thread_id, "agent", input=human("go on"))
    assert values["messages"][-1]["content"] == "echo: go on", values
    failing = client.runs.wait(thread_id, "agent", input=human(script({"error": 400})))
    try:
        await failing
    except Exception as error:
        assert "refused" in str(error), error
    else:
        raise AssertionError("a failed run raises")


async def resources():
    threads = await client.threads.search(metadata={"flow": "python"}, status="idle")
    assert len(threads) == 1, threads
    assert await client.threads.count(metadata={"flow": "python"}) == 1
    thread_id = threads[0]["thread_id"]
    updated = await client.threads.update(thread_id, metadata={"seen": True})
    assert updated["metadata"]["flow"] == "python" and updated["metadata"]["seen"], updated
    await client.threads.update_state(thread_id, {"messages": [{"role": "user", "content": "noted"}]})
    state = await client.threads.get_state(thread_id)
    assert state["values"]["messages"][-1]["content"] == "noted", state
    await client.threads.delete(thread_id)
    await refused(client.threads.get(thread_id), 404)
    values = await client.runs.wait(None, "agent", input=human("hello"))
    assert values["messages"][-1]["content"] == "echo: hello", values


async def main():
    await delegation_with_approval()
    await joining()
    await cancelling()
    await resources()
    print("the flow is complete")


asyncio.run(main())
