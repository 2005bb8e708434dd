"""Two turns over plain HTTP and a reward that no other rollout has; standard library only."""

import json
import os
import random
import sys
import urllib.request

row = json.load(sys.stdin)
messages = [{"role": "user", "content": row["prompt"]}]
for turn in range(2):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as response:
        messages.append(json.load(response)["choices"][0]["message"])
    messages.append({"role": "user", "content": f"{turn}+2=<think>"})
print(json.dumps({"reward": random.randrange(1, 1 << 24)}))
