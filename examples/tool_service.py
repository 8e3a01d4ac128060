"""A service of tools in Python: plain functions with type hints.

    pip install ./python
    python examples/tool_service.py

Its tools are those of `[tool_servers.crm]` in docs/tool-servers.md.
"""

import sys

from adjutant_tools import ToolContext, ask, progress, serve, tool, update

CUSTOMERS = {"Ada": "ada@example.org", "Grace": "grace@example.org"}


@tool(idempotent=True)
def search(name: str, limit: int = 5) -> list[str]:
    """Searches the customers.

    Args:
        name: A part of the name.
        limit: The most customers to return.
    """
    progress({"searching": name})
    return [customer for customer in CUSTOMERS if name.lower() in customer.lower()][:limit]


def send_email(to: str, body: str, context: ToolContext) -> str:
    """Sends an email to a customer."""
    if to not in CUSTOMERS:
        raise ValueError(f"there is no customer {to}")
    if not ask(f"Send this to {to}?\n\n{body}", bool):
        return "The email was not sent, a human said no."
    update({"last_email": {"to": to, "by": context.agent_name}})
    return f"Sent to {CUSTOMERS[to]}."


if __name__ == "__main__":
    serve([search, send_email], port=int(sys.argv[1]) if len(sys.argv) > 1 else 9400)
