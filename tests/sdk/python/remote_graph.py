"""A program of LangGraph that has an agent of the server as a node, as `RemoteGraph`.

Usage: python remote_graph.py BASE_URL"""

import json
import sys
import uuid

from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command, interrupt

agent = RemoteGraph("agent", url=sys.argv[1])
APPROVAL = {"decisions": [{"type": "approve"}]}


def script(*turns):
    return json.dumps({"script": turns})


def calls(id, name, args):
    return {"tool_calls": [{"id": id, "name": name, "args": args}]}


def task(id, subagent, description):
    return calls(id, "task", {"description": description, "subagent_type": subagent})


def human(content):
    return {"messages": [{"role": "user", "content": content}]}


def on_new_thread():
    return {"configurable": {"thread_id": str(uuid.uuid4())}}


def contents(values):
    return [message.content for message in values["messages"][1:]]


MAIL = script(calls("m1", "send_email", {"to": "bob", "body": "hi"}), {"text": "sent"})
RESEARCH = script(task("t1", "researcher", script({"text": "it is x"})), {"text": "done"})


def ask_first(state):
    interrupt("May the agent begin?")


def program(*nodes):
    """A program whose nodes run one after the other, each on the thread of the program."""
    graph = StateGraph(MessagesState)
    before = START
    for name, node in nodes:
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
    return graph.compile(checkpointer=MemorySaver())


def the_agent_alone():
    config = on_new_thread()
    values = agent.invoke(human("hello"), config)
    assert values["messages"][-1]["content"] == "echo: hello", values
    state = agent.get_state(config)
    assert (state.next, state.values) == ((), values), state
    history = list(agent.get_state_history(config))
    assert [past.metadata["step"] for past in history] == [1, 0, -1], history
    earlier = list(agent.get_state_history(config, before=history[0].config, limit=1))
    assert earlier == history[1:2], earlier
    inputs = list(agent.get_state_history(config, filter={"source": "input"}))
    assert [past.metadata["step"] for past in inputs] == [-1], inputs
    assert agent.get_state(history[1].config) == history[1]
    noted = agent.update_state(config, human("noted"), as_node="model")
    assert agent.get_state(config).config == noted
    assert "researcher:model" in agent.get_graph(xray=True).nodes

    config = on_new_thread()
    asked = agent.invoke(human(MAIL), config)["__interrupt__"]
    (question,) = agent.get_state(config, subgraphs=True).interrupts
    assert question.id == asked[0]["id"], (question, asked)
    values = agent.invoke(Command(resume=APPROVAL), config)
    assert values["messages"][-1]["content"] == "sent", values


def its_streams():
    for mode in ("values", "updates", "messages", "debug", "tasks", "checkpoints"):
        own = list(agent.stream(human(RESEARCH), on_new_thread(), stream_mode=mode))
        every = list(agent.stream(human(RESEARCH), on_new_thread(), stream_mode=mode, subgraphs=True))
        assert 0 < len(own) < len(every), (mode, own, every)
        assert {len(namespace) for namespace, _ in every} == {0, 1}, every
    with agent.stream_events(human(RESEARCH), on_new_thread(), version="v3") as run:
        texts = [str(message.text) for message in run.messages]
        assert texts == ["", "done"], texts
        assert run.output["messages"][-1]["content"] == "done", run.output


def a_node_among_others():
    graph = program(("remote", agent))
    config = on_new_thread()
    assert contents(graph.invoke(human("hello"), config)) == ["echo: hello"]
    assert contents(graph.invoke(human("again"), config)) == ["echo: hello", "again", "echo: again"]
    parts = list(graph.stream(human(RESEARCH), on_new_thread(), stream_mode="updates", subgraphs=True))
    below = [namespace[1] for namespace, _ in parts if len(namespace) == 2]
    assert below and all(name.startswith("tools:") for name in below), parts


def answers_reach_the_agent():
    for text in (MAIL, script(task("t1", "mailer", MAIL), {"text": "sent"})):
        graph = program(("remote", agent))
        config = on_new_thread()
        (question,) = graph.invoke(human(text), config)["__interrupt__"]
        (waiting,) = graph.get_state(config, subgraphs=True).tasks
        assert waiting.state.interrupts[0].id == question.id, waiting
        # LangGraph does not send on an answer without an id, so the agent asks again.
        (again,) = graph.invoke(Command(resume=APPROVAL), config)["__interrupt__"]
        assert again.id == question.id, again
        values = graph.invoke(Command(resume={question.id: APPROVAL}), config)
        assert contents(values)[-1] == "sent", values
        assert sum(message.type == "human" for message in values["messages"]) == 1, values


def a_program_that_has_stopped_elsewhere():
    graph = program(("first", ask_first), ("remote", agent))
    config = on_new_thread()
    for turn in ("one", "two"):
        graph.invoke(human(turn), config)
        values = graph.invoke(Command(resume="yes"), config)
        assert contents(values)[-1] == f"echo: {turn}", values


the_agent_alone()
its_streams()
a_node_among_others()
answers_reach_the_agent()
a_program_that_has_stopped_elsewhere()
print("the flow is complete")
