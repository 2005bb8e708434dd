"""`python -m scalerl.cli`: the same as the command `scalerl`."""

import sys

from scalerl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
