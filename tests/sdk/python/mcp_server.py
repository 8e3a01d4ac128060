"""An MCP server of FastMCP, as a program."""

import asyncio
import os
from pathlib import Path

from fastmcp import FastMCP

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
async def wait(file: str) -> str:
    """Writes the id of this process into a file, and takes ten minutes."""
    Path(file).write_text(str(os.getpid()))
    await asyncio.sleep(600)
    return "at last"


server.run(show_banner=False)
