"""OpenEnv servers over a real WebSocket: a counter that only the server sees, and one session at a time."""

import json
import socket
import threading

import pytest

from scalerl.core.plugins import PluginError
from scalerl.core.types import Prompt
from scalerl.training.config.data import CustomTask
from scalerl.training.prompts.sources import custom_rows
from scalerl.training.rewards.openenv import OpenEnv
from scalerl.training.rewards.turns import Reply, reply_to

BUSY = threading.Lock()


def serve_episode(socket):
    """Add the numbers of the actions to the seed; the reward of each is 0.25, and the episode ends at 9 or more."""
    total = 0
    if not BUSY.acquire(blocking=False):
        socket.send(json.dumps({"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full"}}))
        return
    try:
        for message in map(json.loads, socket):
            data, reward = message["data"], None
            if message["type"] == "reset":
                total = data["seed"]
            elif not isinstance(data.get("add"), int):
                socket.send(json.dumps({"type": "error", "data": {"code": "VALIDATION_ERROR", "errors": ["add"]}}))
                continue
            elif data["add"] < 0:
                socket.send(json.dumps({"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "negative"}}))
                continue
            else:
                total, reward = total + data["add"], 0.25
            answer = {"observation": {"total": total}, "reward": reward, "done": total >= 9}
            socket.send(json.dumps({"type": "observation", "data": answer}))
    finally:
        BUSY.release()


def answers(*data):
    """Return a handler that sends these texts, one for each message, then nothing more."""

    def handle(socket):
        left = iter(data)
        for _ in socket:
            if (text := next(left, None)) is not None:
                socket.send(text)

    return handle


FIRST = json.dumps({"type": "observation", "data": {"observation": {"total": 1}, "reward": None, "done": False}})
FULL = json.dumps({"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full"}})


@pytest.mark.parametrize(("texts", "message"), [
    ([], "did not answer within 0.5 s; see its log, or raise the parameter wait_s"),
    ([FULL], "has had no free session for 0.5 s; raise its max_concurrent_envs, or the parameter wait_s"),
    (['{"type": "observation", "data": null}'], 'answered reset with .*null.*; expected {"type": "observation"'),
    (['{"type": "observation", "data": {}}'], "answered reset with .*data.*; expected"),
    (['{"type": "observation"}'], "answered reset with .*; expected"),
    (["<html>"], "answered reset with '<html>'; expected"),
    ([FIRST], "did not answer within 0.5 s"),
    ([FIRST, '{"type": "observation", "data": null}'], "answered step with .*null.*; expected"),
])  # fmt: skip
def test_a_server_that_does_not_answer_as_expected_is_a_failure_with_its_name(texts, message):
    server = pytest.importorskip("websockets.sync.server", reason="websockets is not installed")
    with server.serve(answers(*texts), "127.0.0.1", 0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        environment = OpenEnv(f"ws://127.0.0.1:{serving.socket.getsockname()[1]}", wait_s=0.5)
        with pytest.raises(PluginError, match=f"OpenEnv server.* {message}"):
            environment.reply({"seed": 0}, [{"role": "assistant", "content": '{"add": 1}'}])
        serving.shutdown()


def test_a_port_that_accepts_and_stays_silent_is_a_failure():
    pytest.importorskip("websockets.sync.server", reason="websockets is not installed")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = OpenEnv(f"ws://127.0.0.1:{silent.getsockname()[1]}", wait_s=0.5)
        with pytest.raises(PluginError, match=r"did not answer within 0.5 s"):
            next(environment.rows(1))
    with pytest.raises(PluginError, match=r"the OpenEnv server .* ConnectionRefusedError"):
        next(environment.rows(1))


@pytest.fixture
def url():
    server = pytest.importorskip("websockets.sync.server", reason="websockets is not installed")
    with server.serve(serve_episode, "127.0.0.1", 0) as serving:
        threading.Thread(target=serving.serve_forever).start()
        yield f"ws://127.0.0.1:{serving.socket.getsockname()[1]}"
        serving.shutdown()


def test_an_episode_is_replayed_for_each_reply(url):
    params = {"url": url, "observation": "total"}
    rows, _ = custom_rows(CustomTask(function="scalerl.training.rewards.openenv:OpenEnv", params=params, prompts=5), 1)
    assert [row.prompt for row in rows] == ["0", "1", "2", "3", "4", "5"]
    prompt, said = Prompt("0", "", (1,), "", "OpenEnv", rows[2].columns), []
    texts = []
    for action in ('{"add": 4}', "four", '{"add": "4"}'):
        said.append({"role": "assistant", "content": f"<think>so</think>{action}"})
        (message,) = reply_to(prompt, said).messages
        said.append(message)
        texts.append(message["content"])
    assert texts == ["6", "Error: the action is no JSON object", 'Error: ["add"]']
    with pytest.raises(PluginError, match="answered step with EXECUTION_ERROR: negative"):
        reply_to(prompt, [*said, {"role": "assistant", "content": '{"add": -1}'}])
    with BUSY:  # another session
        waiting = threading.Thread(target=lambda: texts.append(reply_to(prompt, said[:1])))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(60)
    assert texts[-1].messages[0]["content"] == "6"
    assert reply_to(prompt, [*said, {"role": "assistant", "content": '{"add": 3}'}]) == Reply(
        (), 0.5, rewards=(0.25, 0.25)
    )
