"""The display of a run in a notebook, with fakes of IPython's displays."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from test_display import ROW, points

from scalerl.config import LAB
from scalerl.view.display import NotebookDisplay, in_notebook


class Handle:
    """An output of the notebook that is updated in place."""

    def __init__(self):
        self.shown = []

    def update(self, html):
        self.shown.append(html)


@pytest.fixture
def places(monkeypatch):
    """The outputs for the table and the figure."""
    made = []

    def display(html, display_id):
        assert display_id
        made.append(Handle())
        return made[-1]

    module = ModuleType("IPython.display")
    module.HTML, module.display = str, display
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(display=module, get_ipython=lambda: None, version_info=(9, 0))
    )
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return made


def test_a_step_rewrites_the_table_and_prints_nothing(places, capsys):
    shown = NotebookDisplay(LAB)
    table, picture = places
    shown.step(ROW)
    assert "9/480" in table.shown[-1] and "0.310 (batch)" in table.shown[-1]
    shown.step({**ROW, "step": 10})  # within half a second of the first
    assert len(table.shown) == 1
    shown.step({**ROW, "step": LAB.steps})  # the last step is always shown
    assert f"{LAB.steps}/{LAB.steps}" in table.shown[-1]
    assert picture.shown == [] and capsys.readouterr().out == ""


def test_the_curve_is_drawn_from_the_fifth_evaluation_on_and_a_warning_is_printed(places, capsys):
    shown = NotebookDisplay(LAB)
    table, picture = places
    shown.point(points(4))
    assert picture.shown == [] and "held-out pass rate" in table.shown[-1]
    shown.point(points(6))
    assert len(picture.shown) == 1 and "<svg" in picture.shown[0]
    shown.step({**ROW, "truncation_rate": 0.2})
    assert "unstable" in capsys.readouterr().out


def test_outside_a_notebook_lines_are_printed(places):
    assert not in_notebook()
    sys.modules["IPython"].get_ipython = lambda: type("ZMQInteractiveShell", (), {})()
    assert in_notebook()
