"""Proves that nothing is lost and nothing happens twice while parts of a cluster fail.

Three servers on one Postgres, with NATS if it is given, work behind HAProxy for clients that start runs, follow them and
answer their questions. Meanwhile processes are killed, stopped and restarted, and the connections between them are cut,
silenced in one direction or both, and delayed: each of them in each way before the next round. At the end everything is
healed, and each acknowledged run has to have ended once, each effect of a tool has to be there once (or a human was
asked), and each reader has to have got each event once.

    python tests/proof/prove.py --server target/release/adjutant --minutes 30

With `--former` the servers begin as the program of another release, and are replaced one after the other: a rolling upgrade, with
both at work on one database. Then the upgrade is finished, while one more server of the former release, which no client asks, is
suspended without a connection. It comes back and may change nothing.

With `--load-program` the load of agentbench is there as well, whose runs have to end once and have their effects once, too.

With `--namespaces` each part has a network namespace, and packets between them are lost and delayed.
"""

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import namespaces
import parts
from clients import Clients, ToolService
from links import Proxies
from load import Load

ROOT = Path(__file__).resolve().parents[2]
SERVERS = 3
# After the last fault: leases expire after 6 s, and clients pause for up to 2 s.
HEALING_S = 120
# A server fails this many times as often as another part or a connection.
SERVERS_MORE = 3
# A proof of this length fails if a part did not have one of its faults.
WHOLE_MINUTES = 10.0
# The errors of the load that are printed: those that came most often.
LOAD_ERRORS = 20


class Cluster:
    """The processes, and the network between them."""

    def __init__(self, folder, options, network, tools, load):
        self.network = network
        self.servers = []
        self.postgres = parts.postgres(folder, Path(options.postgres), parts.free_port(), network.host("postgres"))
        self.nats = None
        if options.nats:
            self.nats = parts.nats(folder, options.nats, parts.free_port(), network.host("nats"))
        # Their services are in the namespace of the program. They fail with the connection to its tools, if at all.
        services = {"tools": tools.address}
        if load:
            services |= {"model": load.link.address, "load_tools": load.tools.address}
        front = network.host("haproxy")
        fronts = []
        for number in range(1, SERVERS + 1):
            host = network.host(f"server-{number}")
            used = services | {"database": self.link(f"server {number} and postgres", host, self.postgres).address}
            if self.nats:
                used["nats"] = self.link(f"server {number} and nats", host, self.nats).address
            program = options.former or options.server
            server = parts.server(folder, program, number, parts.free_port(), used, host)
            self.servers.append(server)
            fronts.append(self.link(f"haproxy and server {number}", front, server).address)
        self.straggler = None
        if options.former:
            host = network.host("straggler")
            self.straggling = self.link("the straggler and postgres", host, self.postgres)
            used = services | {"database": self.straggling.address}
            if self.nats:
                used["nats"] = self.nats.address
            self.straggler = parts.server(folder, options.former, SERVERS + 1, parts.free_port(), used, host)
        shipped = ROOT / "deploy" / "haproxy.cfg"
        self.haproxy = parts.haproxy(folder, options.haproxy, shipped, parts.free_port(), fronts, front)
        if options.namespaces:
            self.link("clients and haproxy", network.driver, self.haproxy)
            # A proxy would also cut these, and a call that is cut has failed: an answer for the agent, not a loss.
            for server in self.servers:
                self.link(f"{server.name} and tools", server.host, tools)

    def link(self, name, here, there):
        return self.network.link(name, here, there.host, there.port)

    def processes(self):
        every = (self.postgres, self.nats, *self.servers, self.straggler, self.haproxy)
        return [part for part in every if part]

    async def start(self):
        await self.network.open()
        for part in self.processes():
            await part.start()
            await part.is_ready()

    async def end(self):
        await self.network.close()
        for part in reversed(self.processes()):
            part.send(signal.SIGCONT)
            part.kill()


class Driver:
    """Makes parts fail, several at a time."""

    def __init__(self, cluster, chance):
        self.cluster = cluster
        self.chance = chance
        self.is_over = False
        self.busy = set()
        self.done = []
        # Faults that come before any of them comes again.
        self.next = []

    async def run(self):
        while not self.is_over:
            await asyncio.sleep(self.chance.uniform(0.5, 4.0))
            if self.is_over:
                return
            await self.make(*self.choose())

    def choose(self):
        """Takes the next fault with a part that is not failing already. If there is none, the next round begins."""
        while True:
            for place, (fault, subject) in enumerate(self.next):
                if subject not in self.busy:
                    del self.next[place]
                    return fault, subject
            every = self.every_fault()
            self.next += self.chance.sample(every, len(every))

    async def make(self, fault, subject):
        """Makes a part fail that is not failing already."""
        self.busy.add(subject)
        try:
            self.done.append(title(fault, subject))
            print(f"{time.strftime('%H:%M:%S')} {self.done[-1]}", flush=True)
            await fault(subject)
        finally:
            self.busy.discard(subject)

    def every_fault(self):
        """Returns each fault with each part: processes in three ways, connections in both directions and in each."""
        cluster = self.cluster
        around = [part for part in (cluster.postgres, cluster.nats, cluster.haproxy) if part]
        of_processes = (self.kills, self.stops, self.restarts)
        servers = [(fault, server) for server in cluster.servers for fault in of_processes]
        others = [(fault, part) for part in around for fault in of_processes]
        links = [(getattr(self, fault), link) for link in cluster.network.links for fault in link.faults]
        return servers * SERVERS_MORE + others + links

    def missing(self):
        """Returns the faults that no part had."""
        return sorted({title(fault, subject) for fault, subject in self.every_fault()} - set(self.done))

    async def kills(self, part):
        part.kill()
        await asyncio.sleep(self.chance.choice([0.0, 0.5, 3.0]))
        await part.start()
        await part.is_ready()

    async def stops(self, part):
        part.send(signal.SIGSTOP)
        await asyncio.sleep(self.chance.uniform(0.5, 12.0))
        part.send(signal.SIGCONT)

    async def restarts(self, part):
        part.send(part.stop_signal)
        if await part.is_over(60) is None:
            raise RuntimeError(f"{part.name} does not end")
        await part.start()
        await part.is_ready()

    async def upgrade(self, program, pause):
        """Replaces the servers by another program, one after the other, with pauses in seconds."""
        for number, server in enumerate(self.cluster.servers):
            await asyncio.sleep(pause)
            while server in self.busy:
                await asyncio.sleep(0.1)
            if number == 0:
                # The first one brings the tables up to date. A server that fails from now on comes back as the new program.
                for other in self.cluster.servers:
                    other.command[0] = str(program)
            await self.make(self.upgrades, server)

    async def upgrades(self, server):
        await self.restarts(server)

    async def replace(self, program, pause):
        """Upgrades the servers, and finishes the upgrade."""
        await self.upgrade(program, pause)
        await self.finish(program)

    async def finish(self, program):
        """Finishes the upgrade while a server of the former release is suspended, which then comes back."""
        straggler = self.cluster.straggler
        while self.cluster.straggling in self.busy:
            await asyncio.sleep(0.1)
        self.busy.add(self.cluster.straggling)
        straggler.send(signal.SIGSTOP)
        self.cluster.straggling.cut()
        # It is refused until the lease of the straggler is over, and while Postgres is out of reach.
        command = [program, "migrate", "--finish", "--config", straggler.command[-1]]
        direct = f"postgres://adjutant@{self.cluster.postgres.address}/postgres"
        for _ in range(60):
            done = await asyncio.create_subprocess_exec(*map(str, command), "--database-url", direct)
            if await done.wait() == 0:
                break
            await asyncio.sleep(1.0)
        else:
            raise RuntimeError("the upgrade cannot be finished")
        for server in self.cluster.servers:
            while server in self.busy:
                await asyncio.sleep(0.1)
            await self.make(self.restarts, server)
        self.cluster.straggling.heal()
        straggler.send(signal.SIGCONT)
        self.done.append(f"comes back {straggler.name}")
        self.busy.discard(self.cluster.straggling)

    async def cuts(self, link):
        link.cut()
        await self.heals(link)

    async def silences(self, link):
        link.silence("there", "back")
        await self.heals(link)

    async def silences_there(self, link):
        link.silence("there")
        await self.heals(link)

    async def silences_back(self, link):
        link.silence("back")
        await self.heals(link)

    async def delays(self, link):
        link.delay(self.chance.uniform(0.02, 0.3))
        await self.heals(link)

    async def heals(self, link):
        await asyncio.sleep(self.chance.uniform(0.5, 12.0))
        link.heal()


def title(fault, subject):
    return f"{fault.__name__} {subject.name}"


async def prove(options, folder):
    chance = random.Random(options.seed)
    network = namespaces.Switch() if options.namespaces else Proxies()
    tools = await ToolService().open(network.driver)
    load = None
    if options.load_program:
        load = await Load(folder, options.load_program, options.load_clients, network.driver).open()
    cluster = Cluster(folder, options, network, tools, load)
    base = f"http://{cluster.haproxy.address}"
    clients = Clients(base, tools)
    driver = Driver(cluster, chance)
    try:
        await cluster.start()
        using = [asyncio.create_task(clients.use(number)) for number in range(options.clients)]
        if load:
            await load.start()
            using.append(asyncio.create_task(load.use(base)))
        breaking = [asyncio.create_task(driver.run()) for _ in range(2)]
        if options.former:
            # The last part is for the time after the end of the upgrade.
            pause = options.minutes * 60 / (SERVERS + 2)
            breaking.append(asyncio.create_task(driver.replace(options.server, pause)))
        await asyncio.sleep(options.minutes * 60)
        driver.is_over = True
        await asyncio.gather(*breaking)
        clients.is_over = True
        if load:
            load.is_over = True
        deadline = time.monotonic() + HEALING_S
        _, stuck = await asyncio.wait(using, timeout=HEALING_S)
        for task in stuck:
            clients.violation(f"a client still waits {HEALING_S} s after the last fault")
            task.cancel()
        for task in set(using) - stuck:
            if task.exception():
                clients.violation(f"a client failed: {task.exception()!r}")
        await clients.check(deadline + HEALING_S)
        if load:
            await load.check(clients, chance)
    finally:
        await cluster.end()
        if load:
            await load.close()
    for fault in sorted(set(driver.done)):
        print(f"{driver.done.count(fault):5} {fault}")
    counts = clients.counts + network.counts
    if load:
        counts += load.counts
        # A server that ends takes the requests with it that it has not answered.
        for error, count in load.errors.most_common(LOAD_ERRORS):
            print(f"{count:5} error of the load: {error}")
    for name, count in sorted(counts.items()):
        print(f"{count:5} {name}")
    faults = len(driver.done)
    missing = driver.missing() if options.minutes >= WHOLE_MINUTES else []
    for fault in missing:
        print(f"    0 {fault}")
    print(f"{len(clients.violations)} violations, {faults} faults, {clients.counts['runs']} runs, seed {options.seed}")
    return not clients.violations and not missing and clients.counts["runs"] > 0 and faults > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", required=True, type=Path, help="the program to prove")
    parser.add_argument("--former", type=Path, help="the program with which the servers begin")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long parts fail")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--load-program", type=Path, help="the program agentbench, whose load is there beside the clients")
    parser.add_argument("--load-clients", type=int, default=4, help="the clients of that load")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--postgres", default="/usr/lib/postgresql/15/bin", help="the folder of the programs of Postgres")
    parser.add_argument("--haproxy", default=shutil.which("haproxy") or "/usr/sbin/haproxy")
    parser.add_argument("--nats", help="the program nats-server; without it the servers have Postgres alone")
    parser.add_argument("--namespaces", action="store_true", help="give each part a network namespace; needs root")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    options = parser.parse_args()
    if options.namespaces:
        namespaces.enter()
    options.server = options.server.resolve()
    options.former = options.former and options.former.resolve()
    options.load_program = options.load_program and options.load_program.resolve()
    folder = Path(tempfile.mkdtemp(prefix="adjutant-proof-"))
    folder.chmod(0o755)
    print(f"seed {options.seed}, logs in {folder}", flush=True)
    is_proven = False
    try:
        is_proven = asyncio.run(prove(options, folder))
    finally:
        if is_proven and not options.keep:
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)
    sys.exit(0 if is_proven else 1)


if __name__ == "__main__":
    main()
