"""pydantic-ai as it is on PyPI, streamed, with a tool; reward 1 if it ends with the result."""

import asyncio
import json
import os
import sys

from pydantic_ai import Agent, ModelRetry, UnexpectedModelBehavior, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel(os.environ["OPENAI_MODEL"]), system_prompt="Use the tool.", retries=2)


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    if abs(a) > 100:
        raise ModelRetry("too large")
    return a + b


async def solve(row):
    """Return the reward."""
    try:
        async with agent.run_stream(row["prompt"], usage_limits=UsageLimits(request_limit=4)) as first:
            answer = await first.get_output()
        again = await agent.run("And once more?", message_history=first.all_messages())
    except (UnexpectedModelBehavior, UsageLimitExceeded):  # what the policy wrote is the cause
        return 0.0
    return float(row["answer"] in (answer, again.output))


print(json.dumps({"reward": asyncio.run(solve(json.load(sys.stdin)))}))
