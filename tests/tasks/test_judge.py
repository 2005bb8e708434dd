"""A judge over HTTP: a local fake that is slow, fails, and returns nonsense."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.types import Prompt
from scalerl.training.config import Scoring, read_config
from scalerl.training.config.run import Judge
from scalerl.training.rewards import judge
from scalerl.training.rewards.scoring import make_scorer

ASKED = Prompt("0" * 16, "What is 1+1?", (1,), "2", "judge", {"prompt": "What is 1+1?"})


@pytest.fixture
def fake():
    """Start a fake judge; `fake.replies` has what it does in turn: a text, a status, seconds, or bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append((body, self.headers.get("Authorization")))
            with server.lock:
                reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
                server.now += 1
                server.most = max(server.most, server.now)
            if isinstance(reply, float):
                time.sleep(reply)
                reply = "Score: 1"
            elif server.together:
                server.together.wait(60)  # for other requests, which must be sent at the same time
            with server.lock:
                server.now -= 1
            if isinstance(reply, int):
                self.send_error(reply)
                return
            content = {"choices": [{"message": {"content": reply}}]}
            data = reply if isinstance(reply, bytes) else json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.replies, server.asked, server.lock, server.now, server.most = [], [], threading.Lock(), 0, 0
    server.together = None
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(judge, "RETRY_WAIT_S", 0.0)


def scores(fake, replies, completions=("2",), **settings):
    fake.replies = list(replies)
    own = Judge(url=fake.url, **{"timeout_s": 5.0, "retries": 2, **settings})
    config = read_config(None, ["--model", "m", "--data", "p.jsonl", "--task", "judge"])
    scorer = make_scorer(config.data[0], Scoring(judge=own))
    try:
        pending = scorer.submit(ASKED, completions)
        return pending.finish(pending.futures), scorer
    finally:
        scorer.close()


@pytest.mark.parametrize(
    ("replies", "passed", "requests"),
    [
        (["<think>Score: 0</think> **Score:** 1"], True, 1),
        (["我不知道", "Score: 1"], True, 2),
        ([500, 429, "Score: 1"], True, 3),
        (["Score: 7", "Score: 0"], False, 2),
        ([b"[]", b"{}", "Score: 1"], True, 3),
    ],
)
def test_a_failure_or_nonsense_is_asked_again(fake, replies, passed, requests):
    (score,), _ = scores(fake, replies)
    assert (score.passed, score.counted, len(fake.asked)) == (passed, True, requests)


@pytest.mark.parametrize("reply", [500, b"\xff\xfe", 401, "Score: NaN"])
def test_what_fails_to_the_end_is_left_out_and_counted_never_wrong(fake, reply):
    (score,), scorer = scores(fake, [reply])
    assert not score.counted and "gave no score" in score.reason and scorer.failures.failed == 1
    assert len(fake.asked) == (1 if reply == 401 else 3)


def test_a_reply_after_the_time_limit_does_not_count(fake):
    (score,), _ = scores(fake, [2.0], timeout_s=0.2, retries=0)
    assert not score.counted
    (score,), _ = scores(fake, [2.0, "Score: 1"], timeout_s=0.5, retries=9)
    assert score.passed


def test_the_judge_gets_question_reference_and_the_text_after_the_thinking(fake, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k")
    template = "{question} | {answer} | {completion} | {other}"
    scores(fake, ["Score: 1"], ["<think>x</think> {answer}!"], template=template, key_variable="JUDGE_KEY")
    body, key = fake.asked[0]
    assert (
        body["messages"] == [{"role": "user", "content": "What is 1+1? | 2 | {answer}! | {other}"}]
        and key == "Bearer k"
    )


def test_equal_requests_are_sent_once_and_others_at_the_same_time(fake):
    fake.together = threading.Barrier(4)
    found, _ = scores(fake, ["Score: 1"], [str(n) for n in range(8)], concurrency=4)
    assert all(score.passed for score in found) and fake.most == 4
    again = judge.verify(ASKED, "3")
    assert again.passed and len(fake.asked) == 8


def test_requests_keep_the_rate_limit(fake, monkeypatch):
    pauses = []
    monkeypatch.setattr(judge, "time", SimpleNamespace(monotonic=lambda: 7.0, sleep=pauses.append))
    scores(fake, ["Score: 1"], ["1", "2", "3"], per_minute=300.0)
    assert sorted(pauses) == pytest.approx([0.0, 0.2, 0.4]) and len(fake.asked) == 3


def test_scores_of_another_scale_and_words_are_read(fake):
    (score,), _ = scores(fake, ["8/10"], pattern=r"(\d+)/10", bounds=(0.0, 10.0), pass_score=0.7)
    assert score.passed and score.reward == pytest.approx(0.6)
    (score,), _ = scores(fake, ["Verdict: YES"], pattern="yes|YES|no", words={"yes": 1.0, "no": 0.0})
    assert score.passed


@pytest.mark.parametrize(
    ("reply", "high", "score"),
    [
        ("Score: 1/10", 1, None),
        ("Score: 4 out of the 5 points", 10, None),
        ("Score: 85%", 1, None),
        ("Score: 7 (of 10)", 10, 7.0),
        ("Score: 7 on a scale from 1 to 100", 10, None),
        ("Score: 3,5", 10, 3.5),
        ("Score: 1,250", 10, None),
        ("[[7]]", 10, 7.0),
        (r"The mark is \boxed{7}.", 10, 7.0),
        ("Score: 6-7", 10, None),
        ("Score: 11", 10, None),
        ("An underscore: 7", 10, None),
    ],
)
def test_a_score_is_a_single_number_on_the_scale_of_the_bounds(reply, high, score):
    client = judge.Client(Judge(bounds=(0.0, float(high))))
    if score is None:
        with pytest.raises(ValueError, match="score"):
            client._read(reply)
    else:
        assert client._read(reply) == score


@pytest.mark.parametrize(
    "words",
    [["--scoring.judge.pattern", "("], ["--scoring.judge.bounds", "[1, 0]"], ["--scoring.judge.template", "x"]],
)
def test_settings_that_cannot_work_are_errors(words):
    with pytest.raises(ConfigError, match="judge"):
        read_config(None, ["--model", "m", "--data", "p.jsonl", "--task", "judge", *words])
