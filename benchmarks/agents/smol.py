"""smolagents as it is on PyPI: a ToolCallingAgent with one tool; reward 1 if it ends with the result."""

import json
import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool
from smolagents.monitoring import LogLevel


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


row = json.load(sys.stdin)
model = OpenAIServerModel(
    os.environ["OPENAI_MODEL"], os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
agent = ToolCallingAgent([add], model, max_steps=3, verbosity_level=LogLevel.OFF)
print(json.dumps({"reward": float(str(agent.run(row["prompt"])) == row["answer"])}))
