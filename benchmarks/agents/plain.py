"""A conversation of four turns over plain HTTP, as fast as it can; standard library only."""

import json
import os
import sys
import urllib.request

row = json.load(sys.stdin)
messages = [{"role": "user", "content": row["prompt"]}]
for turn in range(4):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as response:
        messages.append(json.load(response)["choices"][0]["message"])
    messages.append({"role": "user", "content": f"And {turn}?"})
print(json.dumps({"reward": len(messages[1]["content"]) % 2}))
