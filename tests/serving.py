"""`scalerl watch` in a separate process, and requests to it."""

import encodings.idna  # noqa: F401 - before a test opens a socket as a user who may not read Python's files
import http.client
import json
import os
import re
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextmanager
def served(*words, cwd=None, descriptors=None):
    """Start `scalerl watch` on a free port; yield the address that it prints, with its token.

    It may open `descriptors` files, and must say nothing more than how it ended.
    """
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "scalerl.cli", "watch", "--port", "0", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=descriptors and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))),
    )
    try:
        output = ""
        while "Ctrl-C" not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        yield re.search(r"watch at +(\S+)", output)[1]
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
        assert process.returncode == 130 and "Error" not in rest, rest
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def connection_to(address):
    host, port = re.match(r"http://\[?([^/]+?)\]?:(\d+)/", address).groups()
    return http.client.HTTPConnection(host, int(port), timeout=20)


def key_of(address):
    """Return the header that a browser sends after its first visit to an address with a token."""
    port, token = re.match(r"http://[^/]+:(\d+)/\?token=(\S+)", address).groups()
    return {"Cookie": f"scalerl-watch-{port}={token}"}


def get(address, path="/", method="GET", **headers):
    """Return status, headers and body of a request, with the cookie of the address unless another one is given."""
    connection = connection_to(address)
    try:
        connection.putrequest(method, path, skip_host=bool(headers.get("Host")))
        for name, value in {**key_of(address), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def ask(address, path):
    """Return the JSON of a path."""
    status, _, body = get(address, path)
    assert status == 200, body
    return json.loads(body)


def first_event(address):
    """Return the first event of the stream, which has everything."""
    connection = connection_to(address)
    try:
        connection.request("GET", "/api/stream", headers=key_of(address))
        line = connection.getresponse().readline().decode()
    finally:
        connection.close()
    assert line.startswith("data: ")
    return json.loads(line.removeprefix("data: "))
