#!/usr/bin/env python3
"""The server under many times the load that it can serve.

Usage: overload.py BASE_URL [options]            an otherwise idle server with an agent `agent` whose model is `scripted:lab`
       overload.py --server PROGRAM [options]    starts a server of its own, with SQLite or with --database URL

Measures how many runs a second the server completes. Then offers many times as many (`--times`), at fixed times and whether or not
there are answers: a request that is due is sent on an idle connection, or else on a new one. Several processes do that. Meanwhile
streams are under way, and `/ok` is asked at fixed times, too. At the end each accepted run must have succeeded.

Clients and server share the processors, so the load can be reached only if it costs less than the server's work. With `--server` the
capacity is therefore bounded by settings: `--slots` runs at the same time (`max_concurrent_runs`), each of which waits `--model-ms` for
its model. Of the slots, `--streams` are taken by the streams. `--slots 0` leaves the capacity to the processors.

Exit code: 0 if all promises were kept, 1 if one was broken, 2 if less was offered than was asked for, which says nothing about the server.
"""

import argparse
import asyncio
import collections
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

PAUSE_MS = 20
"""The time between two pieces of a stream."""
LEAD_S = 1
"""The time for which streams are under way before the load begins, and after it has ended."""
ANSWER_S = 45
"""The time for an answer, longer than `[server] request_s`."""
OK_PER_SECOND = 50
CREATORS = 16
"""The connections that create threads and read runs."""

CONFIGURATION = """\
[server]
listen = "127.0.0.1:{port}"

[storage]
url = "{database}"

[log]
filter = "warn"

[runtime]
{runtime}

[providers.scripted]
kind = "scripted"

[agents.agent]
model = "scripted:lab"
"""


def percentile(values, share):
    """Returns the value below which this share of the sorted values is."""
    return values[min(len(values) - 1, math.ceil(share * len(values)) - 1)] if values else math.nan


class Connection:
    """A connection with one request after the other, whose sender waits for the answer."""

    def __init__(self, base):
        self.base = base
        self.reader = self.writer = None

    async def request(self, method, path, body=None, piece=None):
        """Returns the status and the body; with `piece`, calls it for each piece of the body as it arrives."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.base.hostname, self.base.port)
        self.writer.write(message(self.base, method, path, body))
        status = int((await self.reader.readline()).split()[1])
        headers = {}
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, value = line.decode().split(":", 1)
            headers[name.lower()] = value.strip()
        if "content-length" in headers:
            text = await self.reader.readexactly(int(headers["content-length"]))
        else:
            text = b""
            while size := int((await self.reader.readline()).strip() or b"0", 16):
                part = await self.reader.readexactly(size + 2)
                if piece:
                    piece()
                else:
                    text += part[:-2]
            await self.reader.readline()
        if headers.get("connection") == "close":
            self.writer.close()
            self.writer = None
        return status, text


def message(base, method, path, body=None):
    """Returns a request as it is sent."""
    data = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {base.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Exchange(asyncio.Protocol):
    """A connection of an open loop, with one request after the other. The answers must have a `content-length`."""

    def __init__(self, pool):
        self.pool = pool
        self.transport = None
        self.request = None
        self.received = b""

    def connection_made(self, transport):
        self.transport = transport

    def send(self, request):
        self.request = request
        self.transport.write(request.text)
        request.is_sent()

    def data_received(self, data):
        self.received += data
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.received[:end].lower()
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        if len(self.received) < end + 4 + length:
            return
        request, self.request = self.request, None
        body = self.received[end + 4 : end + 4 + length]
        self.received = b""
        if b"\r\nconnection: close" in head:
            self.transport.close()
        else:
            self.pool.idle.append(self)
        request.is_answered(int(head.split(b" ", 2)[1]), b"\r\nretry-after:" in head, body)

    def connection_lost(self, error):
        self.pool.open -= 1
        if self in self.pool.idle:
            self.pool.idle.remove(self)
        if self.request:
            self.request.is_answered(None, False, b"")


class Pool:
    """The connections of an open loop. It has as many as requests are under way."""

    def __init__(self, base, most):
        self.base = base
        self.most = most
        self.open = self.opened = 0
        self.idle = []
        self.opening = set()

    def send(self, request):
        """Sends a request now. Returns false if all connections are in use and no more are allowed."""
        if self.idle:
            self.idle.pop().send(request)
            return True
        if self.open >= self.most:
            return False
        self.open += 1
        self.opened += 1
        opening = asyncio.ensure_future(self.connect(request))
        self.opening.add(opening)
        opening.add_done_callback(self.opening.discard)
        return True

    async def connect(self, request):
        try:
            loop = asyncio.get_running_loop()
            _, made = await loop.create_connection(lambda: Exchange(self), self.base.hostname, self.base.port)
        except OSError:
            self.open -= 1
            request.is_answered(None, False, b"")
            return
        made.send(request)


class Answers:
    """The answers to the requests of an open loop. `accepted` has the number of each request whose status is 200, and the body."""

    def __init__(self):
        self.statuses = collections.Counter()
        self.accepted = []
        self.without_retry_after = 0
        self.latencies = []
        self.unsent = self.waiting = 0
        self.lateness = []
        self.last_sent = 0.0


class Request:
    """A request of an open loop, and what becomes of it."""

    def __init__(self, answers, number, due, text):
        self.answers = answers
        self.number = number
        self.due = due
        self.text = text

    def is_sent(self):
        now = time.monotonic()
        self.answers.lateness.append(now - self.due)
        self.answers.last_sent = now

    def is_answered(self, status, has_retry_after, body):
        """Takes the answer; without a status the connection was refused or broke."""
        answers = self.answers
        answers.waiting -= 1
        answers.statuses[status] += 1
        answers.latencies.append(time.monotonic() - self.due)
        if status == 200:
            answers.accepted.append((self.number, body))
        elif status in (429, 503) and not has_retry_after:
            answers.without_retry_after += 1


async def open_loop(pool, rate, begin, end, texts):
    """Sends one of these requests after the other, again and again: at each of the times `begin`, `begin + 1 / rate`, … before `end`.
    Waits for the answers. Latencies count from the time at which a request was due.
    """
    answers = Answers()
    number = 0
    while (due := begin + number / rate) < end:
        wait = due - time.monotonic()
        # Answers are read in between.
        if wait > 0 or number % 32 == 0:
            await asyncio.sleep(max(wait, 0))
        answers.waiting += 1
        if not pool.send(Request(answers, number, due, texts[number % len(texts)])):
            answers.waiting -= 1
            answers.unsent += 1
        number += 1
    patience = time.monotonic() + ANSWER_S
    while answers.waiting and time.monotonic() < patience:
        await asyncio.sleep(0.05)
    return answers


def run_with(script, **more):
    return {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": json.dumps(script)}]}, **more}


def short_answer(given):
    """Returns the script of a run of the load."""
    return {"script": [{"text": "hi", "first_ms": given.model_ms}]}


async def in_parallel(base, function, items):
    """Calls a function for each item, with one of a few connections. Returns the results in order."""
    results = [None] * len(items)
    queue = collections.deque(enumerate(items))

    async def worker():
        connection = Connection(base)
        while queue:
            at, item = queue.popleft()
            results[at] = await function(connection, item)

    await asyncio.gather(*(worker() for _ in range(CREATORS)))
    return results


async def new_thread(connection, _number=0):
    status, text = await connection.request("POST", "/threads", {})
    assert status == 200, text
    return json.loads(text)["thread_id"]


async def stream(base, given, has_begun):
    """Returns the seconds from the first to the last piece of a stream."""
    connection = Connection(base)
    thread = await new_thread(connection)
    times = []

    def piece():
        times.append(time.monotonic())
        has_begun.set()

    pieces = int((given.seconds + 2 * LEAD_S) * 1000 / PAUSE_MS)
    script = {"script": [{"text": "word " * pieces}], "chunk": 5, "delay_ms": PAUSE_MS}
    body = run_with(script, stream_mode=["messages-tuple"])
    status, _ = await connection.request("POST", f"/threads/{thread}/runs/stream", body, piece)
    assert status == 200 and times, status
    return times[-1] - times[0]


async def begin_streams(base, given):
    """Starts the streams. Returns the task with their durations when each has begun."""
    begun = [asyncio.Event() for _ in range(given.streams)]
    streams = asyncio.gather(*(stream(base, given, has_begun) for has_begun in begun))
    beginnings = asyncio.gather(*(has_begun.wait() for has_begun in begun))
    await asyncio.wait([streams, beginnings], return_when=asyncio.FIRST_COMPLETED)
    beginnings.cancel()
    return streams


async def measure_capacity(base, given):
    """Returns the number of runs that the server completes in a second."""
    body = run_with(short_answer(given))
    done = []
    begin = time.monotonic() + 1
    end = begin + given.capacity_seconds

    async def client():
        connection = Connection(base)
        while time.monotonic() < end:
            status, text = await connection.request("POST", "/runs/wait", body)
            assert status == 200, text
            done.append(time.monotonic())

    await asyncio.gather(*(client() for _ in range(given.clients)))
    return sum(1 for at in done if begin <= at < end) / given.capacity_seconds


def generate(base, given, share, results):
    """A process of the load. It sends one of `--processes` shares of all requests."""
    os.nice(19)
    base = urllib.parse.urlsplit(base)
    threads, begin = share["threads"], share["begin"]
    body = run_with(short_answer(given), multitask_strategy="enqueue")
    texts = [message(base, "POST", f"/threads/{thread}/runs", body) for thread in threads]
    pool = Pool(base, given.connections // given.processes)
    answers = asyncio.run(open_loop(pool, share["rate"], begin, begin + given.seconds, texts))
    # The ids are enough for the process that collects the results.
    answers.accepted = [(threads[number % len(threads)], json.loads(text)["run_id"]) for number, text in answers.accepted]
    results.put((answers, pool.opened, answers.last_sent - begin))


class Load:
    """What all processes of the load have sent, and the answers."""

    def __init__(self, results, seconds):
        answers = [part for part, _, _ in results]
        self.opened = sum(opened for _, opened, _ in results)
        # A process that is late takes longer, and offers less.
        self.seconds = max(seconds, *(taken for _, _, taken in results))
        self.lateness = sorted(late for part in answers for late in part.lateness)
        self.sent = len(self.lateness)
        self.rate = self.sent / self.seconds
        self.unsent = sum(part.unsent for part in answers)
        self.unanswered = sum(part.waiting for part in answers)
        self.statuses = sum((part.statuses for part in answers), collections.Counter())
        self.without_retry_after = sum(part.without_retry_after for part in answers)
        self.accepted = [pair for part in answers for pair in part.accepted]
        self.latencies = sorted(latency for part in answers for latency in part.latencies)


async def overload(base, given, rate, threads):
    """Offers `rate` runs a second. Returns the load, and the answers of `/ok` meanwhile."""
    begin = time.monotonic() + LEAD_S
    results = multiprocessing.Queue()
    processes = []
    for number in range(given.processes):
        share = {
            "threads": threads[number :: given.processes],
            "rate": rate / given.processes,
            # The processes take turns.
            "begin": begin + number / rate,
        }
        process = multiprocessing.Process(target=generate, args=(base.geturl(), given, share, results))
        process.start()
        processes.append(process)
    ok = message(base, "GET", "/ok")
    asking = open_loop(Pool(base, 1000), OK_PER_SECOND, begin, begin + given.seconds, [ok])
    collecting = asyncio.get_running_loop().run_in_executor(None, lambda: [results.get() for _ in processes])
    oks, parts = await asyncio.gather(asking, collecting)
    for process in processes:
        process.join()
    return Load(parts, given.seconds), oks


async def statuses_on(connection, thread):
    """Returns the status of each run on a thread."""
    found = {}
    while True:
        path = f"/threads/{thread}/runs?limit=100&offset={len(found)}&select=run_id&select=status"
        status, text = await connection.request("GET", path)
        assert status == 200, text
        page = json.loads(text)
        found.update((run["run_id"], run["status"]) for run in page)
        if len(page) < 100:
            return found


async def outcomes(base, accepted, patience):
    """Waits until all accepted runs have ended. Returns how many have which status; those that are missing have none."""
    wanted = collections.defaultdict(set)
    for thread, run in accepted:
        wanted[thread].add(run)
    counts = collections.Counter()
    end = time.monotonic() + patience

    while wanted:
        is_over = time.monotonic() >= end
        threads = list(wanted)
        for thread, found in zip(threads, await in_parallel(base, statuses_on, threads)):
            for run in list(wanted[thread]):
                status = found.get(run)
                if is_over or status not in ("pending", "running"):
                    counts[status] += 1
                    wanted[thread].remove(run)
            if not wanted[thread]:
                del wanted[thread]
        if wanted:
            await asyncio.sleep(1)
    return counts


async def measure(base, given):
    """Measures, prints the figures, and returns the exit code."""
    alone = sorted(await (await begin_streams(base, given)))
    capacity = await measure_capacity(base, given)
    rate = given.times * capacity
    print(f"capacity: {capacity:.0f} runs/s; to be offered: {rate:.0f}/s for {given.seconds:g} s", flush=True)

    count = max(given.processes * CREATORS, math.ceil(rate * given.seconds / 50))
    threads = await in_parallel(base, new_thread, range(count))
    under_way = await begin_streams(base, given)
    load, oks = await overload(base, given, rate, threads)
    loaded = sorted(await under_way)
    promises = report_load(load, capacity) | report_streams(alone, loaded, given) | report_oks(oks, given)

    begun = time.monotonic()
    counts = await outcomes(base, load.accepted, 60 + 4 * len(load.accepted) / capacity)
    print(f"accepted runs: {dict(counts)}; the last ended {time.monotonic() - begun:.0f} s after the load")
    promises["every accepted run succeeds"] = set(counts) <= {"success"}

    broken = [text for text, is_kept in promises.items() if not is_kept]
    for text in broken:
        print(f"BROKEN: {text}")
    if broken:
        return 1
    if load.rate < 0.95 * rate:
        print(f"only {load.rate / capacity:.1f} times the capacity was offered: bound the capacity, or start more processes")
        return 2
    print("all promises were kept")
    return 0


def report_load(load, capacity):
    """Prints the figures. Returns the promises, and whether each was kept."""
    late = percentile(load.lateness, 0.99)
    print(
        f"offered: {load.sent} runs in {load.seconds:.1f} s, {load.rate:.0f}/s, {load.rate / capacity:.1f} times the capacity, over "
        f"{load.opened} connections; "
        f"99 % of them at most {late * 1000:.0f} ms after they were due; {load.unsent} not sent for want of a connection"
    )
    refused = {status: count for status, count in load.statuses.items() if status in (429, 503)}
    others = {status: count for status, count in load.statuses.items() if status not in (200, 429, 503)}
    p50, p99 = (percentile(load.latencies, share) * 1000 for share in (0.5, 0.99))
    print(
        f"answers: {load.statuses[200]} accepted, refused {refused}, {load.without_retry_after} of these without Retry-After, "
        f"others {others}, {load.unanswered} without an answer; p50 {p50:.0f} ms, p99 {p99:.0f} ms"
    )
    return {
        "every request is answered": not load.unanswered,
        "requests are accepted, or refused with 429 or 503": not others,
        "every refusal has Retry-After": not load.without_retry_after,
    }


def report_streams(alone, loaded, given):
    middle = statistics.median(loaded) / statistics.median(alone)
    print(
        f"streams: {statistics.median(alone):.2f} s alone, {statistics.median(loaded):.2f} s under load: {middle:.2f}x; "
        f"the slowest {loaded[-1] / alone[-1]:.2f}x"
    )
    return {f"no stream takes {given.max_slowdown:g} times as long": loaded[-1] / alone[-1] <= given.max_slowdown}


def report_oks(oks, given):
    latencies = sorted(oks.latencies)
    p50, p99, longest = (latency * 1000 for latency in (percentile(latencies, 0.5), percentile(latencies, 0.99), latencies[-1]))
    print(f"/ok: {dict(oks.statuses)}, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {longest:.1f} ms")
    return {
        "`/ok` is always answered": set(oks.statuses) == {200} and not oks.waiting,
        f"`/ok` is answered within {given.max_ok_ms:g} ms": longest <= given.max_ok_ms,
    }


async def with_server(given):
    """Measures a server that is started for that, with the settings of the options."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "proof"))
    from parts import Part, free_port

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        runtime = [f"max_concurrent_runs = {given.slots}"] if given.slots else []
        if given.max_queued_runs:
            runtime.append(f"max_queued_runs = {given.max_queued_runs}")
        database = given.database or f"sqlite://{folder / 'adjutant.db'}"
        file = folder / "adjutant.toml"
        file.write_text(CONFIGURATION.format(port=port, database=database, runtime="\n".join(runtime)))
        log = folder / "server.log"
        server = await Part("the server", [given.server, "serve", "--config", file], port, log).start()
        try:
            await server.is_ready()
            code = await measure(urllib.parse.urlsplit(f"http://127.0.0.1:{port}"), given)
        finally:
            server.kill()
            sys.stdout.write(log.read_text())
        return code


def arguments():
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("base", nargs="?", metavar="BASE_URL", help="the URL of a server that is running")
    options.add_argument("--server", type=Path, help="the program of a server that is started and ended here")
    options.add_argument("--database", help="the database of that server; a new SQLite file if it is left out")
    options.add_argument("--slots", type=int, default=40, help="its `max_concurrent_runs`; 0 for the default")
    options.add_argument("--max-queued-runs", type=int, default=2000, help="its `max_queued_runs`; 0 for the default")
    options.add_argument("--model-ms", type=int, default=300, help="the time that the model takes for an answer")
    options.add_argument("--times", type=float, default=10, help="how many times the capacity is offered")
    options.add_argument("--seconds", type=float, default=10, help="for how long")
    options.add_argument("--processes", type=int, default=2, help="the processes of the load")
    options.add_argument("--connections", type=int, default=8000, help="the most connections of the load")
    options.add_argument("--streams", type=int, default=20, help="the streams that are under way")
    options.add_argument("--clients", type=int, default=64, help="the clients that measure the capacity; more than slots")
    options.add_argument("--capacity-seconds", type=float, default=5, help="for how long the capacity is measured")
    options.add_argument("--max-slowdown", type=float, default=1.2, help="how many times as long a stream may take")
    options.add_argument("--max-ok-ms", type=float, default=1000, help="how long `/ok` may take")
    given = options.parse_args()
    if (given.base is None) == (given.server is None):
        options.error("give either BASE_URL or --server PROGRAM")
    return given


def main():
    given = arguments()
    if given.server:
        return asyncio.run(with_server(given))
    return asyncio.run(measure(urllib.parse.urlsplit(given.base), given))


if __name__ == "__main__":
    sys.exit(main())
