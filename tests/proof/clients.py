"""The clients of the system, the service behind its tools, and what both have to find at the end."""

import asyncio
import collections
import contextlib
import itertools
import json
import time
import uuid

import httpx

PATIENCE = httpx.Timeout(20.0, connect=3.0)
# A stream sends a comment every 2 s ([server] keep_alive_s).
SILENCE_S = 12.0
ANSWER = "The entries are written, and this is a sentence that takes a while to say."


class Service:
    """A service behind tools, over HTTP."""

    async def open(self, host):
        self.host = host
        self.server = await asyncio.start_server(self._serve, host.address, 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.address = f"{host.address}:{self.port}"
        return self

    async def _serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                tool = first.split(" ")[1].rsplit("/", 1)[-1]
                answer = json.dumps(self.do(tool, json.loads(body), headers["adjutant-task-id"])).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        writer.close()

    def do(self, tool, request, task):
        """Does what a call asks, whose task has an id. Returns its result."""
        raise NotImplementedError


class ToolService(Service):
    """The service behind the tools of the clients. It counts what it is asked to do."""

    def __init__(self):
        # For each entry, the ids of the calls that wanted it written. `record` writes once for each id.
        self.records = collections.defaultdict(set)
        # For each entry, how often money was taken.
        self.charges = collections.Counter()
        # For each entry, how often a human, asked about a call with an unknown outcome, had it made again.
        self.approvals = collections.Counter()

    def do(self, tool, request, task):
        entry = request["args"]["entry"]
        if tool == "record":
            self.records[entry].add(task)
        else:
            self.charges[entry] += 1
        return f"{tool} {entry}"


class Heard:
    """What a reader of a run has got."""

    def __init__(self):
        self.steps = []
        self.texts = collections.defaultdict(str)
        self.ids = []
        self.errors = []
        self.events = collections.Counter()

    def take(self, event, data, point):
        if point:
            self.ids.append(point)
        self.events[point, event, data] += 1
        name = event.split("|")[0]
        if name == "error":
            self.errors.append(data)
        if name == "updates":
            self.steps.append((event, json.loads(data)))
        elif name == "messages":
            message, _ = json.loads(data)
            if message["type"] == "AIMessageChunk" and isinstance(message["content"], str):
                self.texts[message["id"]] += message["content"]

    def spoken(self):
        return {message: text for message, text in self.texts.items() if text}


class Clients:
    """The clients, which use the system until they are told to stop."""

    def __init__(self, base, tools):
        self.http = httpx.AsyncClient(base_url=base, timeout=PATIENCE, limits=httpx.Limits(max_connections=400))
        self.tools = tools
        self.is_over = False
        self.threads = {}
        self.runs = {}
        self.violations = []
        self.counts = collections.Counter()

    def violation(self, text):
        self.violations.append(text)
        print(f"VIOLATION: {text}", flush=True)

    async def ask(self, method, path, deadline=None, **request):
        """Sends a request until it is answered. Repeated writes have the same idempotency key."""
        key = {"Idempotency-Key": str(uuid.uuid4())} if method == "POST" else {}
        for attempt in itertools.count():
            try:
                answer = await self.http.request(method, path, headers=key, **request)
                if answer.status_code < 400:
                    return answer.json()
                if answer.status_code < 500 and answer.status_code not in (408, 409, 425, 429):
                    self.violation(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
                    return None
                self.counts[f"answers {answer.status_code}"] += 1
            except (httpx.HTTPError, OSError, ValueError):
                self.counts["requests without an answer"] += 1
            if deadline and time.monotonic() > deadline:
                raise TimeoutError(f"{method} {path} is not answered")
            await asyncio.sleep(min(0.1 * 2**attempt, 2.0))

    async def use(self, number):
        """Starts one run after the other on a thread of its own."""
        thread = (await self.ask("POST", "/threads", json={}))["thread_id"]
        self.threads[thread] = []
        for turn in itertools.count():
            if self.is_over:
                return
            entry = f"c{number}-t{turn}"
            self.threads[thread].append(entry)
            await self.take_turn(thread, entry)

    async def take_turn(self, thread, entry):
        """Starts a run, follows it to its end, and answers what it asks."""
        inner = {"script": [call("record", entry=f"{entry}-sub"), {"text": "sub done"}]}
        steps = [
            {"tool_calls": [named("record", entry=entry), named("charge", entry=entry)]},
            call("task", description=json.dumps(inner), subagent_type="assistant"),
            {"text": ANSWER, "delay_ms": 15},
        ]
        text = f"{entry}: " + json.dumps({"script": steps})
        body = {"input": {"messages": [{"role": "user", "content": text}]}}
        while True:
            body |= {
                "assistant_id": "clerk",
                "stream_mode": ["updates", "messages-tuple"],
                "stream_subgraphs": True,
                "stream_resumable": True,
                "multitask_strategy": "enqueue",
            }
            started = await self.ask("POST", f"/threads/{thread}/runs", json=body)
            if started is None:
                return
            run = started["run_id"]
            self.runs[run] = (thread, entry)
            self.counts["runs"] += 1
            heard = await self.follow(thread, run)
            state = await self.ask("GET", f"/threads/{thread}/runs/{run}")
            await self.compare(thread, run, heard)
            if state["status"] == "success":
                questions = await self.open_questions(thread)
                if not questions:
                    return
            elif state["status"] == "interrupted":
                questions = await self.open_questions(thread)
            else:
                self.violation(f"run {run} of {entry} has the status {state['status']}")
                return
            if not questions:
                self.violation(f"run {run} of {entry} is interrupted and asks nothing")
                return
            self.counts["questions about calls"] += len(questions)
            answers = {name: {"decisions": [self.decide(action) for action in actions]} for name, actions in questions.items()}
            body = {"command": {"resume": answers}}

    async def open_questions(self, thread):
        """Returns the requests of each open interrupt, by its id."""
        found = await self.ask("GET", f"/threads/{thread}")
        interrupts = itertools.chain.from_iterable((found.get("interrupts") or {}).values())
        return {interrupt["id"]: interrupt["value"]["action_requests"] for interrupt in interrupts}

    def decide(self, action):
        """Decides about a call whose outcome the server does not know: as a human who looks at the account."""
        entry = action["args"]["entry"]
        if action["name"] == "charge" and self.tools.charges[entry]:
            return {"type": "respond", "message": f"charge {entry}"}
        if action["name"] == "charge":
            self.tools.approvals[entry] += 1
        return {"type": "approve"}

    async def follow(self, thread, run, after="-1"):
        """Reads the stream of a run to its end, over any number of connections."""
        heard = Heard()
        for attempt in itertools.count():
            headers = {"Last-Event-ID": heard.ids[-1] if heard.ids else after}
            path = f"/threads/{thread}/runs/{run}/stream"
            timeout = httpx.Timeout(SILENCE_S, connect=3.0)
            try:
                async with self.http.stream("GET", path, headers=headers, timeout=timeout) as answer:
                    if answer.status_code == 200:
                        await read_events(answer, heard)
                        return heard
                    self.counts[f"answers {answer.status_code}"] += 1
            except (httpx.HTTPError, OSError):
                self.counts["streams broken"] += 1
            await asyncio.sleep(min(0.05 * 2**attempt, 1.0))

    async def compare(self, thread, run, heard):
        """Compares what a reader got over its connections with the whole stream of the run in one."""
        if heard.errors:
            self.violation(f"the stream of run {run} has the errors {heard.errors}")
        whole = await self.follow(thread, run)
        repeated = [event for event, count in heard.events.items() if count > 1]
        if repeated:
            self.violation(f"the reader of run {run} got {len(repeated)} events more than once: {repeated[:1]}")
        if heard.steps != whole.steps:
            self.violation(f"the reader of run {run} got {len(heard.steps)} steps that differ from the {len(whole.steps)} stored")
        stored = whole.spoken()
        spoken = heard.spoken()
        if any(spoken.get(message) != text for message, text in stored.items()):
            self.violation(f"the reader of run {run} got other texts: {spoken} instead of {stored}")
        # Pieces of an answer that were streamed cannot be taken back when the server dies before it has stored the answer.
        self.counts["answers that died with a server"] += len(spoken.keys() - stored.keys())

    async def check(self, deadline):
        """Checks at the end that each turn is there once, and each effect."""
        for thread, entries in self.threads.items():
            found = await self.ask("GET", f"/threads/{thread}", deadline)
            if found["status"] != "idle":
                self.violation(f"thread {thread} has the status {found['status']}")
            state = await self.ask("GET", f"/threads/{thread}/state", deadline)
            self.check_messages(thread, entries, state["values"].get("messages", []))
        for entry in itertools.chain.from_iterable(self.threads.values()):
            for written in (entry, f"{entry}-sub"):
                if len(self.tools.records[written]) != 1:
                    self.violation(f"{written} was recorded under {len(self.tools.records[written])} ids")
            charges = self.tools.charges[entry]
            approvals = self.tools.approvals[entry]
            # The call of a server that was suspended may arrive after the human has had it made again.
            if not 1 <= charges <= 1 + approvals:
                self.violation(f"{entry} was charged {charges} times, and {approvals} times by a human")

    def check_messages(self, thread, entries, messages):
        kinds = [message["type"] for message in messages]
        expected = ["human", "ai", "tool", "tool", "ai", "tool", "ai"] * len(entries)
        if kinds != expected:
            self.violation(f"thread {thread} has the messages {kinds}")
            return
        asked = [message["content"].split(":")[0] for message in messages if message["type"] == "human"]
        if asked != entries:
            self.violation(f"thread {thread} has the turns {asked} instead of {entries}")
        answers = [message["content"] for message in messages[6::7]]
        if answers != [ANSWER] * len(entries):
            self.violation(f"thread {thread} has the answers {answers}")


def named(tool, **args):
    return {"name": tool, "args": args}


def call(tool, **args):
    return {"tool_calls": [named(tool, **args)]}


async def read_events(answer, heard):
    """Reads server-sent events to the end of the response."""
    event, data, point = None, [], None
    async for line in answer.aiter_lines():
        if line.startswith(":"):
            continue
        if not line:
            if event:
                heard.take(event, "\n".join(data), point)
            event, data, point = None, [], None
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            event = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            point = value
