"""`scalerl report RUN` writes the page that `scalerl watch` serves, with the same JSON, as a file without a network."""

import json
import re

import pytest
from commands import call
from serving import ask, first_event, served
from watched import write_run

from scalerl.reading.pages.page import page, run_page
from scalerl.reading.pages.run import FollowedRun

pytest.importorskip("starlette", reason="the live page needs the extra `watch`")
pytest.importorskip("plotly", reason="the page needs the extra `report`")


def frozen_json(path):
    text = re.search(r'<script type="application/json" id="frozen">(.*?)</script>', path.read_text(), re.DOTALL)[1]
    return json.loads(text)


@pytest.fixture
def run(tmp_path):
    run = write_run(tmp_path / "runs/mine", rows=400, points=31)
    write_run(tmp_path / "runs/other", rows=60, points=12, seed=7)
    return run


def report(capsys, *words):
    code, _, error = call(capsys, "report", *words)
    assert code == 0, error


def test_the_file_and_the_server_have_the_same_page_of_a_run(run, tmp_path, capsys):
    report(capsys, run, "-o", tmp_path / "page.html")
    written = frozen_json(tmp_path / "page.html")["page"]
    with served(tmp_path / "runs") as address:
        mine = next(one["id"] for one in first_event(address)["runs"] if one["name"] == "mine")
        live = ask(address, f"/api/page/run/{mine}")
    for made in (written, live):
        (state,) = [block for block in made["blocks"] if block["kind"] == "state"]
        made["blocks"].remove(state)
    assert written == live and [block["kind"] for block in live["blocks"]] == [
        "cards", "figures", "table", "metrics", "terms", "fields",
    ]  # fmt: skip


@pytest.mark.parametrize(("state", "offered"), [("training", True), ("dead", False)])
def test_only_the_page_of_a_run_that_trains_offers_commands_that_follow_it(run, state, offered):
    followed = FollowedRun(run)
    followed.poll()
    followed.state = state
    assert ("scalerl follow" in json.dumps(run_page(followed, {}, []))) is offered


def test_a_run_without_a_forecast_has_its_points_and_the_reason(tmp_path):
    run = FollowedRun(write_run(tmp_path / "young", rows=20, points=3), "young")
    made = page(run, {"arithmetic": "a fit needs at least 5 points; got 3"})
    blocks = {block["kind"]: block for block in made["blocks"]}
    assert blocks["cards"]["cards"][1]["lines"] == ["None yet: a fit needs at least 5 points; got 3."]
    (figure,) = blocks["figures"]["figures"]
    assert figure["name"] == "curves" and len(figure["data"]) == 1 and len(figure["data"][0]["x"]) == 3
    assert "table" not in blocks


def test_several_run_directories_have_their_metrics_and_differences(run, tmp_path, capsys):
    report(capsys, run, tmp_path / "runs/other", "-o", tmp_path / "page.html")
    blocks = frozen_json(tmp_path / "page.html")["page"]["blocks"]
    figures = [one for block in blocks if block["kind"] == "figures" for one in block["figures"]]
    (metrics,) = [one for one in figures if one["name"] == "metrics"]
    loss = metrics["choices"]["Metric"]["learning: Loss"]["data"]
    assert [trace["name"] for trace in loss if trace["showlegend"]] == ["mine", "other"]
    (differing,) = [block for block in blocks if block.get("title") == "Differences between their configurations"]
    assert [[cell["text"] for cell in row] for row in differing["rows"]] == [["seed", "0", "7"]]
