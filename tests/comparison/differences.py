"""Finds the differences between the requests of two sides."""

import json
import re
from dataclasses import dataclass, field
from itertools import zip_longest

import scenario
from provider import text_of


@dataclass
class Difference:
    """One difference, with the first request that shows it."""

    id: str
    place: str
    theirs: str
    ours: str
    count: int = 1


@dataclass
class Differences:
    """All differences, by their ids, and how much is equal."""

    all: dict[str, Difference] = field(default_factory=dict)
    requests: int = 0
    tools: int = 0
    equal_results: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)

    def add(self, id: str, place: str, theirs: object, ours: object) -> None:
        if id in self.all:
            self.all[id].count += 1
        else:
            self.all[id] = Difference(id, place, _shown(theirs), _shown(ours))


ABSENT = object()


def _shown(value: object) -> str:
    if value is ABSENT:
        return "absent"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differences(theirs: dict[str, list[dict]], ours: dict[str, list[dict]]) -> Differences:
    """Compares all requests, agent by agent and turn by turn."""
    found = Differences()
    for lane in scenario.ANSWERS:
        if len(theirs[lane]) != len(ours[lane]):
            found.add(f"requests of {lane}: number", lane, len(theirs[lane]), len(ours[lane]))
        for turn, (their, our) in enumerate(zip(theirs[lane], ours[lane], strict=False)):
            place = f"{lane} {turn + 1}"
            found.requests += 1
            _parameters(found, place, their, our)
            _tools(found, place, lane, their.get("tools", []), our.get("tools", []))
            if lane == "summary":
                _summary(found, place, their["messages"], our["messages"])
            else:
                _messages(found, place, lane, their["messages"], our["messages"])
    return found


def _parameters(found: Differences, place: str, theirs: dict, ours: dict) -> None:
    for name in sorted((theirs.keys() | ours.keys()) - {"messages", "tools"}):
        their, our = theirs.get(name, ABSENT), ours.get(name, ABSENT)
        if their != our:
            found.add(f"parameter {name}", place, their, our)


def _tools(found: Differences, place: str, lane: str, theirs: list[dict], ours: list[dict]) -> None:
    their_names, our_names = ([tool["function"]["name"] for tool in tools] for tools in (theirs, ours))
    for name in sorted(set(their_names) ^ set(our_names)):
        found.add(f"tool {name}: offered to {lane}", place, name in their_names, name in our_names)
    common = [name for name in our_names if name in their_names]
    if common != [name for name in their_names if name in our_names]:
        found.add(f"tools of {lane}: order", place, ", ".join(their_names), ", ".join(our_names))
    found.tools = max(found.tools, len(common))
    by_name = {tool["function"]["name"]: tool for tool in theirs}
    for tool in ours:
        name = tool["function"]["name"]
        if name in by_name:
            _tool(found, place, name, by_name[name], tool)


def _tool(found: Differences, place: str, name: str, theirs: dict, ours: dict) -> None:
    their, our = theirs["function"], ours["function"]
    for key in sorted((their.keys() | our.keys()) - {"name", "parameters", "description"}):
        if their.get(key, ABSENT) != our.get(key, ABSENT):
            found.add(f"tool {name}: {key}", place, their.get(key, ABSENT), our.get(key, ABSENT))
    for side, function in (("deepagents", their), ("adjutant", our)):
        if not function.get("description"):
            found.add(f"tool {name}: no description from {side}", place, "", "")
    their_leaves, our_leaves = (_leaves(function["parameters"]) for function in (their, our))
    for path in sorted(their_leaves.keys() | our_leaves.keys()):
        their_leaf, our_leaf = their_leaves.get(path, ABSENT), our_leaves.get(path, ABSENT)
        if their_leaf != our_leaf:
            found.add(f"tool {name}: {path}", place, their_leaf, our_leaf)
    their_described, our_described = (_described(function["parameters"]) for function in (their, our))
    for argument in sorted(their_described ^ our_described):
        found.add(f"tool {name}: {argument} described", place, argument in their_described, argument in our_described)


def _one_form(schema: dict) -> dict:
    """Returns a schema in which a choice of plain types is a list of types, which means the same."""
    choices = schema.get("anyOf", [])
    if not choices or not all(isinstance(one.get("type"), str) for one in choices):
        return schema
    merged = {key: value for key, value in schema.items() if key != "anyOf"}
    for one in choices:
        merged |= {key: value for key, value in one.items() if key != "type"}
    return merged | {"type": [one["type"] for one in choices]}


def _leaves(schema: object, path: str = "") -> dict[str, object]:
    """Returns the parts of a schema that are no words, by their paths."""
    if isinstance(schema, dict):
        schema = _one_form(schema)
        leaves: dict[str, object] = {}
        for key, value in schema.items():
            is_words = key in ("description", "title") and not path.endswith("properties")
            if not is_words:
                leaves |= _leaves(value, f"{path}.{key}" if path else key)
        return leaves or {path: {}}
    if isinstance(schema, list) and path.endswith("required"):
        return {path: sorted(schema)}
    if isinstance(schema, list) and any(isinstance(one, dict) for one in schema):
        leaves = {}
        for at, one in enumerate(schema):
            leaves |= _leaves(one, f"{path}[{at}]")
        return leaves
    return {path: schema}


def _described(schema: dict) -> set[str]:
    """Returns the arguments that have a description."""
    return {name for name, argument in schema.get("properties", {}).items() if "description" in argument}


def _summary(found: Differences, place: str, theirs: list[dict], ours: list[dict]) -> None:
    """Compares two requests for a summary: both have to contain the same part of the conversation."""
    shapes = [" ".join(message["role"] for message in messages) for messages in (theirs, ours)]
    if shapes[0] != shapes[1]:
        found.add("summary: messages", place, *shapes)
    their_text, our_text = ("\n".join(map(text_of, messages)) for messages in (theirs, ours))
    for text in scenario.traces():
        if (text in their_text) != (text in our_text):
            found.add(f"summary: has {text!r}", place, text in their_text, text in our_text)


def _messages(found: Differences, place: str, lane: str, theirs: list[dict], ours: list[dict]) -> None:
    their_shape, our_shape = ([_shape(message) for message in messages] for messages in (theirs, ours))
    if their_shape != our_shape:
        missing = [shape for shape in their_shape if shape not in our_shape]
        further = [shape for shape in our_shape if shape not in their_shape]
        if missing or further:
            for shape in missing + further:
                found.add(f"message {shape}", place, shape in their_shape, shape in our_shape)
        else:
            moved = next(pair for pair in zip_longest(their_shape, our_shape) if pair[0] != pair[1])
            found.add(f"order of messages at {moved[0]}", place, *moved)
    by_shape: dict[str, list[dict]] = {}
    for message in theirs:
        by_shape.setdefault(_shape(message), []).append(message)
    for message in ours:
        partners = by_shape.get(_shape(message))
        if partners:
            _message(found, place, lane, partners.pop(0), message)


def _shape(message: dict) -> str:
    """Returns what a message is, by which both sides' messages are paired."""
    if message["role"] == "tool":
        return f"result {message['tool_call_id']}"
    if message["role"] == "assistant":
        ids = sorted(call["id"] for call in message.get("tool_calls") or [])
        return f"assistant {','.join(ids)}" if ids else f"assistant {text_of(message)!r}"
    if message["role"] == "user" and "<summary>" in text_of(message):
        return "user with the summary"
    return f"user {text_of(message)!r}" if message["role"] == "user" else message["role"]


def _message(found: Differences, place: str, lane: str, theirs: dict, ours: dict) -> None:
    role = ours["role"]
    for key in sorted((theirs.keys() | ours.keys()) - {"content", "tool_calls", "role"}):
        if theirs.get(key, ABSENT) != ours.get(key, ABSENT):
            found.add(f"{role} message: {key}", place, theirs.get(key, ABSENT), ours.get(key, ABSENT))
    forms = [_form(message) for message in (theirs, ours)]
    if forms[0] != forms[1]:
        found.add(f"{role} message of {lane}: form", place, *forms)
    if role == "assistant":
        _calls(found, place, theirs.get("tool_calls") or [], ours.get("tool_calls") or [])
    if role == "system":
        _system(found, place, lane, text_of(theirs), text_of(ours))
    elif role == "tool":
        _result(found, place, ours["tool_call_id"], text_of(theirs), text_of(ours))
    elif "<summary>" in text_of(ours):
        _worded(found, place, "message with the summary", text_of(theirs), text_of(ours))
    elif text_of(theirs) != text_of(ours):
        found.add(f"text of {_shape(ours)}", place, "", "")


def _form(message: dict) -> str:
    content = message.get("content", ABSENT)
    if content is ABSENT:
        return "absent"
    if isinstance(content, list):
        kinds = sorted({block["type"] for block in content})
        return f"{len(content)} block{'s' if len(content) > 1 else ''} ({', '.join(kinds)})"
    return "null" if content is None else "empty text" if content == "" else "text"


def _calls(found: Differences, place: str, theirs: list[dict], ours: list[dict]) -> None:
    their_ids, our_ids = ([call["id"] for call in calls] for calls in (theirs, ours))
    if their_ids != our_ids:
        found.add(f"order of calls {','.join(sorted(our_ids))}", place, ", ".join(their_ids), ", ".join(our_ids))
    by_id = {call["id"]: call for call in theirs}
    for call in ours:
        their = by_id[call["id"]]
        if their["function"]["name"] != call["function"]["name"]:
            found.add(f"call {call['id']}: name", place, their["function"]["name"], call["function"]["name"])
        arguments = [_parsed(one["function"]["arguments"]) for one in (their, call)]
        if arguments[0] != arguments[1]:
            found.add(f"call {call['id']}: arguments", place, *arguments)
        keys = [sorted(one.keys()) for one in (their, call)]
        if keys[0] != keys[1]:
            found.add("call: keys", place, *keys)


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _system(found: Differences, place: str, lane: str, theirs: str, ours: str) -> None:
    """Compares instructions: what was configured has to stand in both, once and in the same order."""
    for text in scenario.expected(lane):
        if theirs.count(text) != ours.count(text):
            found.add(f"instructions of {lane}: {text!r}", place, theirs.count(text), ours.count(text))
    orders = [sorted(scenario.expected(lane), key=side.find) for side in (theirs, ours)]
    if orders[0] != orders[1]:
        found.add(f"instructions of {lane}: order", place, *orders)
    rests = [_without(side, scenario.expected(lane)) for side in (theirs, ours)]
    if bool(rests[0].strip()) != bool(rests[1].strip()):
        found.add(f"instructions of {lane}: texts beside the configured ones", place, bool(rests[0]), bool(rests[1]))
    elif rests[0] != rests[1]:
        found.add(f"instructions of {lane}: wording", place, "", "")


def _without(text: str, parts: list[str]) -> str:
    for part in parts:
        text = text.replace(part, "")
    return text


def _result(found: Differences, place: str, id: str, theirs: str, ours: str) -> None:
    found.results.add(id)
    if _neutral(theirs) == _neutral(ours):
        found.equal_results.add(id)
    else:
        _worded(found, place, f"result {id}", theirs, ours)


def _worded(found: Differences, place: str, id: str, theirs: str, ours: str) -> None:
    """Compares texts in words of their own by what they tell."""
    found.add(f"{id}: wording", place, "", ours)
    for kind, pattern in FACTS.items():
        facts = [set(re.findall(pattern, _neutral(text))) for text in (theirs, ours)]
        if kind == "error":
            facts = [{"error"} if one else set() for one in facts]
        if facts[0] != facts[1]:
            only = [", ".join(sorted(facts[side] - facts[1 - side])) or "nothing" for side in (0, 1)]
            found.add(f"{id}: {kind}", place, *only)


FACTS = {
    "paths": r"(?<![\w/])/[\w.-]+(?:/[\w.-]*\w)*",
    "numbers": r"(?<![\w./])\d+(?![\w/])",
    "error": r"(?i)\berror\b|\bfailed\b|\bnot found\b|\bcannot\b|\bnot allowed\b|\bnot a\b",
}
"""What a text tells, whatever its words are."""


def _neutral(text: str) -> str:
    """Returns the text without what is different in each run."""
    text = re.sub(r"session_[0-9a-f]{16,}", "session_ID", text)
    return re.sub(r"(/large_tool_results/\w+)-[0-9a-f]{16}\b", r"\1-TASK", text)
