"""The MCP SDK, and FastMCP, use the agents of a server as tools.

Usage: python mcp_client.py BASE_URL MODE [KEY]; the mode is that of the client: `legacy` or `auto`.
"""

import asyncio
import json
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

url = f"{sys.argv[1]}/mcp"
mode = sys.argv[2]
key = sys.argv[3] if len(sys.argv) > 3 else None


def script(*turns):
    return json.dumps({"script": list(turns)})


def mail(to):
    return {"tool_calls": [{"id": f"mail-{to}", "name": "send_email", "args": {"to": to, "body": "hi"}}]}


def connect(**settings):
    http = httpx2.AsyncClient(headers={"x-api-key": key} if key else {}, timeout=60, trust_env=False)
    return Client(streamable_http_client(url, http_client=http), mode=mode, **settings)


async def lists_and_calls():
    """Agents are tools; a call has an answer, a thread to continue, and progress."""
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "agent" in tools and "finder" in tools, sorted(tools)
        assert tools["agent"].input_schema["required"] == ["message"]
        heard = []

        async def on_progress(progress, total, message):
            heard.append((progress, message))

        look = {"tool_calls": [{"id": "l1", "name": "lookup", "args": {"query": "otters"}}]}
        asked = {"message": script(look, {"text": "found"})}
        result = await client.call_tool("agent", asked, progress_callback=on_progress)
        assert not result.is_error, result
        assert result.content[0].text == "found"
        assert result.structured_content["status"] == "success"
        numbers = [number for number, _ in heard]
        assert numbers == sorted(set(numbers)) and numbers, heard
        texts = " ".join(message for _, message in heard)
        assert "calls lookup" in texts and "lookup has answered" in texts, heard

        thread = result.structured_content["thread_id"]
        again = await client.call_tool("agent", {"message": script({"text": "more"}), "thread_id": thread})
        assert again.structured_content["thread_id"] == thread
        assert again.structured_content["answer"] == "more"

        finding = {"tool_calls": [{"id": "f1", "name": "Finding", "args": {"summary": "it is so"}}]}
        structured = await client.call_tool("finder", {"message": script(finding)})
        assert structured.structured_content["answer"] == {"summary": "it is so"}, structured

        wrong = await client.call_tool("agent", {"text": "no message"})
        assert wrong.is_error and "message" in wrong.content[0].text, wrong


async def asks_the_human():
    """An interrupt is a question to the user of the client, and the answer resumes the run."""
    asked = []

    async def on_elicitation(context, params):
        asked.append(params)
        decision = "approve" if len(asked) == 1 else "reject"
        return ElicitResult(action="accept", content={"decision": decision, "message": "Not to her."})

    async with connect(elicitation_callback=on_elicitation) as client:
        talk = script(mail("m1"), mail("m2"), {"text": "both are done"})
        result = await client.call_tool("agent", {"message": talk})
        assert result.content[0].text == "both are done", result
        assert len(asked) == 2, asked
        schema = asked[0].requested_schema
        assert schema["properties"]["decision"]["enum"] == ["approve", "reject"], schema

    async def on_declined(context, params):
        return ElicitResult(action="decline")

    async with connect(elicitation_callback=on_declined) as client:
        result = await client.call_tool("agent", {"message": script(mail("m3"), {"text": "never"})})
        waiting = result.structured_content
        assert waiting["status"] == "interrupted", result
        assert waiting["interrupts"][0]["resolve_url"] in result.content[0].text


async def leaves_the_question_open():
    """A client that cannot ask learns where the answer is given."""
    async with connect() as client:
        result = await client.call_tool("agent", {"message": script(mail("m4"), {"text": "never"})})
        assert not result.is_error, result
        assert result.structured_content["status"] == "interrupted"
        assert result.structured_content["interrupts"][0]["value"]["action_requests"][0]["name"] == "send_email"


async def main():
    await lists_and_calls()
    await asks_the_human()
    await leaves_the_question_open()
    print("the agents are tools")


asyncio.run(main())
