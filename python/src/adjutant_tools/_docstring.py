"""Docstrings: the description of a function, and those of its parameters.

The styles of Google, NumPy and Sphinx (reST) are read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_GOOGLE = re.compile(r"^(Args|Arguments|Parameters|Params):\s*$")
_GOOGLE_END = re.compile(
    r"^(Returns?|Yields?|Raises?|Examples?|Notes?|Attributes|See Also|References|Warns?|Todo):\s*$"
)
_UNDERLINE = re.compile(r"^-{3,}\s*$")
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY = re.compile(r"^(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?$")
_REST = re.compile(r"^:(param|parameter|arg|argument|type|returns?|rtype|raises?|yields?)\b\s*([^:]*):\s*(.*)$")


def read(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Returns the description, and the descriptions of the parameters by their names."""
    text = inspect.getdoc(function) or ""
    about: list[str] = []
    parameters: dict[str, list[str]] = {}
    section = ""
    current: list[str] | None = None
    indent: int | None = None
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        bare = line.strip()
        following = lines[at + 1] if at + 1 < len(lines) else ""
        if line == bare and bare and _UNDERLINE.match(following):
            section = "numpy" if bare in ("Parameters", "Other Parameters", "Args", "Arguments") else "other"
            current, indent = None, None
            at += 2
            continue
        at += 1
        if line == bare and _GOOGLE.match(bare):
            section, current, indent = "google", None, None
            continue
        if line == bare and _GOOGLE_END.match(bare):
            section, current = "other", None
            continue
        field = _REST.match(bare)
        if field:
            section = "rest"
            kind, name, rest = field.groups()
            current = None
            if kind in ("param", "parameter", "arg", "argument") and name.split():
                current = parameters.setdefault(name.split()[-1], [])
                current.append(rest)
            continue
        if section == "":
            about.append(line)
        elif not bare:
            continue
        elif section == "google":
            depth = len(line) - len(line.lstrip())
            if depth == 0:
                section = ""
                about.append(line)
                continue
            indent = depth if indent is None else indent
            entry = _GOOGLE_ENTRY.match(bare) if depth <= indent else None
            if entry:
                current = parameters.setdefault(entry.group(1), [])
                current.append(entry.group(2))
            elif current is not None:
                current.append(bare)
        elif section == "numpy":
            entry = _NUMPY_ENTRY.match(line) if line == bare else None
            if entry:
                current = []
                for name in entry.group(1).split(","):
                    parameters[name.strip()] = current
            elif current is not None:
                current.append(bare)
        elif section == "rest" and current is not None:
            current.append(bare)
    joined = {name: " ".join(part for part in found if part) for name, found in parameters.items()}
    return "\n".join(about).strip(), {name: found for name, found in joined.items() if found}
