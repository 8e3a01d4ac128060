"""The results of calls, so that a call is made once however often it is sent."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

RUNNING = "running"


class Results:
    """Keeps results in memory: the newest ones, for a time."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._kept: OrderedDict[str, tuple[float, str, dict[str, Any] | None]] = OrderedDict()

    def find(self, key: str) -> tuple[str, dict[str, Any] | None] | None:
        """Returns the fingerprint and the answer of a call; no answer if it was begun and never ended."""
        found = self._kept.get(key)
        if found is None or found[0] < time.time():
            return None
        return found[1], found[2]

    def begin(self, key: str, fingerprint: str) -> None:
        """Records that a call begins."""
        self._put(key, fingerprint, None)

    def end(self, key: str, fingerprint: str, answer: dict[str, Any]) -> None:
        """Records the answer of a call."""
        self._put(key, fingerprint, answer)

    def forget(self, key: str) -> None:
        """Forgets a call, which may then be made again."""
        self._kept.pop(key, None)

    def close(self) -> None:
        """Closes what is open."""

    def _put(self, key: str, fingerprint: str, answer: dict[str, Any] | None) -> None:
        self._kept[key] = (time.time() + self._seconds, fingerprint, answer)
        self._kept.move_to_end(key)
        now = time.time()
        while self._kept:
            oldest = next(iter(self._kept))
            if len(self._kept) <= self._most and self._kept[oldest][0] >= now:
                break
            self._kept.popitem(last=False)


class StoredResults(Results):
    """Keeps results in a SQLite file, so that they outlive the service."""

    def __init__(self, path: str | Path, most: int, seconds: float) -> None:
        super().__init__(most, seconds)
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("pragma synchronous = full")
        self._database.execute(
            "create table if not exists calls "
            "(key text primary key, fingerprint text not null, answer text, expires real not null)"
        )
        self._database.execute("create index if not exists calls_expires on calls (expires)")

    def find(self, key: str) -> tuple[str, dict[str, Any] | None] | None:
        with self._lock:
            row = self._database.execute(
                "select fingerprint, answer from calls where key = ? and expires >= ?", (key, time.time())
            ).fetchone()
        return None if row is None else (row[0], None if row[1] is None else json.loads(row[1]))

    def forget(self, key: str) -> None:
        with self._lock:
            self._database.execute("delete from calls where key = ?", (key,))

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _put(self, key: str, fingerprint: str, answer: dict[str, Any] | None) -> None:
        now = time.time()
        text = None if answer is None else json.dumps(answer)
        with self._lock:
            self._database.execute(
                "insert into calls values (?, ?, ?, ?) on conflict (key) do update set "
                "fingerprint = excluded.fingerprint, answer = excluded.answer, expires = excluded.expires",
                (key, fingerprint, text, now + self._seconds),
            )
            self._database.execute(
                "delete from calls where expires < ? or key in "
                "(select key from calls order by expires desc limit -1 offset ?)",
                (now, self._most),
            )
