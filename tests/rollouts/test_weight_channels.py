"""The contract of every weight channel; by replay, engines sample with the weights that were sent."""

import multiprocessing
import os

import numpy as np
import pytest
import torch
from engine_builds import answer_weights

from scalerl.training.config.placement import Placement
from scalerl.training.engines.channels import CHANNELS
from scalerl.training.engines.directory import DirectoryChannel
from scalerl.training.models.weights import WeightLayout

SHAPES = {"scalar": (), "one": (1,), "odd": (3, 5, 7), "seventeen": (17,), "empty": (0, 4), "matrix": (33, 31)}

STORED = ["shared-memory", "directory"]
channels = pytest.mark.parametrize("kind", STORED)


def weights(seed):
    """Return random tensors of odd shapes in two precisions, for exact comparison."""
    torch.manual_seed(seed)
    return {
        f"{name}.{dtype}": torch.randn(shape).to(getattr(torch, dtype))
        for name, shape in SHAPES.items()
        for dtype in ("float32", "bfloat16")
    }


def make(kind, path):
    return CHANNELS[kind](WeightLayout.of(weights(0).items()), path, Placement(), None)


def equal(received, sent):
    assert dict(received).keys() == sent.keys()
    for name, tensor in sent.items():
        got = received[name]
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape), name
        bits = torch.int32 if tensor.dtype == torch.float32 else torch.int16
        assert torch.equal(got.view(bits), tensor.view(bits)), name
    return True


# --------------------------------------------------------------------------------------------------------- contents


@channels
def test_received_weights_equal_sent_weights_exactly(kind, tmp_path):
    channel, sent = make(kind, tmp_path), weights(1)
    sent["seventeen.float32"][:3] = torch.tensor([float("inf"), -0.0, float("nan")])
    sent["matrix.float32"] = torch.randn(31, 33).T  # not contiguous
    channel.send(7, sent.items())
    sent_copy = {name: tensor.clone() for name, tensor in sent.items()}
    sent["one.float32"] += 1  # the learner goes on
    assert equal(channel.receive(7), sent_copy)


# --------------------------------------------------------------------------------------------------------- versions


@channels
def test_the_capacity_limits_versions_and_a_dropped_one_makes_room(kind, tmp_path):
    channel = make(kind, tmp_path)
    assert channel.capacity == 4
    for version in (10, 11, 12, 13):
        channel.send(version, weights(version).items())
    channel.drop(11)
    channel.send(20, weights(20).items())
    for version in (10, 12, 13, 20):
        assert equal(channel.receive(version), weights(version))


# ------------------------------------------------------------------------------------------------------- a process


@channels
@pytest.mark.slow
def test_another_process_receives_weights_sent_after_its_start(kind, tmp_path):
    channel = make(kind, tmp_path)
    channel.send(0, weights(0).items())
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer_weights, args=(channel, theirs), daemon=True)
    process.start()
    for version in (0, 1, 5):
        if version:
            channel.send(version, weights(version).items())
        ours.send(version)
        assert ours.poll(60)
        received = ours.recv()
        for name, tensor in weights(version).items():
            np.testing.assert_array_equal(received[name], tensor.flatten().view(torch.uint8).numpy())
    ours.send(None)
    process.join(10)
    assert process.exitcode == 0


# ------------------------------------------------------------------------------------------------------- directories


def test_a_version_appears_under_its_name_only_when_complete(tmp_path, monkeypatch):
    import safetensors.torch

    channel, seen = DirectoryChannel(tmp_path), []

    def save(tensors, path):
        path.write_bytes(b"half of")
        seen.append(sorted(os.listdir(tmp_path)))
        with pytest.raises(FileNotFoundError):
            channel.receive(6)
        original(tensors, path)

    original = safetensors.torch.save_file
    monkeypatch.setattr(safetensors.torch, "save_file", save)
    channel.send(6, weights(6).items())
    assert seen == [[".version_00000006.safetensors"]]
    assert sorted(os.listdir(tmp_path)) == ["version_00000006.safetensors"]
    assert equal(channel.receive(6), weights(6))
