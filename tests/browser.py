"""Pages in headless Chromium, and checks for every page. Without a browser a test is skipped; in CI it fails."""

import os
import re
import shutil
import time
from contextlib import contextmanager

import numpy as np
import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Opened:
    """The page in Chromium, with its console messages and requests."""

    def __init__(self, browser, address):
        self.complaints = []
        self.asked = []
        self.tab = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
        self.tab.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(address)
        self.settle()

    def settle(self):
        """Wait until plotly has drawn every figure with the width of its container and the text color of the theme."""
        self.until("""(() => {
            const ink = getComputedStyle(document.body).color;
            return [...document.querySelectorAll(".plot")].every((place) => {
                if (!place.clientWidth) return true;
                const [picture, title] = [place.querySelector(".main-svg"), place.querySelector(".xtitle")];
                const settled = picture && title && Math.abs(picture.clientWidth - place.clientWidth) < 2;
                return settled && getComputedStyle(title).fill === ink;
            });
        })()""")

    def until(self, script, seconds=60.0):
        """Wait until an expression is true; works also if the page's security policy forbids wait_for_function."""
        end = time.monotonic() + seconds
        while not self.tab.evaluate(script):
            assert time.monotonic() < end, f"waited {seconds} s for {script}"
            time.sleep(0.02)

    def check_quiet(self, own="file:"):
        """Check that the console is empty and that all requests went to the address of the page."""
        assert self.complaints == [], self.complaints
        assert [url for url in self.asked if not url.startswith((own, "data:", "blob:"))] == []

    def check_readable(self, width, scheme, texts):
        """Check that nothing overflows the width and that texts and dots have enough contrast.

        Args:
            width: Width of the window in pixels.
            scheme: "light" or "dark".
            texts: Pairs of a selector and the name of the style that holds its text color.
        """
        self.tab.emulate_media(color_scheme=scheme)
        self.tab.set_viewport_size({"width": width, "height": 900})
        self.settle()
        assert self.tab.evaluate("document.documentElement.scrollWidth") == width
        paper = luminance(self.style("body", "backgroundColor"))
        assert (paper < 0.1) if scheme == "dark" else (paper > 0.9)
        for selector, name in texts:
            assert contrast(paper, luminance(self.style(selector, name))) >= 4.5, selector  # WCAG AA for text
        dots = self.tab.eval_on_selector_all(".swatch", "nodes => nodes.map(n => getComputedStyle(n).backgroundColor)")
        assert all(contrast(paper, luminance(color)) >= 3 for color in dots)  # WCAG for graphics
        assert self.complaints == [], self.complaints

    def column(self, number):
        return self.tab.eval_on_selector_all(
            "tbody tr", f"rows => rows.map(row => row.children[{number}].firstChild.textContent)"
        )

    def style(self, selector, name):
        return self.tab.eval_on_selector(selector, f"node => getComputedStyle(node).{name}")


def driver_or_skip():
    """Return playwright's module; without it or without Chromium, skip the test."""
    if os.environ.get("SCALERL_BROWSER_REQUIRED"):  # in CI a missing browser is a failure
        return __import__("playwright.sync_api").sync_api
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    return pytest.importorskip("playwright.sync_api")


@contextmanager
def opened_page(path):
    """Open a file, or the address of a server, in a separate browser."""
    with driver_or_skip().sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield Opened(browser, path if isinstance(path, str) else path.as_uri())
        browser.close()


def luminance(color):
    """Return the relative luminance of an rgb() color (WCAG 2)."""
    channels = np.array([int(value) for value in re.findall(r"\d+", color)[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
