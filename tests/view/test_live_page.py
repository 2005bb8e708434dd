"""The live page in a real browser: updates, layout at any width, keyboard control, and escaping of texts."""

import os
from contextlib import ExitStack

import pytest
from browser import CHROMIUM, contrast, luminance, opened_page
from serving import served
from simulated_study import TWO, write_study
from watched import ABSENT, HOSTILE, add_event, add_points, add_rollouts, add_steps, rollout, write_run

from scalerl.core.status import Heartbeat
from scalerl.reading.curves import Curve, fit, forecast
from scalerl.training.loop.catalog import METRICS
from scalerl.training.loop.warnings import truncation

pytest.importorskip("starlette", reason="the live page needs the extra `watch`")
pytest.importorskip("plotly", reason="the live page needs the extra `watch`")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]

NAME = HOSTILE.replace("/", "⁄")
"""A name that a directory may have."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("live")
    write_run(root / "runs/one", rows=300, points=31)
    add_rollouts(root / "runs/one", [rollout(step, sample) for step in (10, 20) for sample in range(4)])
    hostile = {"prompt": HOSTILE, "completion": f"a⟦{HOSTILE}⟧", "answer": HOSTILE, "reason": HOSTILE, "task": HOSTILE}
    detail = {"text": [HOSTILE], "staleness": [0], "log_ratio": [None], "left_out": 0}
    rows = [rollout(30, 1, token_detail=None, **hostile), rollout(30, 3, token_detail=detail, **hostile)]
    add_rollouts(root / "runs/one", rows, "rollouts.jsonl")
    trouble = write_run(root / "runs" / NAME, rows=100, points=11, steps=500)
    add_steps(trouble, range(101, 131), truncation_rate=0.13)
    for key, text in truncation([{"truncation_rate": 0.13}]).items():
        add_event(trouble, 130, "warning", key, text)
    write_run(root / "runs/two", rows=60, points=7, seed=7)
    write_study(root / "studies/loo", TWO, seeds=1)
    with ExitStack() as beating:
        for run in (root / "runs/one", trouble, root / "runs/two"):
            beating.enter_context(Heartbeat(run, phase="training"))
        yield root


@pytest.fixture(scope="module")
def live(place):
    with served(cwd=place) as address, opened_page(address) as page:
        page.address = address.partition("?")[0]  # the browser has the cookie now
        page.tab.wait_for_selector("table.runs tbody tr")
        yield page


@pytest.fixture
def tab(live):
    """The list of runs in a wide window with a light theme, with all runs fitted."""
    live.tab.emulate_media(color_scheme="light")
    live.tab.set_viewport_size({"width": 1400, "height": 900})
    live.tab.goto(live.address + "#/")
    live.until("!document.body.textContent.includes('fitting …')")
    live.until("document.querySelectorAll('table.runs tbody tr').length >= 3")
    yield live.tab
    live.check_quiet(live.address)
    assert live.tab.title() != "broken"


def row(tab, name):
    return tab.locator("table.runs tbody tr").filter(has=tab.get_by_role("link", name=name, exact=True))


def open_run(tab, name):
    tab.get_by_role("link", name=name, exact=True).first.click()
    tab.wait_for_selector(".tile")
    tab.wait_for_selector("#plot-curves .main-svg")
    open_groups(tab)


def open_groups(tab):
    """Open all groups of metrics."""
    tab.evaluate("document.querySelectorAll('details.metrics').forEach((group) => { group.open = true; })")


def test_the_list_has_state_step_pass_rate_forecast_and_advice(live, tab, place):
    for run in (place / "runs").iterdir():
        os.utime(run / "metrics.jsonl")  # as if they had just been written
    live.until("document.querySelector('main .muted').textContent.includes(' runs: 3 training')")
    text = row(tab, "one").inner_text()
    assert "training" in text and "300/400" in text and "0.581" in text and "± 0.006" in text
    ahead = forecast(fit(Curve.read(place / "runs/one")), at=["2x"]).at[0]
    assert f"{ahead.mean:.3f}" in text and f"{ahead.low:.3f} to {ahead.high:.3f}" in text and "continue" in text
    assert "1 warning" in row(tab, NAME).inner_text()


def test_a_new_step_and_a_new_point_are_seen_without_a_reload(live, tab, place):
    run = place / "runs/two"
    add_steps(run, [61])
    live.until("document.body.textContent.includes('61/400')")
    open_run(tab, "two")
    add_points(run, [7], pass_rate=0.777)
    live.until("document.body.textContent.includes('0.777')")
    live.until("document.getElementById('plot-curves').data.some((trace) => trace.y.at(-1) === 0.777)")


def test_a_run_shows_its_curve_its_forecast_and_every_metric_with_its_meaning(tab):
    open_run(tab, NAME)
    text = tab.locator("main").inner_text()
    assert "step 130 of 500" in text and "1.5 s per step" in text and "9 min left" in text
    assert "13% of the rollouts are truncated: above 10% training usually becomes unstable" in text
    assert "with 90% probability" in text and "advice" in text.lower()
    shown = [metric for name, metric in METRICS.items() if name not in ABSENT]
    assert tab.locator(".tile").count() == len(shown) > 30
    assert all(metric.meaning in text for metric in shown)
    assert tab.locator(".tile.bad .label").all_inner_texts() == ["Truncated"]


def test_lists_and_metrics_are_used_by_keyboard_with_visible_focus(tab):
    tab.locator("table.runs a").first.focus()
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.textContent") == "one"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".tile")
    assert tab.evaluate("document.activeElement.id") == "main"  # the new page has the focus
    tab.locator(".tile[data-large=pass_rate]").focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowLeft")
    assert tab.evaluate("document.activeElement.dataset.large") == "kept_prompts"
    tab.keyboard.press("Home")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("dialog[open] .main-svg")
    assert "share of the batch's rollouts" in tab.locator("dialog").inner_text().lower()
    tab.keyboard.press("Escape")
    assert tab.locator("dialog[open]").count() == 0
    assert tab.evaluate("document.activeElement.dataset.large") == "pass_rate"


def test_rollouts_are_searched_and_shown_token_by_token_with_their_group(live, tab):
    open_run(tab, "one")
    tab.get_by_role("link", name="Browse rollouts").click()
    tab.get_by_label("From", exact=True).select_option("training")
    live.until("document.querySelectorAll('ul.found li').length === 8")
    tab.get_by_label("Step", exact=True).select_option("10")
    tab.get_by_label("Verdict").select_option("failed")
    live.until("document.querySelectorAll('ul.found li').length === 2")
    tab.locator("ul.found a").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".rollout")
    assert tab.locator(".rollout").count() == 4 and "Group: 2 of 4 passed" in tab.locator("#reading").inner_text()
    first = tab.locator(".rollout").first
    assert "got '1', expected '1'" in first.inner_text() and "staleness 3" in first.inner_text()
    assert first.locator("mark.injected").inner_text() == "</think>"
    assert [span.get_attribute("class") for span in first.locator(".text > *").all()] == [
        "age5", "age4", "injected", "age4",
    ]  # fmt: skip
    assert first.locator(".text > *").nth(1).get_attribute("title") == "token 2: staleness 2, log ratio -0.400"
    tab.get_by_label("Color tokens by").select_option("log ratio")
    tab.wait_for_selector(".rollout .less4")
    assert first.locator(".text > *").nth(3).get_attribute("class").startswith("more")
    tab.get_by_label("Text", exact=True).fill("no such words")
    tab.keyboard.press("Enter")
    live.until("document.querySelectorAll('ul.found li').length === 0")


def test_hostile_names_and_texts_stay_text(tab):
    open_run(tab, NAME)
    assert tab.locator("h1").inner_text() == NAME
    tab.goto(tab.url.split("#")[0] + "#/")
    open_run(tab, "one")
    tab.get_by_role("link", name="Browse rollouts").click()
    tab.wait_for_selector("ul.found li")
    for number in range(2):
        tab.locator("ul.found a").nth(number).click()
        tab.wait_for_selector(f".rollout.this[data-key='{number}']")
        assert HOSTILE in tab.locator(".rollout.this .text").inner_text()
        assert tab.locator(".text.prompt").inner_text() == HOSTILE == tab.locator(".answer").inner_text()
    assert tab.locator("main img, main script").count() == 0


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_every_page_is_readable_at_any_width_in_light_and_dark(live, tab, width, scheme):
    texts = [("main", "color"), (".muted", "color"), ("nav a", "color")]
    addresses = {
        "list": "#/",
        "run": row(tab, "one").locator("a").get_attribute("href"),
        "study": tab.get_by_role("link", name="loo", exact=True).get_attribute("href"),
    }
    addresses["rollouts"] = addresses["run"] + "/rollouts?kind=training&row=1"
    waits = {"list": "table.runs", "run": ".tile", "study": "ul.verdicts li", "rollouts": ".rollout"}
    for name, address in addresses.items():
        live.tab.goto(live.address + address)
        live.tab.wait_for_selector(waits[name])
        if name == "run":
            live.tab.wait_for_selector("#plot-curves .main-svg")
        live.check_readable(width, scheme, texts)
        for badge in live.tab.locator(".badge, .flag, mark.injected").all()[:12]:
            colors = badge.evaluate("n => [getComputedStyle(n).color, getComputedStyle(n).backgroundColor]")
            assert contrast(*map(luminance, colors)) >= 4.5, name
