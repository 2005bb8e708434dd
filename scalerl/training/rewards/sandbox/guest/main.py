"""The first process in a sandbox. It reads one request and runs the role that the request names.

A sandbox sees this directory under its full name; the parent packages are empty.
"""

import sys

sys.path.insert(0, __file__.partition("/scalerl/")[0])

from scalerl.training.rewards.sandbox.guest.roles import main

main()
