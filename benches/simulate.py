#!/usr/bin/env python3
"""Simulates servers on one Postgres under loads that no machine at hand can make.

Usage: simulate.py --constants FILE [--threads 1000,100000,10000000] [options]

FILE is what `database_work.py --write` has measured. Threads arrive by chance, five times as often as in the mean of their day, and each has one
run with `--steps` steps. What the run needs besides its steps is done at its admission. Before each step a model takes a time by chance,
`--model` seconds in the mean. Then a core of the server of the run works on the step, then a core of Postgres, and then its commits, one after the
other, wait for the disk, which takes all commits that wait in one flush. Each of these is a queue, first come, first served. There are as many
servers as keep their cores busy for seven tenths of the time, and two at least. The first half of the time is not counted.

Prints for each load how busy the parts are, how long a step takes that a model has answered, and how many runs are at work; and how many threads
a day the cores of Postgres take.
"""

import argparse
import heapq
import json
import math
import random
from pathlib import Path

# A busy hour against the mean of the day.
BUSY = 5
DAY_S = 86_400
# The share of the time for which cores shall work.
GOOD = 0.7
# The part of the time until as many runs are at work as later.
WARM_UP = 0.5


class Cores:
    """Some cores with one queue."""

    def __init__(self, count):
        self.free_at = [0.0] * count
        self.worked = 0.0

    def work(self, now, seconds):
        """Returns when the work is done. It has to be called in the order of time."""
        begun = max(now, heapq.heappop(self.free_at))
        heapq.heappush(self.free_at, begun + seconds)
        self.worked += seconds
        return begun + seconds

    def share(self, seconds):
        return self.worked / len(self.free_at) / seconds


class Disk:
    """The disk of the write-ahead log. While it flushes, commits gather for the next flush."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.ends = -1.0
        self.has_next = False
        self.flushes = 0

    def flush(self, now):
        """Returns when a commit is on the disk. It has to be called in the order of time."""
        if self.has_next and now >= self.ends:
            self.begin(self.ends)
        if now >= self.ends:
            self.begin(now)
            return self.ends
        self.has_next = True
        return self.ends + self.seconds

    def begin(self, now):
        self.ends = now + self.seconds
        self.has_next = False
        self.flushes += 1


def cost(constants, name, step):
    """Returns the seconds of work for a step, or, with the number 0, for the run besides its steps."""
    return constants["step" if step else "run"][name]


def commits_of(constants, step):
    """Returns the number of commits of a step, or, with the number 0, of the run besides its steps."""
    return max(1, round(cost(constants, "commits", step)))


def simulate(constants, rate, servers, given):
    """Returns what happens at so many runs a second."""
    chance = random.Random(given.seed)
    cores = [Cores(given.cores) for _ in range(servers)]
    database, disk = Cores(given.database_cores), Disk(given.flush_ms / 1000)
    # A time, a number that makes it unique, what happens, the server of the run, its step, and when the model has answered. Of
    # flushes also the number of commits that are left.
    events = []
    numbers = iter(range(10**12))

    def later(at, what, *about):
        heapq.heappush(events, (at, next(numbers), what, *about))

    begins = given.seconds * WARM_UP
    begun, delays, at_work, most = 0, [], 0, 0
    is_warm = False
    later(chance.expovariate(rate), "arrives", 0, 0, 0.0)
    while events[0][0] < given.seconds:
        now, _, what, server, step, answered, *left = heapq.heappop(events)
        if now >= begins and not is_warm:
            is_warm = True
            begun, most, disk.flushes = 0, at_work, 0
            for each in (database, *cores):
                each.worked = 0.0
        if what == "arrives":
            begun += 1
            at_work += 1
            most = max(most, at_work)
            later(now, "answers", begun % servers, 0, now)
            later(now + chance.expovariate(rate), "arrives", 0, 0, 0.0)
        elif what == "answers":
            seconds = cost(constants, "server_cpu", step)
            later(cores[server].work(now, seconds), "commits", server, step, now)
        elif what == "commits":
            seconds = cost(constants, "database_cpu", step)
            later(database.work(now, seconds), "flushes", server, step, answered, commits_of(constants, step))
        elif what == "flushes":
            after = disk.flush(now)
            if left[0] > 1:
                later(after, "flushes", server, step, answered, left[0] - 1)
            else:
                later(after, "is stored", server, step, answered)
        else:
            if is_warm:
                delays.append(now - answered)
            if step == given.steps:
                at_work -= 1
            else:
                asked = now + chance.expovariate(1 / given.model)
                later(asked, "answers", server, step + 1, asked)
    lasted = given.seconds - begins
    return {
        "servers": servers,
        "runs_per_s": begun / lasted,
        "server_cores": sum(each.share(lasted) for each in cores) / servers,
        "database_cores": database.share(lasted),
        "flushes_per_s": disk.flushes / lasted,
        "delay_mean_ms": sum(delays) / len(delays) * 1000 if delays else None,
        "delay_p50_ms": at(delays, 0.5),
        "delay_p99_ms": at(delays, 0.99),
        "most_at_work": most,
    }


def at(delays, part):
    """Returns the delay in milliseconds that this part does not exceed; none if nothing was delayed."""
    return sorted(delays)[min(len(delays) - 1, int(len(delays) * part))] * 1000 if delays else None


def per_run(constants, name, steps):
    return constants["run"][name] + steps * constants["step"][name]


def servers_for(constants, rate, given):
    return max(2, math.ceil(rate * per_run(constants, "server_cpu", given.steps) / (given.cores * GOOD)))


def most_threads(constants, given):
    """Returns the threads a day at which the cores of Postgres are as busy as they shall be in a busy hour."""
    return GOOD * given.database_cores / per_run(constants, "database_cpu", given.steps) / BUSY * DAY_S


def line(threads, found):
    delay = [f"{found[name]:.1f} ms" if found[name] is not None else "" for name in ("delay_p50_ms", "delay_p99_ms")]
    return (
        f"| {threads:,} | {found['runs_per_s']:.1f} | {found['servers']} | {found['server_cores']:.0%} | {found['database_cores']:.0%} | "
        f"{found['flushes_per_s']:.0f} | {delay[0]} | {delay[1]} | {found['most_at_work']:,} |"
    )


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--constants", required=True, type=Path, metavar="FILE", help="what database_work.py --write has measured")
    options.add_argument("--threads", default="1000,100000,10000000", help="the threads of a day, with commas between them")
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--model", type=float, default=2.0, metavar="SECONDS", help="the mean time of an answer")
    options.add_argument("--cores", type=int, default=4, help="those of a server")
    options.add_argument("--database-cores", type=int, default=16)
    options.add_argument("--flush-ms", type=float, default=0.5, help="the time of a flush of the disk")
    options.add_argument("--seconds", type=float, default=120.0, help="the time that is simulated")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", action="store_true", help="print one object for each load")
    given = options.parse_args()
    constants = json.loads(given.constants.read_text())
    loads = [int(threads) for threads in given.threads.split(",")]
    if not given.json:
        print("| Threads a day | Runs a second | Servers | Their cores | Cores of Postgres | Flushes a second | A step, p50 | p99 | Runs at work |")
        print("|---|---|---|---|---|---|---|---|---|")
    for threads in loads:
        rate = threads / DAY_S * BUSY
        found = simulate(constants, rate, servers_for(constants, rate, given), given)
        print(json.dumps({"threads": threads, **found}) if given.json else line(threads, found), flush=True)
    if not given.json:
        print(f"\n{given.database_cores} cores of Postgres take {most_threads(constants, given):,.0f} threads a day at {GOOD:.0%} in a busy hour")


if __name__ == "__main__":
    main()
