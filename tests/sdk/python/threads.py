"""The official Python SDK follows threads: `client.threads.stream`, over SSE and over WebSocket.

Usage: threads.py BASE. Prints "the flow is complete" when it came to its end.
"""

import asyncio
import json
import os
import sys
import uuid

from langgraph_sdk import get_client


def script(*turns):
    return json.dumps({"script": list(turns)})


def calls(*calls):
    return {"tool_calls": [{"id": id, "name": name, "args": args} for id, name, args in calls]}


def human(text):
    return {"messages": [{"role": "user", "content": text}]}


def task(id, subagent, text):
    return (id, "task", {"description": text, "subagent_type": subagent})


KEY = os.environ.get("LANGGRAPH_API_KEY")
# The SDK sends the key of its client with requests, but not when it opens a WebSocket.
HEADERS = {"x-api-key": KEY} if KEY else None
APPROVAL = {"decisions": [{"type": "approve"}]}


async def texts(thread):
    """The texts of the main agent's messages, as they were streamed."""
    streams = [message async for message in thread.messages]
    return [await message.text for message in streams]


async def text_and_values(client, transport):
    async with client.threads.stream(str(uuid.uuid4()), assistant_id="agent", transport=transport, headers=HEADERS) as thread:
        started = await thread.run.start(input=human(script({"text": "one two three"})))
        assert uuid.UUID(started["run_id"])
        assert await texts(thread) == ["one two three"]
        output = await thread.output
        assert output["messages"][-1]["content"] == "one two three", output
    # A second handle on the same thread: what is past does not end what it does.
    async with client.threads.stream(thread.thread_id, assistant_id="agent", transport=transport, headers=HEADERS) as again:
        await again.run.start(input=human("hello"))
        assert await texts(again) == ["echo: hello"]
        assert (await again.output)["messages"][-1]["content"] == "echo: hello"


async def tools(client, transport):
    async with client.threads.stream(assistant_id="agent", transport=transport, headers=HEADERS) as thread:
        await thread.run.start(input=human(script(calls(("c1", "lookup", {"query": "x"})), {"text": "done"})))
        handles = [handle async for handle in thread.tool_calls]
        assert [(handle.name, handle.input) for handle in handles] == [("lookup", {"query": "x"})]
        output = await handles[0].output
        assert output["content"] == "found x", output


async def subagents(client, transport):
    research = lambda id, what: script(calls((id, "lookup", {"query": what})), {"text": f"it is {what}"})
    text = script(
        calls(task("t1", "researcher", research("c1", "x")), task("t2", "researcher", research("c2", "y"))),
        {"text": "both are known"},
    )
    async with client.threads.stream(assistant_id="agent", transport=transport, headers=HEADERS) as thread:
        await thread.run.start(input=human(text))
        handles = [handle async for handle in thread.subgraphs]
        assert len(handles) == 2, handles
        assert len({tuple(handle.path) for handle in handles}) == 2
        assert [handle.status for handle in handles] == ["completed", "completed"]
        assert (await thread.output)["messages"][-1]["content"] == "both are known"


async def questions(client, transport):
    mailer = script(calls(("m1", "send_email", {"to": "bob", "body": "hi"})), {"text": "sent"})
    for text in [mailer, script(calls(task("t1", "mailer", mailer)), {"text": "the mailer sent it"})]:
        async with client.threads.stream(assistant_id="agent", transport=transport, headers=HEADERS) as thread:
            await thread.run.start(input=human(text))
            async for _ in thread.values:
                pass
            assert thread.interrupted
            [interrupt] = thread.interrupts
            assert interrupt["value"]["action_requests"][0]["name"] == "send_email", interrupt
            await thread.run.respond(APPROVAL, interrupt_id=interrupt["interrupt_id"])
            output = await thread.output
            assert "sent" in output["messages"][-1]["content"], output


async def joining(client, transport):
    """A run that is under way is joined, and one that is over is read."""
    async with client.threads.stream(assistant_id="agent", transport=transport, headers=HEADERS) as thread:
        slow = json.dumps({"script": [{"text": "slowly " * 5}], "delay_ms": 100})
        await thread.run.start(input=human(slow))
        async with client.threads.stream(thread.thread_id, assistant_id="agent", transport=transport, headers=HEADERS) as other:
            assert await texts(other) == ["slowly " * 5]
        assert (await thread.output)["messages"][-1]["content"] == "slowly " * 5
    async with client.threads.stream(thread.thread_id, assistant_id="agent", transport=transport, headers=HEADERS) as late:
        assert (await late.output)["messages"][-1]["content"] == "slowly " * 5


async def main():
    client = get_client(url=sys.argv[1])
    for transport in ["sse", "websocket"]:
        for scene in [text_and_values, tools, subagents, questions, joining]:
            try:
                await asyncio.wait_for(scene(client, transport), 60)
            except BaseException:
                print(f"{scene.__name__} over {transport}")
                raise
    print("the flow is complete")


asyncio.run(main())
