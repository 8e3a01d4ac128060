#!/usr/bin/env python3
"""The instructions of a one-step run, counted by Valgrind.

Usage: instructions.py --server PROGRAM --agentbench PROGRAM [options]

Times differ from one minute to the next on a machine that others use; the number of instructions of the same runs does not. Each
measurement starts the server under Callgrind with a new database, has `--runs` runs with their threads by `--clients` clients, and
counts the instructions of as many runs again. Those of the kernel are not counted. Callgrind runs one thread at a time, so the groups
of commits are not those of a server at work.

With `--keys` both are measured in turn: without keys, and with an API key that the client sends. The program has to have its symbols
for `--profile FILE`, which keeps the profile of the last measurement for `callgrind_annotate`.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "proof"))
from parts import free_port  # noqa: E402
from side_by_side import AUTHENTICATION, CONFIGURATION, KEY, running  # noqa: E402

# A server under Callgrind takes this many times as long.
SLOWER = 60


def load(options, base, keys):
    """Has runs with their threads."""
    command = [options.agentbench, "load", "--base", base, "--scenario", options.scenario, "--no-warmup"]
    command += ["--clients", str(options.clients), "--max", str(options.runs), "--secs", "600", "--timeout", "300"]
    command += ["--assistant", options.assistant, *options.more.split()]
    env = dict(os.environ)
    env.pop("AGENTBENCH_KEY", None)
    if keys:
        env["AGENTBENCH_KEY"] = KEY
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(done.stderr)
    found = re.search(r'"ok": *(\d+)', done.stdout)
    if not found or int(found[1]) == 0:
        sys.exit(f"no run has ended: {done.stdout}{done.stderr}")
    return int(found[1])


def control(*arguments):
    """Asks the server's Callgrind for something."""
    subprocess.run(["callgrind_control", *arguments], check=True, capture_output=True)


def instructions(options, model, keys):
    """Returns the instructions of a run, in thousands."""
    base = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as folder:
        text = CONFIGURATION.format(port=base.rsplit(":", 1)[1], model=model, database=options.database)
        if keys:
            file = Path(folder) / "key"
            file.write_text(KEY)
            text += AUTHENTICATION.format(file=file)
        configuration = Path(folder) / "adjutant.toml"
        configuration.write_text(text)
        profile = Path(folder) / "profile"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", "--max-threads=2000"]
        command += [options.server, "serve", "--config", str(configuration)]
        with running(command, folder, f"{base}/ok", seconds=30 * SLOWER) as server:
            load(options, base, keys)
            control("-z", str(server.pid))
            runs = load(options, base, keys)
            control("-d", str(server.pid))
        # The first dump has the runs; the one of the end of the server has another name.
        dump = Path(f"{profile}.1")
        total = re.search(r"^(?:summary|totals): (\d+)", dump.read_text(errors="replace"), re.M)
        if options.profile:
            shutil.copy(dump, options.profile)
    return int(total[1]) / runs / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="the program of the server")
    parser.add_argument("--agentbench", type=Path, required=True, help="the load client, with the fake model")
    parser.add_argument("--database", default="sqlite://adjutant.db", help="the URL of the server's database")
    parser.add_argument("--keys", action="store_true", help="measure with an API key, too")
    parser.add_argument("--scenario", default="wait", help="the scenario of the client")
    parser.add_argument("--assistant", default="plain", help="the assistant of the runs")
    parser.add_argument("--more", default="", help="further arguments of the client")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--runs", type=int, default=160, help="the runs of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="the measurements of each")
    parser.add_argument("--profile", type=Path, help="the file in which the last profile is kept")
    options = parser.parse_args()
    options.server = options.server.resolve()
    options.agentbench = options.agentbench.resolve()
    counts = {keys: [] for keys in ([False, True] if options.keys else [False])}
    with tempfile.TemporaryDirectory() as folder:
        model = f"http://127.0.0.1:{free_port()}"
        command = [options.agentbench, "llm", "--port", model.rsplit(":", 1)[1], "--threads", "2"]
        with running(command, folder, model):
            for _ in range(options.rounds):
                for keys, found in counts.items():
                    found.append(instructions(options, model, keys))
                    name = "with a key" if keys else "without keys"
                    print(f"{name}: {found[-1]:,.0f} thousand instructions a run", flush=True)
    if options.keys:
        more = statistics.median(counts[True]) / statistics.median(counts[False]) - 1
        print(f"keys cost {more:.1%}")


if __name__ == "__main__":
    main()
