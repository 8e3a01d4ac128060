"""Reads what a call may of the run that makes it, at adjutant, with the token of the call."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

_TIMEOUT_S = 30.0
_PART = 1024 * 1024


class ReadError(Exception):
    """A request that adjutant has refused."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{detail} ({code})")
        self.status = status
        """The status: 401 when the call is over, 403 for what `read_access` of the tool does not have."""
        self.code = code


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could send the token to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class RunReader:
    """What a call may read: fields of the state, files, and items of the Store.

    It works until the call has its result. The methods block; in an async function call them with `asyncio.to_thread`.
    """

    def __init__(self, url: str, read_access: Mapping[str, Any], *, timeout_s: float = _TIMEOUT_S) -> None:
        """`url` is the address of adjutant, and `read_access` what the request to the tool has under that name."""
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("the address of adjutant must begin with http:// or https://")
        self._base = url.rstrip("/") + str(read_access["path"])
        self._token = str(read_access["token"])
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_NoRedirects)
        self.expires_at = str(read_access["expires_at"])
        """The time at which the call is over at the latest."""

    def state(self, *fields: str) -> dict[str, Any]:
        """Returns these fields of the state, or all that can be read. Fields that are not set are left out."""
        return self._json("/state", [("fields", field) for field in fields])["values"]

    def entries(self, field: str, *, offset: int = 0, limit: int = 100) -> list[Any]:
        """Returns a part of a field that is a list, such as `messages`."""
        query = [("fields", field), ("offset", str(offset)), ("limit", str(limit))]
        return self._json("/state", query)["values"].get(field, [])

    def files(self, *, offset: int = 0, limit: int = 100) -> list[dict[str, Any]]:
        """Returns the path, the size and more of the files that can be read. What only reading tells is None."""
        return self._json("/files", [("offset", str(offset)), ("limit", str(limit))])["files"]

    def read_file(self, path: str) -> bytes:
        """Returns the bytes of a file."""
        content = bytearray()
        while True:
            query = [("path", path), ("offset", str(len(content))), ("limit", str(_PART))]
            part, headers = self._send("/files/content", query)
            content += part
            if not part or len(content) >= int(headers["x-file-size"]):
                return bytes(content)

    def read_text(self, path: str) -> str:
        """Returns the text of a file."""
        return self.read_file(path).decode("utf-8")

    def item(self, namespace: Sequence[str], key: str) -> dict[str, Any] | None:
        """Returns an item of the Store, with its `value`."""
        return self._json("/store/items", [("namespace", ".".join(namespace)), ("key", key)])

    def search(
        self,
        namespace: Sequence[str],
        *,
        query: str | None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> list[dict[str, Any]]:
        """Returns the items of the Store at and below a namespace."""
        wanted: dict[str, Any] = {"namespace_prefix": list(namespace), "limit": limit, "offset": offset}
        if query is not None:
            wanted["query"] = query
        if filter is not None:
            wanted["filter"] = dict(filter)
        body, _ = self._send("/store/items/search", [], json.dumps(wanted).encode())
        return json.loads(body)["items"]

    def _json(self, path: str, query: Sequence[tuple[str, str]]) -> Any:
        return json.loads(self._send(path, query)[0])

    def _send(
        self, path: str, query: Sequence[tuple[str, str]], body: bytes | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        request = urllib.request.Request(f"{self._base}{path}?{urlencode(query)}", data=body, headers=headers)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                return response.read(), response.headers
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read(64 * 1024)) from None


def _refusal(status: int, body: bytes) -> ReadError:
    try:
        said = json.loads(body)
        return ReadError(status, str(said["code"]), str(said["detail"]))
    except (ValueError, KeyError, TypeError):
        return ReadError(status, "unknown", f"adjutant answered with status {status}")


def reader_of(url: str | None, read_access: Mapping[str, Any] | None) -> RunReader | None:
    """Returns the reader of a call; nothing if the call may read nothing, or the address of adjutant is not known."""
    url = url or os.environ.get("ADJUTANT_URL")
    return RunReader(url, read_access) if url and read_access else None
