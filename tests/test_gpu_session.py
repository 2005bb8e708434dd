"""The plan of a session on a GPU, and the bundle of wheels for it: benchmarks/gpu_session.py and gpu_bundle.py."""

import json
import struct
import sys
import zipfile

import pytest

PRINTS = "import json; print(json.dumps({'tokens/s': 1234.5}), flush=True)"
MACHINE = {"cpu": "a CPU", "gpu": "NVIDIA H100", "torch": "2.11.0"}


@pytest.fixture
def gpu(benchmark, monkeypatch, tmp_path):
    """The session's module on a machine that says it has a GPU but no vLLM, in an empty project."""
    module = benchmark("gpu_session")
    machine = {"machine": MACHINE, "there": ["GPU"]}
    monkeypatch.setattr(module, "PROBE", f"print({json.dumps(machine)!r})")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module.shutil, "which", lambda _: None)  # no nvidia-smi
    monkeypatch.setenv("GPU_SESSION_TINY", "")
    (tmp_path / "scalerl").mkdir()
    return module


@pytest.fixture
def session(gpu, monkeypatch, tmp_path, capsys):
    """A function that runs a session over parts: name, estimate, limit, code, needs. It returns records by part."""

    def run(*parts, minutes=10, there=(), **options):
        plan = [
            gpu.Part(name, "", estimate, limit, ("-c", code), needs) for name, estimate, limit, code, needs in parts
        ]
        monkeypatch.setattr(gpu, "PLAN", plan)
        if there:
            monkeypatch.setattr(gpu, "PROBE", f"print({json.dumps({'machine': MACHINE, 'there': there})!r})")
        words = ["--minutes", str(minutes), "--out", str(tmp_path / "out.json"), "--bundle", str(tmp_path / "none")]
        words += [word for name, value in options.items() for word in (f"--{name}", *value)]
        monkeypatch.setattr(sys, "argv", ["gpu_session.py", "--commit", "abc123", *words])
        gpu.main()
        run.text = capsys.readouterr().out
        return {one["part"]: one for one in json.loads((tmp_path / "out.json").read_text())["parts"]}

    return run


def test_parts_run_in_the_order_of_the_plan_and_those_that_do_not_fit_are_left_out(session, tmp_path):
    notes = f"open({str(tmp_path / 'order')!r}, 'a').write"
    found = session(
        ("second best", 60, 60, f"{notes}('a')", ("GPU",)),
        ("too long", 601, 700, f"{notes}('b')", ("GPU",)),  # of 600 s
        ("vLLM's", 60, 60, f"{notes}('c')", ("GPU", "vllm")),
        ("short", 5, 60, f"{notes}('d')", ("GPU",)),
        ("fails", 5, 60, "raise SystemExit(3)", ("GPU",)),
    )
    assert (tmp_path / "order").read_text() == "ad"
    assert [one["outcome"].split(",")[0] for one in found.values()] == [
        "done", "left out", "left out", "done", "exit code 3",
    ]  # fmt: skip
    assert found["vLLM's"]["lacks"] == ["vllm"] and "s to go" in found["too long"]["outcome"]
    assert session.text.endswith("| fails | NVIDIA H100 | abc123 | exit code 3 in 0 s |\n")


def test_a_further_call_goes_on_after_what_is_done_with_the_same_code(session, tmp_path):
    again = f"open({str(tmp_path / 'again')!r}, 'a').write('x')"
    parts = [("one", 5, 60, again, ("GPU",)), ("two", 5, 60, "raise SystemExit(1)", ("GPU",))]
    session(*parts)
    fixed = ("two", 5, 60, PRINTS, ("GPU",))
    assert session(parts[0], fixed)["two"]["figures"] == {"tokens/s": 1234.5}
    assert (tmp_path / "again").read_text() == "x"
    session(*parts, parts=["one"])  # named parts are repeated
    assert (tmp_path / "again").read_text() == "xx"
    (tmp_path / "scalerl/new.py").write_text("changed = True")
    session(*parts)
    assert (tmp_path / "again").read_text() == "xxx"
    assert len(json.loads((tmp_path / "out.json").read_text())["parts"]) == 4  # the earlier code's results stay


def test_figures_are_those_of_the_steps_after_the_first_and_the_gpu_s_by_phase(gpu):
    steps = [
        {"at": at, "step": i, "step_s": 4.0, "samples": 512, "trainer_idle": 0.25} for i, at in enumerate((10, 14, 18))
    ]
    # a step waits for its first second, so 10 to 11 and 14 to 15; samples of the first step are left out
    busy = [(8.0, 7, 1000), (10.5, 20, 2000), (12.0, 80, 3000), (14.5, 40, 1000), (16.0, 100, 1000)]
    found = gpu.summary({"steps": steps, "gpu": [[at, 0, share, mib] for at, share, mib in busy]})
    assert found["samples/s"] == 128 and found["trainer_idle"] == 0.25
    assert found["GPU busy, trainer waits"] == pytest.approx(0.3)
    assert found["GPU busy, trainer updates"] == pytest.approx(0.9)
    assert found["GPU busy"] == pytest.approx(0.6)
    assert found["peak GB"] == pytest.approx(3000 * 2**20 / 1e9)


# -------------------------------------------------------------------------------------------------------------- bundle


def container(*parts):
    """A container of GPU code: kind, architecture, code."""
    inside = b"".join(
        struct.pack("<HHIQ", kind, 1, 64, len(code)) + bytes(12) + struct.pack("<I", arch) + bytes(32) + code
        for kind, arch, code in parts
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inside)) + inside


def library(*containers):
    """An ELF file with a section of GPU code, at byte 64, and the section of names."""
    code, names = b"".join(containers), b"\0.nv_fatbin\0.shstrtab\0"
    table = 64 + len(code) + len(names)
    rows = [(0, 0, 0), (1, 64, len(code)), (12, 64 + len(code), len(names))]
    headers = b"".join(struct.pack("<IIQQQQ", name, 1, 0, 0, at, size) + bytes(24) for name, at, size in rows)
    start = b"\x7fELF" + bytes(36) + struct.pack("<Q", table) + bytes(10) + struct.pack("<3H", 64, 3, 2)
    return start + code + names + headers


def test_a_cut_wheel_keeps_the_code_of_its_architecture_and_every_other_byte(benchmark, tmp_path):
    bundle = benchmark("gpu_bundle")
    sm80, sm90, ptx = b"for A100" * 9, b"for H100" * 9, b"any PTX!" * 9
    whole = library(container((2, 80, sm80), (2, 90, sm90)), container((1, 90, ptx)))
    files = {"vllm/a.so": whole, "vllm/b.py": b"pass", "vllm/vllm-rs": b"frontend", "vllm-1.dist-info/RECORD": b""}
    with zipfile.ZipFile(tmp_path / "whole.whl", "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
    left = bundle.cut_wheel(tmp_path / "whole.whl", tmp_path / "cut.whl", 90)
    assert left == {"vllm/a.so": 1} and bundle.check_cut(tmp_path / "whole.whl", tmp_path / "cut.whl", 90) == 1
    with zipfile.ZipFile(tmp_path / "cut.whl") as wheel:
        assert wheel.read("vllm/a.so") == whole.replace(sm80, bytes(72)).replace(ptx, bytes(72))
        assert sorted(wheel.namelist()) == ["vllm-1.dist-info/RECORD", "vllm/a.so", "vllm/b.py"]
    with zipfile.ZipFile(tmp_path / "cut.whl") as wheel, zipfile.ZipFile(tmp_path / "bad.whl", "w") as bad:
        for name in wheel.namelist():
            bad.writestr(name, wheel.read(name).replace(sm90, bytes(72)))
    with pytest.raises(bundle.BundleError, match=r"bad\.whl: vllm/a\.so differs in code for sm_90"):
        bundle.check_cut(tmp_path / "whole.whl", tmp_path / "bad.whl", 90)
