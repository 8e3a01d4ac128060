"""The load of agentbench beside the clients of a proof, and what must be true of its threads at the end.

agentbench sends no idempotency keys, follows nothing again and gives up after an error, as many clients do. So its errors are counted
and violate nothing. The server must nevertheless end each of its runs once, and do each thing once that its agents do.
"""

import asyncio
import collections
import contextlib
import itertools
import json
import re
import time

import httpx

import parts
from clients import Service
from links import Link

# Each scenario in its turn: its name, and the agent that it asks.
TURNS = (
    ("--scenario wait", "plain"),
    ("--scenario stream --chunks 100", "plain"),
    ("--scenario loop --n 4", "plain"),
    ("--scenario delegate --n 2", "plain"),
    ("--scenario resume", "agent"),
    ("--scenario wait --via stream", "plain"),
    ("--scenario loop --n 4 --via stream", "plain"),
    ("--scenario delegate --n 1 --via stream", "plain"),
    ("--scenario resume --via stream", "agent"),
)
# A turn ends after so many seconds, or so many runs: they are read at the end.
TURN_S = 5
TURN_RUNS = 60
# As long as a client waits for a piece of an answer.
PATIENCE_S = 20
# After a turn without an answer, such as while HAProxy is away.
PAUSE_S = 1
ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ERROR_CHARS = 200
ENDED = {"success", "interrupted", "error", "timeout"}
PAGE = 200
READERS = 32
# The runs of threads are read for so long, in an order by chance. Some thousand threads are read in that time.
READING_S = 600
# A stream of a thread does not end. It has nothing more to say when it is silent for so long after the last end of a run.
SILENCE_S = 0.2


class LoadTools(Service):
    """The service behind the tools of the load. Its results are those that agentbench expects."""

    def __init__(self):
        # For each thread and query, the ids of the calls that wanted it looked up.
        self.lookups = collections.defaultdict(set)
        # For each thread, how many emails were sent.
        self.emails = collections.Counter()

    def do(self, tool, request, task):
        args = request["args"]
        if tool == "send_email":
            self.emails[request["thread_id"]] += 1
            return f"sent to {args['to']}: {args['body']}"
        self.lookups[request["thread_id"], args["query"]].add(task)
        return f"lookup({args['query']})"

    def violations(self, sent):
        """Returns what was done twice, or not at all. `sent` has the threads whose messages say that an email was sent."""
        for (thread, query), tasks in self.lookups.items():
            if len(tasks) > 1:
                yield f"thread {thread} of the load looked {query} up under {len(tasks)} ids"
        for thread in sent | self.emails.keys():
            # Nobody has a call with an unknown outcome made again. So an email may be sent and never confirmed.
            if self.emails[thread] > 1 or thread in sent and not self.emails[thread]:
                yield f"thread {thread} of the load sent {self.emails[thread]} emails"


class Load:
    """The load client, which starts scenario after scenario, and its fake model."""

    def __init__(self, folder, program, count, host):
        self.program = program
        self.count = count
        self.tools = LoadTools()
        self.counts = collections.Counter()
        # What went wrong for agentbench, with how often it said so.
        self.errors = collections.Counter()
        self.is_over = False
        port = parts.free_port()
        command = [program, "llm", "--port", port]
        self.model = parts.Part("model", command, port, folder / "model.log", host=parts.HERE)
        # The model listens on the machine alone. The servers may have namespaces of their own.
        self.host = host
        self.link = Link("model", parts.free_port(), port, host)

    async def open(self):
        await self.tools.open(self.host)
        await self.link.open()
        return self

    async def start(self):
        await self.model.start()
        await self.model.is_ready()

    async def close(self):
        await self.link.close()
        self.model.kill()

    async def use(self, base):
        """Runs scenarios against the system until it is told to stop."""
        for arguments, agent in itertools.cycle(TURNS):
            if self.is_over:
                return
            await self.take_turn(base, arguments, agent)

    async def take_turn(self, base, arguments, agent):
        """Runs one scenario, and counts what it says."""
        command = [self.program, "load", "--base", base, *arguments.split(), "--assistant", agent, "--no-warmup"]
        command += ["--clients", self.count, "--secs", TURN_S, "--max", TURN_RUNS, "--timeout", PATIENCE_S]
        process = await asyncio.create_subprocess_exec(
            *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        self.counts["turns of the load"] += 1
        try:
            result = json.loads(said)
        except ValueError:
            self.errors[f"{arguments}: it ended with {process.returncode}"] += 1
            result = {"ok": 0, "errors": 1}
        self.counts["load runs answered"] += result["ok"]
        self.counts["load errors"] += result["errors"]
        for sample in result.get("error_samples", []):
            text = " ".join(ID.sub("ID", sample).split())
            self.errors[f"{arguments}: {text[:ERROR_CHARS]}"] += 1
        if not result["ok"]:
            await asyncio.sleep(PAUSE_S)

    async def check(self, clients, chance):
        """Checks that each run of the load has ended once, and that each effect is there once."""
        begun = time.monotonic()
        own = set(clients.threads)
        busy = await self.busy(clients, begun + PATIENCE_S)
        for thread in busy - own:
            clients.violation(f"thread {thread} of the load is busy after the end")
        others = []
        async for threads in self.pages(clients, begun + READING_S):
            others += [thread for thread in threads if thread["thread_id"] not in own]
        chance.shuffle(others)
        permits = asyncio.Semaphore(READERS)
        await asyncio.gather(*(self.check_thread(permits, clients, thread, begun + READING_S) for thread in others))
        for violation in self.tools.violations({thread["thread_id"] for thread in others if is_sent(messages_of(thread))}):
            clients.violation(violation)

    async def busy(self, clients, deadline):
        """Waits for the end of all runs. Returns the threads on which there are still some."""
        body = {"status": "busy", "limit": PAGE, "select": ["thread_id"]}
        while True:
            found = await clients.ask("POST", "/threads/search", deadline, json=body)
            if not found or time.monotonic() > deadline:
                return {thread["thread_id"] for thread in found}
            await asyncio.sleep(1.0)

    async def pages(self, clients, deadline):
        """Returns all threads, page after page."""
        body = {"limit": PAGE, "offset": 0, "sort_by": "thread_id", "sort_order": "asc"}
        body["select"] = ["thread_id", "status", "values"]
        while threads := await clients.ask("POST", "/threads/search", deadline, json=body):
            yield threads
            # A page that would be too large has fewer threads than it was asked for.
            body["offset"] += len(threads)

    async def check_thread(self, permits, clients, thread, deadline):
        name = thread["thread_id"]
        # A thread without runs, such as one whose client was not answered, has no messages.
        messages = messages_of(thread)
        fault = fault_of(messages, thread["status"] == "idle" and bool(messages))
        if fault:
            clients.violation(f"thread {name} of the load is {thread['status']}: {fault}")
        async with permits:
            if time.monotonic() > deadline:
                self.counts["load threads whose runs were not read"] += 1
                return
            runs = await clients.ask("GET", f"/threads/{name}/runs?limit={PAGE}", deadline)
            ends = await self.ends(clients, name, len(runs), deadline)
        statuses = {run["run_id"]: run["status"] for run in runs}
        self.counts["load threads read"] += 1
        self.counts.update(f"load runs with the status {status}" for status in statuses.values())
        if not ENDED.issuperset(statuses.values()) or sorted(ends) != sorted(statuses):
            clients.violation(f"thread {name} of the load has the runs {statuses} and the ends {ends}")
        if "success" in statuses.values() and not messages:
            clients.violation(f"thread {name} of the load has the runs {statuses} and no messages")

    async def ends(self, clients, thread, expected, deadline):
        """Returns the runs that have ended on a thread, each as often as its stream says so."""
        while True:
            ends, is_whole = [], False
            with contextlib.suppress(httpx.HTTPError, OSError):
                ends, is_whole = await read_ends(clients, thread, expected)
            if is_whole or time.monotonic() > deadline:
                return ends
            self.counts["streams of the load broken"] += 1
            await asyncio.sleep(0.5)


async def read_ends(clients, thread, expected):
    """Reads the stream of a thread. Returns the runs that have ended, and whether the stream has said all that it has to say."""
    path = f"/threads/{thread}/stream?stream_modes=lifecycle"
    ends = []
    async with clients.http.stream("GET", path, headers={"Last-Event-ID": "-1"}) as answer:
        if answer.status_code != 200:
            return ends, False
        lines = aiter(answer.aiter_lines())
        while True:
            try:
                async with asyncio.timeout(SILENCE_S if len(ends) >= expected else PATIENCE_S):
                    line = await anext(lines)
            except TimeoutError:
                return ends, True
            except StopAsyncIteration:
                return ends, False
            if line.startswith("data:"):
                data = json.loads(line.removeprefix("data:"))
                if data.get("status") == "run_done":
                    ends.append(data["run_id"])


def messages_of(thread):
    return (thread["values"] or {}).get("messages", [])


def is_sent(messages):
    """Returns whether messages say that an email was sent."""
    return any(message["type"] == "tool" and message["content"].startswith("sent to ") for message in messages)


def fault_of(messages, is_whole):
    """Returns what is wrong with the messages of a thread, whose first one has the script of all others; none if nothing is."""
    if not messages:
        return None
    script = json.loads(messages[0]["content"])["script"]
    expected = [("human", None)]
    for step in script:
        expected.append(("ai", step.get("text")))
        expected += [("tool", None)] * len(step.get("tool_calls", []))
    wanted = [kind for kind, _ in expected]
    kinds = [message["type"] for message in messages]
    if kinds != (wanted if is_whole else wanted[: len(kinds)]):
        return f"it has the messages {kinds} instead of {wanted}"
    for message, (_, text) in zip(messages, expected):
        if text and message["content"] != text:
            return f"it has the answer {message['content']!r} instead of {text!r}"
    stamps = script[-1].get("stamp")
    if is_whole and stamps and len(messages[-1]["content"].split()) != stamps:
        return f"its answer has {len(messages[-1]['content'].split())} pieces instead of {stamps}"
    return None
