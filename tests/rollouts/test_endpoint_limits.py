"""Limits of the endpoint of agents: connections, the time of a request, long texts, turns, and whose time counts."""

import http.client
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from agent_parts import chat, engine_of, finish, post, refusal, rollout_of, submit, user

from scalerl.training.engines.agents import connections
from scalerl.training.engines.agents.connections import EndpointServer
from scalerl.training.models.text import TokenText


def said(prompt):
    return "yes"


def address(url):
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    return host, int(port)


def begun(url, text=b"POST /v1/chat/comp"):
    """Return a connection with a part of a request."""
    connection = socket.create_connection(address(url), timeout=20)
    connection.sendall(text)
    return connection


def head(key, length):
    words = f"Host: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n"
    return f"POST /v1/chat/completions HTTP/1.1\r\n{words}".encode()


def status(connection):
    """Read an answer; return its status."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    response.close()
    return response.status


def with_server(run, most, **changes):
    """Return the rollout of a program over a server with at most `most` connections."""
    engine = engine_of(said, run, **changes)
    engine._endpoints._server = EndpointServer(most)
    submit(engine)
    return finish(engine)[0]


HALVES = {
    "half a request line": b"POST /v1/chat/comp",
    "half of a body without a key": head("sk-none", 1000) + b'{"model"',
    "half of a body in chunks": head("sk-none", 9).replace(b"Content-Length: 9", b"Transfer-Encoding: chunked")
    + b"9\r",
    "a whole request without a key": head("sk-none", 2) + b"{}",
    "an upgrade": b"GET /v1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_requests_that_are_not_whole_make_room_for_those_of_programs(half):
    def run(url, key, row):
        held = [begun(url, half) for _ in range(20)]
        for number in range(3):
            chat(url, key, [user(f"turn {number}")])
        held += [begun(url, half) for _ in range(20)]
        chat(url, key, [user("the last")])
        for connection in held:
            connection.close()
        return 1.0

    assert with_server(run, most=4).outcome.turns == 4


def test_half_a_body_with_a_key_makes_room_and_a_request_that_waits_for_the_policy_does_not():
    def run(url, key, row):
        body = json.dumps({"model": "policy", "messages": [user("waits")]}).encode()
        waits = begun(url, head(key, len(body)) + body)
        assert asked.wait(20)
        held = [begun(url, head(key, 1000)) for _ in range(20)]
        assert held[0].recv(1) == b""  # closed, because others came
        free.set()
        assert status(waits) == 200
        for connection in (waits, *held):
            connection.close()
        return 1.0

    asked, free = threading.Event(), threading.Event()

    def wait(prompt):
        asked.set()
        return "yes" if free.wait(20) else "late"

    engine = engine_of(wait, run)
    engine._endpoints._server = EndpointServer(4)
    submit(engine)
    assert finish(engine)[0].outcome.turns == 1


@pytest.mark.parametrize("half", [HALVES[name] for name in HALVES if name.startswith("half")])
def test_a_request_that_is_not_whole_in_time_is_closed(monkeypatch, half):
    monkeypatch.setattr(connections, "ENDPOINT_REQUEST_S", 0.05)

    def run(url, key, row):
        with begun(url, half) as connection:
            assert status(connection) in (401, 408) and connection.recv(1) == b""
        return 1.0

    assert "never called" in with_server(run, most=100).outcome.problem


def test_the_idle_connection_of_a_program_stays_open_and_its_next_request_has_a_time_too(monkeypatch):
    def run(url, key, row):
        body = json.dumps({"model": "policy", "messages": [user("x")]}).encode()
        with begun(url, head(key, len(body)) + body) as connection:
            assert status(connection) == 200
            monkeypatch.setattr(connections, "ENDPOINT_REQUEST_S", 0.05)
            with begun(url) as other:  # which was opened later, and is closed
                assert status(other) == 408
            monkeypatch.undo()
            connection.sendall(head(key, len(body)) + body)
            assert status(connection) == 200
            monkeypatch.setattr(connections, "ENDPOINT_REQUEST_S", 0.05)
            connection.sendall(head(key, len(body)))
            assert status(connection) == 408
        return 1.0

    assert with_server(run, most=100).outcome.turns == 2


SERVER = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
from agent_parts import engine_of, submit
from scalerl.training.engines.agents.connections import EndpointServer
def run(url, key, row):
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(int(sys.argv[3]))]
    print(url, key, flush=True)
    sys.stdin.readline()
    for file in files:
        os.close(file)
    print("closed", flush=True)
    sys.stdin.readline()
    os._exit(0)
engine = engine_of(lambda prompt: "yes", run)
engine._endpoints._server = EndpointServer(int(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
submit(engine)
while True:
    engine.poll(0.02)
"""


@pytest.mark.slow
def test_a_process_without_a_descriptor_says_so_once_and_goes_on_when_there_is_one():
    """The server may have 400 connections, which are more than its 256 descriptors; the program takes all others."""
    command = [sys.executable, "-c", SERVER, str(Path(__file__).parents[1]), "400", "200"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    url, key = server.stdout.readline().split()
    held = [begun(url) for _ in range(400)]
    server.stdin.write("\n")
    server.stdin.flush()
    assert server.stdout.readline() == "closed\n"
    chat(url, key, [user("x")])
    _, errors = server.communicate("\n", timeout=60)
    for connection in held:
        connection.close()
    assert errors == connections.NO_DESCRIPTORS + "\n"


# -------------------------------------------------------------------------------------------------------- long texts


class Watched:
    """A tokenizer that tells a function of each text before it encodes it."""

    def __init__(self, tokenizer, told):
        self._tokenizer, self._told = tokenizer, told

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, texts, **options):
        self._told(texts if isinstance(texts, str) else "".join(texts))
        return self._tokenizer(texts, **options)


def watched(run, told, **changes):
    engine = engine_of(said, run, **changes)
    engine._endpoints.text = TokenText(Watched(engine.inner.tokenizer, told), (engine.inner.end,))
    return engine


LONG = {
    "one message": {"messages": [user("x" * 200_000)]},
    "empty messages": {"messages": [user("")] * 20_000},
    "a tool": {"messages": [user("x")], "tools": [{"type": "function", "function": {"name": "x" * 200_000}}]},
    "a call": {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "x" * 200_000}}]}, user("x")]},
}


def test_a_text_that_is_too_long_in_bytes_is_refused_before_it_is_encoded():
    def run(url, key, row):
        for name, body in LONG.items():
            with refusal(url, key, body) as message:
                assert "allowed:" in message and "(data.max_prompt_tokens)" in message, (name, message)
        with refusal(url, key, {"prompt": "x" * 200_000}, path="/completions") as message:
            assert "200,000 bytes of text; allowed: 12,000" in message  # 1,000 tokens; <|im_start|> has 12 bytes
        with refusal(url, key, {"messages": [user("y" * 4_000)]}) as message:
            assert "this conversation has 40" in message and "tokens; allowed: 1000" in message
        chat(url, key, [user("z" * 100)])
        return 1.0

    encoded = []
    engine = watched(run, lambda text: encoded.append(len(text)), max_prompt_tokens=1_000)
    submit(engine)
    end = finish(engine)[0].outcome
    assert (end.problem, end.metrics["refused"], end.turns) == ("", 6, 1) and max(encoded) < 4_100


def test_a_long_text_that_is_encoded_keeps_no_other_rollout_waiting():
    begins, goes_on = threading.Event(), threading.Event()

    def told(text):
        if "long" in text:
            begins.set()
            assert goes_on.wait(20)

    def run(url, key, row):
        if row["long"]:
            chat(url, key, [user("long")])
        else:
            assert begins.wait(20)
            chat(url, key, [user("hi")])
            goes_on.set()
        return 1.0

    engine = watched(run, told)
    for number, long in enumerate((True, False)):
        submit(engine, row={"long": long}, first=number)
    assert [rollout.outcome.problem for rollout in finish(engine).values()] == ["", ""]


# ------------------------------------------------------------------------------------------------------------- turns


def test_of_20_requests_at_once_only_as_many_are_sampled_as_the_rollout_has_turns():
    def run(url, key, row):
        def ask(number):
            answers.append(post(url, key, {"messages": [user(f"question {number}")]}))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 1.0

    answers = []
    rollout, engine = rollout_of(said, run, turns=3, polls=20)
    assert sorted(status for status, _ in answers) == [200] * 3 + [400] * 17
    messages = {answer["error"]["message"] for status, answer in answers if status == 400}
    assert messages == {"this rollout had its 3 turns (data.turns)"}
    assert len(engine.inner.prompts) == rollout.outcome.turns == 3


def test_a_request_that_is_refused_takes_no_turn():
    def run(url, key, row):
        for _ in range(3):
            with refusal(url, key, {"messages": [user("x" * 20_000)]}):
                pass
        for text in ("one", "two"):
            chat(url, key, [user(text)])
        with refusal(url, key, {"messages": [user("three")]}) as message:
            assert "2 turns" in message
        return 1.0

    assert rollout_of(said, run, turns=2, max_prompt_tokens=1_000)[0].outcome.turns == 2
