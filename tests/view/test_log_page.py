"""The live page about the log of another trainer, of `watch LOG` and of `follow LOG --page`."""

import http.client
import json
import re

import pytest
from commands import call
from serving import served
from test_follow_command import meanwhile
from test_following import EIGHT, append, level, lines

from scalerl.reading.curves.stop import stop_rule
from scalerl.reading.pages.following import FollowedLog

pytest.importorskip("starlette", reason="the live page needs the extra `watch`")
pytest.importorskip("plotly", reason="the live page needs the extra `watch`")

from scalerl.reading.pages.page import log_page
from scalerl.reading.pages.server import Pages
from scalerl.reading.pages.watcher import Watcher


def wide(first, last):
    """Return rows with rewards from -5 to 30."""
    return lines(first, last, low=-5, high=30)


def page_of(log):
    return json.loads(Pages(Watcher([], [log], looks=False), lambda: False).log_page([log.id]))


def texts(page):
    return json.dumps(page, ensure_ascii=False)


def test_a_young_log_shows_its_points_and_a_log_that_cannot_be_read_says_why(tmp_path):
    path = tmp_path / "run.jsonl"
    log = FollowedLog(path, EIGHT)
    log.look_again()
    assert "no such file" in texts(page_of(log))
    append(path, wide(1, 3))
    log.look_again()
    assert "3 of 5 points of training reward" in texts(page_of(log)) and "Curves" in texts(page_of(log))
    other = tmp_path / "other.jsonl"
    other.write_bytes(b"PK\x03\x04")
    bad = FollowedLog(other)
    bad.look_again()
    assert bad.state == "problem" and "is a zip archive" in texts(page_of(bad))
    assert log_page(log.snapshot()[0], None, "")["kind"] == "log"


def test_follow_serves_its_page_with_a_token_until_it_ends(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.jsonl"
    append(path, wide(1, 20))
    answers = []

    def get(place, address, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", int(re.search(r":(\d+)/", place)[1]), timeout=20)
        connection.request("GET", address, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer, text

    def visit():
        place = re.search(r"page at (\S+)", capsys.readouterr().out)[1]
        log = FollowedLog(path).id
        refused, _ = get(place, f"/api/page/log/{log}")
        admitted, _ = get(place, "/?" + place.partition("?")[2])
        cookie = admitted.headers["set-cookie"].partition(";")[0]
        shown, text = get(place, f"/api/page/log/{log}", Cookie=cookie)
        missing, _ = get(place, "/api/page/log/other", Cookie=cookie)
        answers.extend([refused.status, shown.status, missing.status, json.loads(text)["title"]])

    meanwhile(monkeypatch, visit)
    code, _, _ = call(capsys, "follow", path, "--devices", 8, "--page", "--port", 0)
    assert code == 130 and answers == [403, 200, 404, "run"]


def test_watch_takes_logs_beside_directories_and_says_what_it_follows(tmp_path):
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo/trainer_state.json").write_text(
        json.dumps({"log_history": [{"step": step, "reward": level(step), "step_time": 60.0} for step in range(1, 30)]})
    )
    append(tmp_path / "run.jsonl", wide(1, 30))
    with served("grpo", "run.jsonl", "--devices", 8, cwd=tmp_path) as address:
        connection = http.client.HTTPConnection("127.0.0.1", int(re.search(r":(\d+)/", address)[1]), timeout=20)
        connection.request("GET", "/" + address.rpartition("/")[2])
        cookie = connection.getresponse().headers["set-cookie"].partition(";")[0]
        connection.close()
        connection.request("GET", "/api/stream", headers={"Cookie": cookie})
        line = connection.getresponse().readline().decode()
        connection.close()
    assert {log["name"] for log in json.loads(line.removeprefix("data: "))["logs"]} == {"grpo", "run"}


def test_the_page_says_how_far_the_conditions_are(tmp_path):
    path = tmp_path / "run.jsonl"
    log = FollowedLog(path, EIGHT, rules=[stop_rule("falling"), stop_rule("ceiling identified")])
    log.look_again()
    assert "'falling' does not hold: fewer than 5 evaluations" in texts(page_of(log))
    append(path, wide(1, 80))
    log.look()
    (card,) = [
        card for block in page_of(log)["blocks"] if block["kind"] == "cards" for card in block["cards"]
        if card["title"] == "What follow waits for"
    ]  # fmt: skip
    assert len(card["lines"]) == 2 and "below its best" in card["lines"][0] and "ceiling" in card["lines"][1]
