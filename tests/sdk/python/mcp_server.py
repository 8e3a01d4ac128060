"""An MCP server of FastMCP, as a program."""

import asyncio
import os
from pathlib import Path

from fastmcp import Context, FastMCP

server = FastMCP("shop")


@server.tool
def add(a: int, b: int) -> dict[str, int]:
    """Adds two numbers."""
    return {"sum": a + b}


@server.tool
def refuse() -> str:
    """Always fails."""
    raise ValueError("sold out")


@server.tool
async def report(context: Context) -> str:
    """Tells how far it is."""
    await context.info("packing")
    await context.report_progress(1, 2, "half of it")
    return "reported"


@server.tool
async def wait(file: str) -> str:
    """Writes the id of this process into a file, and takes ten minutes."""
    Path(file).write_text(str(os.getpid()))
    await asyncio.sleep(600)
    return "at last"


server.run(show_banner=False)
