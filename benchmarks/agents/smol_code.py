"""smolagents as it is on PyPI: a CodeAgent, which writes Python; reward 1 if it ends with the result."""

import json
import os
import sys

from smolagents import CodeAgent, OpenAIServerModel
from smolagents.monitoring import LogLevel

row = json.load(sys.stdin)
model = OpenAIServerModel(
    os.environ["OPENAI_MODEL"], os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
agent = CodeAgent([], model, max_steps=3, verbosity_level=LogLevel.OFF)
print(json.dumps({"reward": float(str(agent.run(row["prompt"])) == row["answer"])}))
