"""Calls an agent's function with a row and the endpoint, and prints its reward: the program of `data.function`.

A script of its own, so that the function's process imports little else.
"""

import asyncio
import inspect
import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4]))  # that of scalerl, which may be on no other path

from scalerl.core.errors import ScalerlError
from scalerl.core.plugins import call, load_function


def main(name: str) -> int:
    """Call the function `name`, package.module:function; return the exit code."""
    row = json.load(sys.stdin)
    try:
        function = load_function(name, "data.function")
        returned = call(function, name, row, os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
        if inspect.iscoroutine(returned):
            returned = call(asyncio.run, name, returned)
    except ScalerlError as error:
        print(f"{error}\n{getattr(error, 'trace', '')}", file=sys.stderr)
        return 1
    value = returned if isinstance(returned, dict) else {"reward": returned}
    # what the function printed may have no line break at its end
    print("\n" + json.dumps(value, default=_plain), flush=True)
    return 0


def _plain(value: object) -> object:
    """Return numbers of numpy or torch as those of Python, and anything else as text."""
    convert = getattr(value, "tolist", None)
    return convert() if callable(convert) else repr(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
