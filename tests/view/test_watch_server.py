"""The server of the live page: access control, answers and errors."""

import os
import re
import socket
import time
from contextlib import ExitStack, contextmanager

import pytest
from serving import ask, connection_to, first_event, get, served
from simulated_study import TWO, write_study
from watched import add_rollouts, rollout, write_run

from scalerl.core.addresses import comes_from_this_user

pytest.importorskip("starlette", reason="the live page needs the extra `watch`")

from scalerl.core.addresses import is_loopback
from scalerl.reading.pages.server import Guard, equal_secrets


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("watch")
    write_run(root / "runs/mine", rows=300, points=31)
    add_rollouts(root / "runs/mine", [rollout(10, sample) for sample in range(4)])
    write_study(root / "studies/loo", TWO, seeds=1)
    return root


@pytest.fixture(scope="module")
def address(place):
    with served(cwd=place) as served_at:
        yield served_at


def test_the_runs_and_studies_of_a_directory_are_served_by_default(address):
    event = first_event(address)
    assert {run["name"] for run in event["runs"]} == {"mine", "loo/scalerl/seed-0", "loo/dapo/seed-0"}
    mine = next(run for run in event["runs"] if run["name"] == "mine")
    assert (mine["step"], mine["steps"], mine["points"], mine["study"]) == (300, 400, 31, "")
    assert mine["tasks"]["arithmetic"]["pass_rate"] == pytest.approx(0.581, abs=5e-4)
    assert [study["name"] for study in event["studies"]] == ["loo"]


def test_the_server_returns_the_page_the_metrics_and_the_rollouts_of_a_run(address):
    mine = next(run["id"] for run in first_event(address)["runs"] if run["name"] == "mine")
    run, page = f"/api/runs/{mine}", ask(address, f"/api/page/run/{mine}")
    blocks = {block["kind"]: block for block in page["blocks"]}
    metrics = {one["name"]: one for one in blocks["metrics"]["metrics"]}
    assert metrics["entropy"]["unit"] == "nats" and len(metrics["entropy"]["x"]) == 120
    assert "router_disagreement" not in metrics  # the model is dense
    tokens = ask(address, f"{run}/series?name=tokens&from=10&to=12")
    assert tokens["data"][-1]["y"] == [50_000.0 * step for step in range(9, 14)]
    curves = blocks["figures"]["figures"][0]
    points = next(trace for trace in curves["data"] if trace["mode"] == "markers" and len(trace["x"]) == 31)
    assert curves["name"] == "curves" and points["y"][0] == 0.2 and points["x"][-1] == 6e14
    assert blocks["fields"]["fields"]["steps"] == "400"
    assert [row["sample"] for row in ask(address, f"{run}/rollouts?kind=training&passed=false")["rows"]] == [1, 3]
    assert len(ask(address, f"{run}/group?kind=training&row=2")["rows"]) == 4
    for wrong, status in (
        ("/series?name=__class__", 400), ("/series?name=loss&from=x", 400), ("/rollouts?step=x", 400),
        ("/group?kind=../../etc&row=0", 400), ("/group?kind=training&row=99", 404), ("/nothing", 404),
    ):  # fmt: skip
        assert get(address, run + wrong)[0] == status, wrong
    for path in ("/api/runs/none/series?name=loss", "/api/page/run/none", "/api/page/none/x", f"/api/page/study/{mine}",
                 f"/api/page/compare/{mine},none", "/api/page/run/"):  # fmt: skip
        assert get(address, path)[0] == 404, path


def test_only_files_of_the_page_are_served(address):
    assert get(address, "/assets/app.js")[0] == get(address, "/assets/theme.js")[0] == 200
    for path in ("/assets/../server.py", "/assets/..%2fserver.py", "/assets/%2e%2e/guard.py", "/runs/mine/config.toml"):
        assert get(address, path)[0] == 404, path


def test_a_page_of_another_site_is_rejected(address):
    port = re.search(r":(\d+)", address)[1]
    for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "192.168.0.9", ""):
        assert get(address, "/api/stream", Host=name or " ")[0] == 421, name
    assert get(address, "/", Host=f"localhost:{port}")[0] == get(address, "/", Host=f"[::1]:{port}")[0] == 200
    assert get(address, "/", method="POST")[0] == 405
    status, headers, _ = get(address)
    policy = headers["content-security-policy"]
    assert status == 200 and "default-src 'none'" in policy and "script-src 'self';" in policy
    assert headers["x-content-type-options"] == "nosniff" and "access-control-allow-origin" not in headers


def test_scripts_of_the_page_do_not_write_html():
    """The security policy forbids inline scripts, and texts become text nodes."""
    from importlib.resources import files

    scripts = [file for file in (files("scalerl.reading.pages") / "assets").iterdir() if file.name.endswith(".js")]
    assert len(scripts) > 4
    for script in scripts:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", script.read_text()
        )


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_every_address_requires_its_token_once(place, host):
    """Other users of this machine reach its loopback interface too."""
    with served(place / "runs", "--host", host) as address:
        port, token = re.search(r":(\d+)/\?token=(\S+)$", address).groups()
        local = re.sub(r"//.*:", "//127.0.0.1:", address) if host == "0.0.0.0" else address
        assert len(token) >= 32
        for path in ("/", "/api/stream", "/api/page/run/x", "/plotly.js", "/assets/app.js", "/?token=wrong",
                     "/?token=", f"/?token={token[:-1]}", f"/?token={token}x"):  # fmt: skip
            assert get(local, path, Cookie="")[0] == 403, path
            assert get(local, path, Cookie=f"scalerl-watch-{port}=")[0] == 403, path
        status, headers, _ = get(local, f"/?token={token}", Cookie="")
        assert status == 303 and headers["location"] == "/"
        assert {"HttpOnly", "SameSite=strict", "Path=/"} < set(headers["set-cookie"].split("; "))
        cookie = headers["set-cookie"].partition(";")[0]
        assert get(local, "/", Cookie=cookie)[0] == 200
        assert get(local, f"/?token={token}", Cookie=cookie)[0] == 303  # the token leaves the address again
        assert get(local, "/", Cookie=cookie[:-1])[0] == 403
        assert get(local, "/", Cookie=cookie, Host="evil.example")[0] == 421


def test_a_click_in_a_page_of_another_site_leads_to_the_page(address):
    """A browser does not send a strict cookie in the redirect of such a request."""
    token = address.partition("token=")[2]
    status, headers, _ = get(address, f"/?token={token}", Cookie="", **{"Sec-Fetch-Site": "cross-site"})
    assert status == 200 and headers["refresh"] == "0; url=/" and token in headers["set-cookie"]


@contextmanager
def as_user(number):
    """Open sockets as another user; only root can."""
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)


def test_the_command_line_of_the_browser_holds_no_lasting_secret(place, tmp_path):
    """Every user of this machine can read it: what it has works once, and for the own user only."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened.tmp; mv {tmp_path}/opened.tmp {tmp_path}/opened\n')
    browser.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BROWSER", f"{browser} %s")
        with served(place / "runs", "--open") as address:
            while not (tmp_path / "opened").exists():
                time.sleep(0.02)
            opened = (tmp_path / "opened").read_text().strip()
            assert opened.partition("=")[0] == address.partition("=")[0] and opened != address
            path = "/?token=" + opened.partition("=")[2]
            if os.getuid() == 0:
                with as_user(65534):
                    stranger = connection_to(address)
                    stranger.connect()
                stranger.request("GET", path)
                assert stranger.getresponse().status == 403
                stranger.close()
            forged = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"}
            status, headers, _ = get(address, path, Cookie="", **forged)
            assert status == 303 and address.partition("token=")[2] in headers["set-cookie"]
            assert get(address, path, Cookie="")[0] == 403


def test_only_loopback_hosts_are_local_and_only_equal_secrets_match():
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "node-3"))
    assert equal_secrets("ä", "ä") and not equal_secrets("a", "b") and not equal_secrets("", "b")
    guard = Guard(None, "0.0.0.0", 1, "secret")
    assert guard.answers_to("10.0.0.7:1") and not guard.answers_to("evil.example:1") and not guard.answers_to("")


def test_half_requests_without_a_token_take_no_descriptors_from_the_page(tmp_path):
    """64 descriptors and 150 connections: before, the server wrote 52 MB of tracebacks and answered nobody."""
    with served(tmp_path, descriptors=64) as address, ExitStack() as opened:
        host, port = re.match(r"http://([^/]+):(\d+)/", address).groups()
        for _ in range(150):
            half = opened.enter_context(socket.create_connection((host, int(port)), timeout=20))
            half.sendall(b"GET / HT")
        assert get(address)[0] == 200


def test_a_connection_belongs_to_the_user_who_opened_it():
    families = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
    for host, family in families.items():
        with socket.create_server((host, 0), family=family) as server:
            ours = socket.create_connection(server.getsockname()[:2])
            accepted = server.accept()[0]
            assert comes_from_this_user(ours.getsockname(), accepted.getsockname())
            assert comes_from_this_user(accepted.getpeername(), accepted.getsockname())
            elsewhere = (ours.getsockname()[0], 1)
            assert not comes_from_this_user(elsewhere, accepted.getsockname())
            ours.close()
            accepted.close()
    assert not comes_from_this_user(("10.0.0.7", 5000), ("10.0.0.8", 8470))
