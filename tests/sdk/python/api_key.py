"""The Python SDK with an API key, with a wrong one and without. Usage: python api_key.py BASE_URL KEY"""

import asyncio
import sys

import httpx
from langgraph_sdk import get_client

url = sys.argv[1]
key = sys.argv[2]


async def is_refused(client):
    try:
        await client.threads.create()
    except httpx.HTTPStatusError as error:
        return error.response.status_code == 401
    except Exception as error:
        return getattr(error, "status_code", None) == 401
    return False


async def main():
    client = get_client(url=url, api_key=key)
    thread = await client.threads.create()
    found = await client.threads.get(thread["thread_id"])
    assert found["thread_id"] == thread["thread_id"]
    assert await is_refused(get_client(url=url, api_key=key[:-1] + ("0" if key[-1] != "0" else "1")))
    assert await is_refused(get_client(url=url, api_key=None))
    print("the key lets in, and nothing else does")


asyncio.run(main())
