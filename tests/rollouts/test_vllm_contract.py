"""vLLM has what scalerl uses of it, and the supported versions stand in one place."""

import shutil
import sys
import tomllib
import types
from functools import cached_property
from pathlib import Path

import pytest
import torch
import vllm_contract as contract

from scalerl.training.engines.vllm import protocol
from scalerl.training.engines.vllm.checks import NEWEST, OLDEST
from scalerl.training.engines.vllm.nccl import weight_source
from scalerl.training.models.weights import WeightLayout

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def versions():
    try:
        return contract.newest(2)
    except (OSError, TimeoutError):
        pytest.skip("PyPI does not answer")


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("at", [0, 1], ids=["newest", "the one before"])
def test_the_newest_versions_of_vllm_have_what_scalerl_uses(versions, at, tmp_path):
    """Supported versions pass; a newer one that does not pass is to be looked at before the range is widened."""
    place = contract.unpacked(versions[at], tmp_path)
    numbers = tuple(map(int, versions[at].split(".")[:2]))
    found = contract.problems(place)
    shutil.rmtree(place / "vllm")
    if OLDEST <= numbers < NEWEST:
        assert found == []
    assert numbers < NEWEST, f"vLLM {versions[at]} is out: {found or 'it passes, so NEWEST can be raised'}"


def test_the_supported_versions_are_the_same_in_the_package_its_extras_and_its_documentation():
    allowed = f">={'.'.join(map(str, OLDEST))},<{'.'.join(map(str, NEWEST))}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [word.partition(";")[0] for word in extras["cluster"] if word.startswith("vllm")] == [f"vllm{allowed}"]
    page = (ROOT / "docs/vllm.md").read_text().replace("\\", "")
    assert f"| versions of vLLM | {allowed}" in page


def test_every_path_of_the_protocol_is_in_the_contract():
    paths = {value for name, value in vars(protocol).items() if name.isupper() and str(value).startswith("/")}
    assert len(paths) == 18
    assert {path.partition("?")[0] for path in paths} == {route.path for route in contract.used_routes()}
    arguments = {word.partition("=")[0] for path in paths for word in path.partition("?")[2].split("&") if word}
    assert arguments <= {name for route in contract.used_routes() for name in route.arguments}


class OldSource:
    """Stands for vLLM 0.32's WeightSource: metadata() and iteration."""


class NewSource:
    """Stands for vLLM 0.33's WeightSource."""

    def __init_subclass__(cls, **words):
        if not isinstance(cls.__dict__.get("metadata"), cached_property):
            raise TypeError(f"{cls.__name__}.metadata must be a functools.cached_property")

    def iter_full(self):
        raise NotImplementedError


@pytest.mark.parametrize("kind", [OldSource, NewSource], ids=["0.32", "0.33"])
def test_the_source_of_weights_has_the_form_of_each_version(kind, monkeypatch):
    base = types.ModuleType("vllm.distributed.weight_transfer.base")
    base.WeightSource, base.ParamMeta = kind, lambda *values: values
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    pairs = [("a", torch.ones(2, 3)), ("b", torch.zeros(4, dtype=torch.bfloat16))]
    source = weight_source(WeightLayout.of(pairs))
    metadata = source.metadata() if kind is OldSource else source.metadata
    assert metadata == [("a", torch.float32, (2, 3)), ("b", torch.bfloat16, (4,))]
    for version in (1, 2):
        source.weights = iter([(name, tensor + version) for name, tensor in pairs])
        passed = list(source if kind is OldSource else source.iter_full())
        assert [name for name, _ in passed] == ["a", "b"] and float(passed[0][1][0, 0]) == 1 + version
    assert kind is OldSource or source.metadata is source.metadata
