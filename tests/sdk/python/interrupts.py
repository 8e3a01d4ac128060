"""Questions to the user, and calls that are asked about one by one, as a user of the Python SDK answers them.

Usage: python interrupts.py BASE_URL"""

import asyncio
import json
import sys

from langgraph_sdk import get_client

client = get_client(url=sys.argv[1])


def script(*turns):
    return json.dumps({"script": turns})


def call(id, name, args):
    return {"id": id, "name": name, "args": args}


def calls(*every):
    return {"tool_calls": every}


def human(content):
    return {"messages": [{"role": "user", "content": content}]}


def results(values):
    return {message["tool_call_id"]: message["content"] for message in values["messages"] if message["type"] == "tool"}


async def asks(agent, content):
    """Runs an agent until it asks. The interrupts are the same in the stream and on the thread."""
    thread_id = (await client.threads.create())["thread_id"]
    streamed = {}
    async for part in client.runs.stream(thread_id, agent, input=human(content), stream_mode=["updates"]):
        for interrupt in part.data.get("__interrupt__", []):
            streamed[interrupt["id"]] = interrupt
    thread = await client.threads.get(thread_id)
    assert thread["status"] == "interrupted", thread
    asked = [interrupt for every in thread["interrupts"].values() for interrupt in every]
    assert {interrupt["id"] for interrupt in asked} == set(streamed), (asked, streamed)
    return thread_id, [streamed[interrupt["id"]] for interrupt in asked]


async def questions_to_the_user():
    questions = [
        {
            "question": "Which colour?",
            "type": "multiple_choice",
            "allow_other": False,
            "choices": [{"value": "red"}, {"value": "blue"}],
        },
        {"question": "Why?", "type": "text", "required": False},
    ]
    text = script(calls(call("q1", "ask_user", {"questions": questions})), {"text": "thanks"})
    thread_id, [asked] = await asks("curious", text)
    value = asked["value"]
    assert (value["type"], value["tool_call_id"]) == ("ask_user", "q1"), value
    assert [one["question"] for one in value["questions"]] == ["Which colour?", "Why?"], value
    assert asked["response_schema"]["properties"]["answers"]["minItems"] == 2, asked
    # A wrong answer is refused, and the question stays.
    try:
        await client.runs.wait(thread_id, "curious", command={"resume": {"answers": ["green", None]}})
    except Exception as error:
        response = getattr(error, "response", None)
        status = getattr(error, "status_code", None) or response.status_code
        assert status == 422, repr(error)
    else:
        raise AssertionError("a wrong answer is refused")
    answer = {"type": "answered", "answers": ["blue", "It is calm."]}
    values = await client.runs.wait(thread_id, "curious", command={"resume": answer})
    told = "Question: Which colour?\nAnswer: blue\nQuestion: Why?\nAnswer: It is calm."
    assert results(values) == {"q1": told}, values
    assert values["messages"][-1]["content"] == "thanks", values
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def single_calls():
    both = [call("m1", "send_email", {"to": "bob", "body": "hi"}), call("m2", "send_email", {"to": "eve", "body": "hi"})]
    thread_id, asked = await asks("single", script(calls(*both), {"text": "both are decided"}))
    by_call = {interrupt["value"]["tool_call_id"]: interrupt for interrupt in asked}
    assert set(by_call) == {"m1", "m2"}, asked
    value = by_call["m1"]["value"]
    assert (value["type"], value["name"], value["args"]["to"]) == ("tool_approval", "send_email", "bob"), value
    assert "respond" in by_call["m1"]["response_schema"]["properties"]["type"]["enum"], by_call
    # Each has its own answer, by its id.
    first, second = by_call["m1"]["id"], by_call["m2"]["id"]
    rejection = {"type": "reject", "message": "Not her."}
    await client.runs.wait(thread_id, "single", command={"resume": {second: rejection}})
    left = (await client.threads.get(thread_id))["interrupts"]
    assert [interrupt["id"] for every in left.values() for interrupt in every] == [first], left
    edited = {"type": "edit", "edited_action": {"name": "send_email", "args": {"to": "bob", "body": "hello"}}}
    values = await client.runs.wait(thread_id, "single", command={"resume": {first: edited}})
    assert "sent to bob: hello" in results(values)["m1"], values
    assert "Not her." in results(values)["m2"], values
    assert values["messages"][-1]["content"] == "both are decided", values


async def main():
    await questions_to_the_user()
    await single_calls()
    print("the flow is complete")


asyncio.run(main())
