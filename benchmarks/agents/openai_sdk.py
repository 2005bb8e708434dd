"""openai-agents as it is on PyPI, with a tool and a sub-agent; reward 1 if it ends with the result."""

import json
import os
import sys

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    Runner,
    function_tool,
    set_default_openai_api,
    set_tracing_disabled,
)

set_tracing_disabled(True)
set_default_openai_api("chat_completions")


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


row, model = json.load(sys.stdin), os.environ["OPENAI_MODEL"]
helper = Agent(name="helper", instructions="Answer in one word.", model=model)
tools = [add, helper.as_tool("ask_helper", "Asks a helper.")]
agent = Agent(name="solver", instructions="Use the tools.", model=model, tools=tools)
try:
    answer = Runner.run_sync(agent, row["prompt"], max_turns=3).final_output
    second = Runner.run_sync(helper, "Is this right? " + row["prompt"], max_turns=1).final_output
except (MaxTurnsExceeded, ModelBehaviorError):  # what the policy wrote is the cause
    answer = ""
print(json.dumps({"reward": float(str(answer) == row["answer"])}))
