import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile(
    "repeatable", derandomize=True
)  # equal examples in every run, so that a failure is not chance
settings.load_profile("repeatable")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background with SIGINT ignored
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads make the process tests crawl
sys.path.insert(0, str(Path(__file__).parent))  # for helper modules such as tiny_models


@pytest.fixture(scope="session")
def lab_model(tmp_path_factory):
    """A tiny model trained on a few hundred traces; some of its answers pass, so its rewards have variance."""
    import runs

    return runs.make_model(tmp_path_factory.mktemp("lab") / "model")
