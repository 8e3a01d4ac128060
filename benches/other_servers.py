#!/usr/bin/env python3
"""The lag of pieces of answers between two servers on one Postgres, over NOTIFY, or over NATS if their configuration names one.

Usage: other_servers.py BASE_URL OTHER_BASE_URL [STREAMS [PAUSE_MS [PROCESSES]]]
(otherwise idle servers whose agent `agent` has the model `scripted:lab`; the second one with the role `api`, so that the first one
works on all runs)

Runs start at the first server, 100 a second, which works on them. All streams are read at the other server, and every tenth one at the
first server, too, by the same one of PROCESSES processes. The lag of a piece of such a stream is the time between its arrivals at the two
readers, in the time in which all runs stream. Prints the lag, how many pieces came only with the whole answer, and how late a timer of the
readers was meanwhile, which is the share of the readers themselves.
"""

import asyncio
import json
import multiprocessing
import re
import sys
import time
import urllib.parse

HERE, THERE = (urllib.parse.urlsplit(base) for base in sys.argv[1:3])
STREAMS, PAUSE_MS, PROCESSES = (int(text) for text in (sys.argv[3:] + ["100", "50", "1"][len(sys.argv) - 3:]))
STARTS_PER_S = 100
# One stream of so many is read at both servers.
SAMPLE = 10
# Long enough for ten seconds in which all streams run.
PIECES = int((STREAMS / STARTS_PER_S + 11) * 1000 / PAUSE_MS)
TIMER_S = 0.01
WORD = re.compile(rb"w(\d{5})")


class Listener(asyncio.Protocol):
    """Remembers the time at which each piece of a stream arrives first."""

    def __init__(self, base, path):
        self.head = f"GET {path} HTTP/1.1\r\nhost: {base.netloc}\r\nlast-event-id: -1\r\n\r\n".encode()
        self.arrivals = {}
        self.ended = asyncio.get_running_loop().create_future()
        self.rest = b""
        self.is_open = False

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.head)

    def data_received(self, data):
        now = time.perf_counter()
        if not self.is_open:
            assert b" 200 " in data[:20], data[:200]
            self.is_open = True
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            # A frame with many words is the whole answer, or what was missed.
            words = WORD.findall(line)
            for word in words:
                self.arrivals.setdefault(int(word), (now, len(words)))
            if line.startswith(b"event: end") or line == b"0\r":
                self.end()

    def connection_lost(self, _error):
        self.end()

    def end(self):
        if not self.ended.done():
            self.ended.set_result(time.perf_counter())
            self.transport.close()


async def listen(base, path):
    _, listener = await asyncio.get_running_loop().create_connection(lambda: Listener(base, path), base.hostname, base.port)
    ended = await listener.ended
    return listener.arrivals, ended


async def post(base, path, body):
    reader, writer = await asyncio.open_connection(base.hostname, base.port)
    data = json.dumps(body).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nhost: {base.netloc}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    status = await reader.readline()
    assert b" 200 " in status, status
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    answer = json.loads(await reader.readexactly(length))
    writer.close()
    return answer


async def one(number, begin):
    await asyncio.sleep(begin + number / STARTS_PER_S - time.perf_counter())
    thread = (await post(HERE, "/threads", {}))["thread_id"]
    text = "".join(f"w{at:05} " for at in range(PIECES))
    script = json.dumps({"script": [{"text": text}], "chunk": 7, "delay_ms": PAUSE_MS})
    body = {"assistant_id": "agent", "stream_mode": ["messages-tuple"], "stream_resumable": True,
            "input": {"messages": [{"role": "user", "content": script}]}}
    run = (await post(HERE, f"/threads/{thread}/runs", body))["run_id"]
    path = f"/threads/{thread}/runs/{run}/stream?stream_mode=messages-tuple"
    bases = [THERE] if number % SAMPLE else [THERE, HERE]
    return await asyncio.gather(*(listen(base, path) for base in bases))


async def watch(delays):
    """Measures how late this process is, which adds to what it measures."""
    while True:
        due = time.perf_counter() + TIMER_S
        await asyncio.sleep(TIMER_S)
        delays.append((due, time.perf_counter() - due))


async def read(share, begin):
    delays = []
    watcher = asyncio.create_task(watch(delays))
    results = await asyncio.gather(*(one(number, begin) for number in range(STREAMS) if number // SAMPLE % PROCESSES == share))
    watcher.cancel()
    return results, delays


def work(share, begin, results):
    results.put(asyncio.run(read(share, begin)))


def at(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] * 1000


def main():
    # The clock is the same in all processes.
    begin = time.perf_counter() + 1
    queue = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=work, args=(share, begin, queue)) for share in range(PROCESSES)]
    for process in processes:
        process.start()
    streams, delays = [], []
    for _ in processes:
        read_streams, read_delays = queue.get()
        streams += read_streams
        delays += read_delays
    for process in processes:
        process.join()
    # The time in which all runs stream.
    since = max(min(arrived for arrived, _ in arrivals.values()) for stream in streams for arrivals, _ in stream)
    until = min(ended for stream in streams for _, ended in stream)
    lags, late, missing, pieces = [], 0, 0, 0
    sample = [stream for stream in streams if len(stream) == 2]
    for (there, _), (here, _) in sample:
        for word, (arrived, words) in here.items():
            if not since < arrived < until - 0.5 or words > 10:
                continue
            pieces += 1
            if word not in there:
                missing += 1
            elif there[word][1] > 10:
                late += 1
            else:
                lags.append(there[word][0] - arrived)
    assert lags, "no pieces; the runs are too short for these servers"
    own = [delay for due, delay in delays if since < due < until]
    print(f"{STREAMS} streams, {pieces / (until - 0.5 - since) * STREAMS / len(sample):.0f} pieces a second in {until - 0.5 - since:.1f} s: "
          f"lag p50 {at(lags, 0.5):.1f} ms, p99 {at(lags, 0.99):.1f} ms, most {at(lags, 1):.1f} ms; "
          f"{late} of {pieces} pieces late, {missing} missing; "
          f"timers of the readers late by p50 {at(own, 0.5):.1f} ms, p99 {at(own, 0.99):.1f} ms, most {at(own, 1):.1f} ms")


main()
