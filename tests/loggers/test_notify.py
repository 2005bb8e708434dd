"""Notifications of a run to a command or a webhook; their failures do not disturb the run."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from logged_runs import play, point, row

from scalerl.config import read_config
from scalerl.loggers.follow import Followers
from scalerl.loggers.notify import NotSent, post, run_command


@pytest.fixture
def server():
    """A webhook: its address and the bodies that it received; /broken returns 500."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/broken" else 204)
            self.end_headers()

        def log_message(self, *words):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", bodies
    http.shutdown()
    thread.join()
    http.server_close()


def followers_of(path, output, **notify):
    config = read_config(None, {f"notify.{key}": value for key, value in notify.items()})
    return Followers(config, path, {}, output.append)


def test_a_webhook_is_notified_once_of_an_identified_forecast_and_of_the_end(server, tmp_path):
    address, bodies = server
    output = []
    followers = followers_of(tmp_path, output, webhook=address)
    play(followers, 0, 400, every=20)  # the law's ceiling is 0.6, and 400 steps see most of the climb
    followers.ended("finished", "trained 400 updates (0 skipped)")
    followers.close()
    assert output == []
    assert [body["event"] for body in bodies] == ["identified", "finished"]
    last = bodies[-1]
    assert (last["run"], last["step"], last["task"]) == (tmp_path.name, 400, "arithmetic")
    assert last["message"] == "trained 400 updates (0 skipped)"
    assert last["pass_rate"] == point(400).pass_rate
    twice = last["forecast"][0]
    assert twice[1] < twice[0] < twice[2]
    assert last["advice"] and last["text"].endswith(last["advice"])


def test_a_fall_is_notified_once_also_if_the_run_is_resumed(server, tmp_path):
    address, bodies = server
    rates = [0.2, 0.3, 0.38, 0.44, 0.5, 0.55, 0.6, 0.62, 0.64, 0.65, 0.3, 0.25, 0.2, 0.2]
    points = [point(10 * n, rate=rate) for n, rate in enumerate(rates)]
    for first, last in ((10, 12), (12, 14)):
        followers = followers_of(tmp_path, [], webhook=address, on="falling")
        for n in range(first, last):
            followers.step(row(10 * n + 1))
            followers.evaluated(points[: n + 1])
        followers.ended("stopped", "")
        followers.close()
    assert [body["event"] for body in bodies] == ["falling"]
    assert bodies[0]["message"].startswith("the held-out metric of arithmetic has fallen by 0.")


def test_a_command_gets_the_message_on_its_standard_input_and_in_its_environment(tmp_path):
    out = tmp_path / "out"
    script = "import os, sys; open(sys.argv[1], 'w').write(os.environ['SCALERL_EVENT'] + '\\n' + sys.stdin.read())"
    output = []
    followers = followers_of(tmp_path, output, command=[sys.executable, "-c", script, str(out)])
    followers.step(row(7))
    followers.ended("failed", "the loss was not finite; $(touch gone)")
    followers.close()
    event, _, body = out.read_text().partition("\n")
    assert output == []
    assert event == "failed"
    assert json.loads(body)["message"] == "the loss was not finite; $(touch gone)"
    assert json.loads(body)["step"] == 7 and json.loads(body)["forecast"] is None


def test_stopped_runs_and_unselected_events_send_no_notification(server, tmp_path):
    address, bodies = server
    for state, on in (("stopped", ["finished", "failed"]), ("finished", ["failed"]), ("failed", ["failed"])):
        followers = followers_of(tmp_path, [], webhook=address, on=on)
        followers.ended(state, "")
        followers.close()
    assert [body["event"] for body in bodies] == ["failed"]


@pytest.mark.parametrize("words, problem", [
    (("no-such-program",), "cannot be started (No such file or directory)"),
    ((sys.executable, "-c", "import sys; sys.exit('no mail today')"), "ended with exit code 1: no mail today"),
])  # fmt: skip
def test_a_failing_command_is_reported_with_its_reason(words, problem):
    with pytest.raises(NotSent) as error:
        run_command(words, dict.fromkeys(("event", "run", "path", "step", "text", "advice"), ""), 30.0)
    assert problem in str(error.value)


def test_a_command_that_takes_too_long_is_killed_with_its_children():
    words = ("sh", "-c", "sleep 60 & wait")
    began = time.monotonic()
    with pytest.raises(NotSent, match=r"took over 0\.2 s and was killed"):
        run_command(words, dict.fromkeys(("event", "run", "path", "step", "text", "advice"), ""), 0.2)
    assert time.monotonic() - began < 10


def test_a_failing_webhook_is_reported_without_its_address(server, tmp_path):
    address, bodies = server
    with pytest.raises(NotSent, match="did not accept the message") as error:
        post(f"{address}/broken", {"token": 1}, 10.0)
    assert "500" in str(error.value) and "127.0.0.1" not in str(error.value)
    assert bodies == [{"token": 1}]
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NotSent, match="timed out"):
        post(f"http://127.0.0.1:{silent.getsockname()[1]}", {}, 0.2)
    output = []
    followers = followers_of(tmp_path, output, webhook="http://127.0.0.1:9/nobody")
    followers.ended("finished", "")
    followers.close()
    assert output[0].startswith("notify: NotSent: the webhook did not accept the message")
