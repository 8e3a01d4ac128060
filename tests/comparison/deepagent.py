"""The agent as a program of deepagents, and its conversation."""

import os
from pathlib import Path

os.environ["LANGSMITH_TRACING"] = "false"

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents.middleware.summarization import SummarizationMiddleware
from langchain.agents.middleware import TodoListMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.tools import StructuredTool, ToolException
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

import scenario


def _tool(name: str) -> StructuredTool:
    function = getattr(scenario, name)

    def checked(*args: object, **named: object) -> str:
        try:
            return function(*args, **named)
        except ValueError as error:
            raise ToolException(str(error)) from error

    checked.__annotations__ = function.__annotations__
    checked.__wrapped__ = function
    return StructuredTool.from_function(
        checked, name=name, description=scenario.DESCRIPTIONS[name], handle_tool_error=True
    )


def _subagent(spec: dict, tools: dict[str, StructuredTool]) -> dict:
    spec = dict(spec)
    if "tools" in spec:
        spec["tools"] = [tools[name] for name in spec["tools"]]
    if "response_format" in spec:
        # Without a strategy, deepagents asks some models for the format instead.
        spec["response_format"] = ToolStrategy(schema=spec["response_format"])
    return spec


def converse(provider: str, root: Path) -> None:
    """Has the whole conversation, with the model and the tools of this provider, in this directory."""
    model = ChatOpenAI(
        model="gpt-4.1-mini",
        base_url=f"{provider}/v1",
        api_key="none",
        use_responses_api=False,
        max_retries=0,
        temperature=0.25,
        max_tokens=4000,
    )
    backend = FilesystemBackend(root_dir=root, virtual_mode=True)
    tools = {name: _tool(name) for name in scenario.DESCRIPTIONS}
    agent = create_deep_agent(
        model=model,
        name="main",
        tools=list(tools.values()),
        system_prompt=scenario.COORDINATOR,
        subagents=[_subagent(spec, tools) for spec in scenario.SUBAGENTS],
        memory=list(scenario.MEMORY_FILES),
        skills=["/skills/"],
        backend=backend,
        middleware=[
            TodoListMiddleware(),
            SummarizationMiddleware(
                model,
                backend=backend,
                trigger=("messages", scenario.TRIGGER_MESSAGES),
                keep=("messages", scenario.KEPT_MESSAGES),
                trim_tokens_to_summarize=None,
            ),
        ],
        checkpointer=InMemorySaver(),
    )
    config = {"configurable": {"thread_id": "1"}}
    for text in scenario.TURNS:
        given = {"messages": [{"role": "user", "content": text}]}
        for _ in agent.stream(given, config, stream_mode="messages"):
            pass
