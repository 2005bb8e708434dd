"""Changes that damage a saved model: each takes the directory of the model."""

import json
import os
import shutil
import struct

from safetensors.torch import load_file, save_file

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
OPENED = "opened.txt"
"""File written if a pickle or program of a model runs."""


def config(**changes):
    """Return a change of config.json; None removes a field."""

    def change(model):
        values = json.loads((model / "config.json").read_text())
        values = {name: value for name, value in {**values, **changes}.items() if value is not None}
        (model / "config.json").write_text(json.dumps(values))

    return change


def text(name, content):
    return lambda model: (model / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def pipe(name):
    """Replace a file by a pipe to which nobody writes."""

    def change(model):
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)

    return change


def gone(*names):
    return lambda model: [(model / name).unlink() for name in names]


def cut(name, size):
    """Return a change that truncates a file to a number of bytes; a negative number removes bytes from the end."""

    def change(model):
        data = (model / name).read_bytes()
        (model / name).write_bytes(data[:size])

    return change


def header(change_header):
    """Return a change of the JSON header of the weights that keeps its length and the tensors."""

    def change(model):
        data = (model / WEIGHTS).read_bytes()
        length = int.from_bytes(data[:8], "little")
        values = json.loads(data[8 : 8 + length])
        change_header(values)
        written = json.dumps(values).encode()
        (model / WEIGHTS).write_bytes(struct.pack("<Q", len(written)) + written + data[8 + length :])

    return change


def tensors(change_tensors):
    def change(model):
        held = load_file(model / WEIGHTS)
        change_tensors(held)
        save_file(held, model / WEIGHTS, metadata={"format": "pt"})

    return change


def sharded(after=lambda model: None):
    """Return a change that splits the weights into two files and then changes them."""

    def change(model):
        held = load_file(model / WEIGHTS)
        (model / WEIGHTS).unlink()
        names = sorted(held)
        parts = {"a.safetensors": names[: len(names) // 2], "b.safetensors": names[len(names) // 2 :]}
        for file, chosen in parts.items():
            save_file({name: held[name] for name in chosen}, model / file, metadata={"format": "pt"})
        places = {name: file for file, chosen in parts.items() for name in chosen}
        (model / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
        after(model)

    return change


def index(**places):
    """Return a change of the weight map in the index, for `sharded`."""

    def change(model):
        values = json.loads((model / INDEX).read_text())
        values["weight_map"].update(places)
        (model / INDEX).write_text(json.dumps(values))

    return change


def pickled(model):
    """Replace the weights by a pickle that writes a file when it is loaded."""
    (model / WEIGHTS).unlink()
    (model / "pytorch_model.bin").write_bytes(b"cbuiltins\nexec\n(S'open(\"" + OPENED.encode() + b'", "w")\'\ntR.')


def inside(model):
    """Move the model into a subdirectory, like a run."""
    shutil.move(model, model.parent / "x")
    model.mkdir()
    shutil.move(model.parent / "x", model / "model")


def a_file(name, content=b"x"):
    """Return a change that replaces the directory by a file."""

    def change(model):
        shutil.rmtree(model)
        model.write_bytes(content)

    return change
