import shutil

import pytest


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A tiny model with its tokenizer."""
    from tiny_models import tiny_model

    from scalerl.training.loop.warm_start import make_tokenizer

    path = tmp_path_factory.mktemp("whole") / "m"
    tiny_model("qwen3").save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def model(whole, tmp_path, monkeypatch):
    """The same model as m in the working directory; a test may damage it."""
    shutil.copytree(whole, tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "m"
