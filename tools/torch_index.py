"""Says at once whether the package indexes that pip was told to use answer, and whether they have torch.

pip retries an index that does not answer for minutes, and then installs torch with its CUDA libraries from PyPI.
"""

import os
import sys
import urllib.error
import urllib.parse
import urllib.request

VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
"""Environment variables of pip with addresses of indexes, separated by spaces."""

TIMEOUT_S = 10.0
"""Seconds to wait for an answer."""


def main() -> int:
    """Print what is wrong with each index; return 1 if one does not answer."""
    failed = False
    for variable in VARIABLES:
        for url in os.environ.get(variable, "").split():
            fails, problem = check(url)
            if problem:
                print(f"{variable}: {shown(url)} {problem}", file=sys.stderr)
            failed = failed or fails
    return int(failed)


def check(url: str) -> tuple[bool, str]:
    """Return whether an index does not answer, and what is wrong with it; empty if it has torch."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or "@" in parts.netloc:  # a directory, or a password that pip knows
        return False, ""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/torch/", timeout=TIMEOUT_S) as answer:
            page = answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False, LACKS
        return error.code >= 500, f"answers with {error.code} {error.reason}; {CURE}" if error.code >= 500 else ""
    except OSError as error:  # URLError is one
        reason = getattr(error, "reason", error)
        if "CERTIFICATE" in str(reason):  # pip may trust more authorities
            return False, ""
        return True, f"does not answer ({reason}); {CURE}"
    return False, "" if "torch-" in page else LACKS


LACKS = "answers but has no torch: pip takes torch from another index, on Linux with its CUDA libraries (some GB)"
CURE = "pip would retry for minutes. Unset the variable to install from PyPI, or give the address of a mirror"


def shown(url: str) -> str:
    """Return an address without a password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


if __name__ == "__main__":
    raise SystemExit(main())
