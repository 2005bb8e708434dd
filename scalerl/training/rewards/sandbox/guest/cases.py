"""Runs the test functions of a test file, with pytest if the file needs it. Raises at the first failure."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def run(module: ModuleType, load: Callable[[], None], runner: str) -> None:
    """Run a test file.

    Args:
        module: Module of the tests.
        load: Function that executes the file in that module.
        runner: pytest, or functions: without pytest.

    Raises:
        BaseException: What the first failing test raised.
    """
    if runner == "pytest":
        _with_pytest(module, load)
        return
    sys.modules.setdefault("pytest", type(sys)("pytest"))  # such a file may import it without a use
    load()
    for name, value in list(vars(module).items()):
        if isinstance(value, type):
            _run_class(value)
        elif name.startswith("test_") and callable(value):
            value()


def _run_class(owner: type) -> None:
    if "unittest" in sys.modules and issubclass(owner, sys.modules["unittest"].TestCase):
        _run_unittest(owner)
    elif owner.__name__.startswith("Test"):
        for name in dir(owner):
            if name.startswith("test") and callable(getattr(owner, name)):
                instance = owner()
                _call(instance, "setup_method")
                getattr(instance, name)()
                _call(instance, "teardown_method")


def _call(instance: Any, name: str) -> None:
    method = getattr(instance, name, None)
    if method is not None:
        method(*[None] * (method.__code__.co_argcount - 1))  # it may take the test's method


def _run_unittest(owner: Any) -> None:
    import unittest

    class First(unittest.TestResult):
        """A result that lets the first error pass."""

        def addError(self, test: Any, err: Any) -> None:
            raise err[1]

        addFailure = addError

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                raise err[1]

    unittest.TestLoader().loadTestsFromTestCase(owner).run(First())


OPTIONS = ("-x", "--capture=sys", "--assert=plain", "--rootdir=/tmp", "-c", "/dev/null", "--noconftest",
           "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:terminal")  # fmt: skip
"""Nothing is read or written: the module is in memory, and its path only a name."""


def _with_pytest(module: ModuleType, load: Callable[[], None]) -> None:
    import os
    from pathlib import Path

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    class File(pytest.Module):
        def _getobj(self) -> ModuleType:
            load()
            return module

    failures: list[BaseException] = []
    passed: list[str] = []

    class Plugin:
        """Collects the module, and keeps what the first failing test raised."""

        def pytest_collection(self, session: Any) -> bool:
            session.items = list(session.genitems(File.from_parent(session, path=Path("/tmp/test_solution.py"))))
            session.testscollected = len(session.items)
            return True

        def pytest_exception_interact(self, call: Any) -> None:
            failures.append(call.excinfo.value)

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.passed and report.when == "call":
                passed.append(report.nodeid)

    status = pytest.main(list(OPTIONS), plugins=[Plugin()])
    if failures:
        raise failures[0]
    if status != 0 or not passed:
        raise AssertionError(f"pytest ended with status {int(status)} and {len(passed)} passed tests")
