"""An agent: a program of yours that talks to the policy over HTTP. A tiny random model learns to use its table.

python examples/own_agent.py [STEPS]     # one program for each rollout: 3 to 5 s a step on two cores
python examples/own_agent.py rows > rows.jsonl
scalerl train --model MODEL --data.kind agent --data.function own_agent:follow --data.path rows.jsonl
"""

import json
import random
import sys
import tempfile
import urllib.request
from pathlib import Path

from tiny_model import QUICK, show, tiny_model

LETTERS = "abcd"


def follow(row, base_url, api_key):
    """Let the policy follow a chain through a table that it does not see: "dab>" with b -> c is solved by b, then c.

    Args:
        row: A row of the file.
        base_url: Address of the endpoint, as clients of OpenAI take it.
        api_key: Key of this rollout.

    Returns:
        The reward, and numbers whose means are in metrics.jsonl as environment/NAME.
    """
    messages = [{"role": "user", "content": row["prompt"]}]
    for turn, letter in enumerate(row["chain"]):
        answer = ask(messages, base_url, api_key)
        if answer["content"] != letter:
            return {"reward": turn / len(row["chain"]), "look_ups": turn}
        messages += [answer, {"role": "user", "content": row["chain"][min(turn + 1, len(row["chain"]) - 1)] + ">"}]
    return {"reward": 1.0, "look_ups": turn}


def ask(messages, base_url, api_key):
    """Return the next message of the policy; any client of OpenAI does the same."""
    request = urllib.request.Request(
        f"{base_url}/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def rows(count):
    """Return rows as JSON lines."""
    rng = random.Random(0)
    chains = [rng.sample(LETTERS, 2) for _ in range(count)]
    made = [{"prompt": "".join(rng.choices(LETTERS, k=4)) + chain[0] + ">", "chain": chain} for chain in chains]
    return "".join(json.dumps(row) + "\n" for row in made)


SETTINGS = {
    "recipe__prompts_per_step": 4,
    "recipe__generations_per_prompt": 8,
    "recipe__length": {"kind": "none", "max_tokens": 3},  # of each turn
    "recipe__truncated": "keep",  # so that the model learns to end its turns
    "recipe__optimizer": {"learning_rate": 4e-3, "warmup_steps": 5},
}

if __name__ == "__main__":
    if sys.argv[1:] == ["rows"]:
        sys.exit(print(rows(200), end=""))
    import scalerl

    steps = {"steps": int(sys.argv[1])} if len(sys.argv) > 1 else {}
    path = Path(tempfile.mkdtemp(prefix="rows-")) / "rows.jsonl"
    path.write_text(rows(200))
    data = {"kind": "agent", "function": "own_agent:follow", "path": str(path), "max_prompt_tokens": 24}
    run = scalerl.train(model=tiny_model(LETTERS + ">"), data=data, progress=False, **QUICK | SETTINGS | steps)
    print("Each rollout is a program that asks the policy for each letter over HTTP. It first learns to end a turn.")
    show(run, ["reward", "pass_rate", "turns"])
    print(run)
