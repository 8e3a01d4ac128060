"""Connections between two parts of the system that the driver can cut, silence and delay."""

import asyncio
import collections
import contextlib

from parts import HERE, free_port

PIECE = 64 * 1024


class Link:
    """A TCP proxy from a port of its own to one of this machine.

    `cut` closes connections and accepts no new ones, as when the other side is gone. `silence` keeps connections open and
    passes nothing on in one direction or in both, as when packets are lost: what was sent arrives after `heal`. `delay`
    holds each piece back for a while.
    """

    faults = ("cuts", "silences_there", "silences_back", "silences", "delays")

    def __init__(self, name, port, target, host=HERE):
        self.name = name
        self.port = port
        self.host = host
        self.address = f"{host.address}:{port}"
        self.target = target
        self.flows = {"there": asyncio.Event(), "back": asyncio.Event()}
        self.heal()
        self.writers = set()
        self.running = set()

    async def open(self):
        self.server = await asyncio.start_server(self._accept, self.host.address, self.port)
        return self

    def heal(self):
        self.is_cut = False
        self.delay_s = 0.0
        for flow in self.flows.values():
            flow.set()

    def cut(self):
        self.is_cut = True
        for writer in list(self.writers):
            writer.transport.abort()

    def silence(self, *directions):
        for direction in directions:
            self.flows[direction].clear()

    def delay(self, seconds):
        self.delay_s = seconds

    async def close(self):
        self.server.close()
        for flow in list(self.running):
            flow.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)

    async def _accept(self, reader, writer):
        task = asyncio.create_task(self._connect(reader, writer))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def _connect(self, reader, writer):
        if self.is_cut:
            writer.transport.abort()
            return
        try:
            # A new connection through a silent link hangs as well.
            await self.flows["there"].wait()
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self.writers |= {writer, there_writer}
        try:
            await asyncio.gather(
                self._pass_on(reader, there_writer, "there"),
                self._pass_on(there_reader, writer, "back"),
            )
        finally:
            self.writers -= {writer, there_writer}

    async def _pass_on(self, reader, writer, direction):
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self.flows[direction].wait()
                writer.write(piece)
                await writer.drain()
            await self.flows[direction].wait()
        # One direction that ends, ends the other one: nobody here uses half-open connections.
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()


class Proxies:
    """The network of a proof whose parts are all on this machine: a link for each connection."""

    driver = HERE

    def __init__(self):
        self.links = []
        self.counts = collections.Counter()

    def host(self, _name):
        return HERE

    def link(self, name, _here, _there, port):
        """Returns a link to a port."""
        link = Link(name, free_port(), port)
        self.links.append(link)
        return link

    async def open(self):
        for link in self.links:
            await link.open()

    async def close(self):
        for link in self.links:
            await link.close()
