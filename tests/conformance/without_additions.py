#!/usr/bin/env python3
"""Takes what adjutant adds to the thread stream out of recordings, so that the rest can be compared.

Usage: without_additions.py RECORDED OUT   (folders; RECORDED as record_v2.py writes it)

The additions are those of the table in deviations.md; everything else is left as it came.
"""

import json
import pathlib
import sys

# Events that the reference does not send, or sends only when asked in another way.
CHANNELS = {"checkpoints", "tasks", "updates", "custom"}
IDENTITY = ("agent_name", "agent_path", "tool_call_id", "usage")


def plain(event):
    """The event without additions; none when it is one."""
    if event.get("type") != "event":
        return event
    if event["method"] in CHANNELS:
        return None
    params = {name: value for name, value in event["params"].items() if name not in IDENTITY}
    data = params.get("data")
    if isinstance(data, dict):
        data = dict(data)
        if event["method"] == "lifecycle":
            data.pop("usage", None)
            data.pop("tree_usage", None)
        if event["method"] == "messages" and data.get("event") == "content-block-delta" and "delta" in data:
            data.pop("content", None)
        if event["method"] == "input.requested":
            data.pop("value", None)
            for request in (data.get("payload") or {}).get("action_requests", []):
                request.pop("tool_call_id", None)
        params["data"] = data
    return {**event, "params": params}


def walk(value):
    """Every list of events, wherever a step has one, without additions."""
    if isinstance(value, list):
        told = (walk(plain(item) if isinstance(item, dict) else item) for item in value)
        return [item for item in told if item is not None]
    if isinstance(value, dict):
        return {name: walk(item) for name, item in value.items()}
    return value


recorded, out = map(pathlib.Path, sys.argv[1:3])
out.mkdir(parents=True, exist_ok=True)
for place in sorted(recorded.glob("*.json")):
    (out / place.name).write_text(json.dumps(walk(json.loads(place.read_text())), indent=1))
