"""`scalerl doctor`: each problem is produced for real where this machine allows it, and is one line with its cure."""

import json
import os
import re
import shutil
import signal
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from commands import call
from tiny_models import ARCHITECTURES, tiny_model

from scalerl.core.errors import ConfigError
from scalerl.core.machine import Memory
from scalerl.training.config import Hardware, HuggingFaceModel, RunConfig, read_config
from scalerl.training.engines.vllm.checks import installed_cuda, server_problems
from scalerl.training.loop import resolve as resolve_module
from scalerl.training.loop.resolve import place_processes, resolve_hardware
from scalerl.training.machines import doctor, probe
from scalerl.training.machines.doctor import DOCTOR_CHECKS, FAILS, SLOW, WORKS, Finding, Site, examine, meeting
from scalerl.training.machines.memory import disk_bytes
from scalerl.training.machines.probe import HostReport, Probe, unsupported
from scalerl.training.models.miniature import VOCABULARY, miniature
from scalerl.training.models.sizes import WELL_KNOWN
from scalerl.training.placement import devices as placement
from scalerl.training.placement.devices import Host, Place, check_shared_memory
from scalerl.training.placement.sizes import RunSizes

CARD = Memory(85e9, 84e9, "NVIDIA H100 80GB HBM3")


def site_of(*words, gpus=(), seen=()):
    """Return a site of a machine with these GPUs, whose Probes answer `seen`."""
    site = Site(read_config(None, list(words)), hosts=[Host("this machine", gpus)])
    answers = {"look": list(seen)}
    site.ask = lambda method, *arguments, of="first": answers[method]
    return site


# ---------------------------------------------------------------------------------------------------- configuration


@pytest.mark.slow
def test_everything_works_on_this_machine():
    """In 15 s on a quiet machine."""
    findings = list(examine(None, limit_s=150.0))
    assert [one.check for one in findings] == [name for name in DOCTOR_CHECKS if name != "vLLM"]
    assert {one.verdict for one in findings} <= {WORKS, SLOW}, findings
    (network,) = [one.text for one in findings if one.check == "network"]
    assert "gloo between 2 processes" in network and "slowest pair" in network


@pytest.mark.parametrize(("verdict", "code"), [(SLOW, 0), (FAILS, 1)])
def test_the_command_prints_a_line_per_check_and_fails_if_something_does_not_work(verdict, code, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda config: [Finding("room", verdict, "a line", 0.1)])
    assert call(capsys, "doctor") == (code, f"room       {verdict}: a line\n", "")
    findings = json.loads(call(capsys, "doctor", "--json", "--placement.trainer_ranks", "2")[1])
    assert findings["checks"] == [{"check": "room", "verdict": verdict, "text": "a line", "seconds": 0.1}]


def test_the_default_is_a_trainer_on_each_gpu_or_two_ranks_on_cpu():
    site = Site(None, hosts=[Host("this machine")])
    assert site.config.placement.trainer_ranks == 2 and site.config.hardware.dtype == "float32"
    site = Site(None, hosts=[Host("this machine", ("0", "1", "2"))])
    assert [at.gpus for (kind, _), at in site.table.items() if kind == "trainer"] == [("0",), ("1",), ("2",)]
    assert site.config.hardware.dtype == "bfloat16" and site.config.hardware.device == "cuda"


def test_more_ranks_than_a_cpu_can_start_are_an_error(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    with pytest.raises(ConfigError, match=r"trainer_ranks: got 25, .* allowed without GPUs: 1 to 24$"):
        site_of("--placement.trainer_ranks", "25")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU here")
def test_a_configured_gpu_that_is_missing_fails_with_torchs_reason():
    site = site_of(
        "--hardware.device", "cuda", seen=[HostReport("here", problem="Torch not compiled with CUDA enabled")]
    )
    verdict, text = doctor.gpus(site)
    assert verdict == FAILS and "hardware.device: got 'cuda', but torch sees no GPU on" in text
    assert "Torch not compiled with CUDA enabled" in text and "allowed: cpu, auto" in text
    assert site.config.hardware.device == "cpu"  # the other checks go on
    with pytest.raises(ConfigError, match=r"sees no GPU here .Torch not compiled with CUDA enabled"):
        resolve_hardware(Hardware(device="cuda"))


def test_too_few_gpus_fail_and_the_existing_ones_are_checked():
    site = site_of("--placement.trainer_ranks", "4", gpus=("0", "1"), seen=[HostReport("here", gpus=(CARD,))] * 2)
    verdict, text = doctor.gpus(site)
    assert verdict == FAILS and "4 trainer ranks" in text and "or CUDA_VISIBLE_DEVICES names, 2" in text
    assert site.table == {("trainer", 0): Place("this machine", ("0",)), ("trainer", 1): Place("this machine", ("1",))}


@pytest.mark.parametrize(
    ("seen", "verdict", "words"),
    [
        ([HostReport("a", gpus=(CARD,)), HostReport("a", gpus=(CARD,))], WORKS,
         "2 GPUs in 2 processes: NVIDIA H100 80GB HBM3"),
        ([HostReport("a", problem="The NVIDIA driver is too old")], FAILS, "a: torch can use no GPU: The NVIDIA"),
        ([HostReport("a", gpus=(CARD,)), HostReport("b", gpus=(Memory(85e9, 20e9, "X"),))], FAILS,
         "b: X: 20.0 of 85.0 GB are free; end the programs on it"),
        ([HostReport("a", gpus=(CARD,)), HostReport("b", gpus=(Memory(85e9, 84e9, "NVIDIA A100"),))], SLOW,
         "use one model of GPU"),
        ([HostReport("a", gpus=(Memory(24e9, 24e9, "L4"),))], FAILS, "a: L4 has 24 GB; set placement.gpu_gb = 24"),
    ],
    ids=["two equal", "old driver", "used by others", "different", "small"],
)  # fmt: skip
def test_what_processes_see_of_their_gpus(seen, verdict, words):
    verdict_seen, text = doctor.gpus(site_of("--placement.trainer_ranks", "2", gpus=("0", "1"), seen=seen))
    assert verdict_seen == verdict and words in text, text


def test_different_and_unsupported_software_is_named_with_the_versions():
    seen = [HostReport("a", {"torch": "2.13.0", "ray": "2.60"}), HostReport("b", {"torch": "2.12.0", "ray": "2.60"})]
    verdict, text = doctor.versions(site_of(seen=seen))
    assert verdict == FAILS and text.startswith("torch is 2.13.0 on a and 2.12.0 on b")
    assert unsupported({"torch": "2.11.0", "ruff": "0.1"}) == []  # ruff is for developers
    assert unsupported({"torch": "2.10.0"})[0].startswith("torch 2.10.0; supported: <2.14,>=2.11")


def test_a_run_on_gpus_starts_with_notes_on_what_is_not_well(monkeypatch):
    asked = []

    def examine(config, checks):
        asked.append(checks)
        return [Finding("versions", WORKS, "equal", 1.0), Finding("GPUs", FAILS, "X: 20.0 of 85.0 GB are free", 1.0)]

    monkeypatch.setattr(doctor, "examine", examine)
    assert doctor.host_notes(read_config(None, ["--hardware.device", "cpu"])) == [] and asked == []
    on_gpu = read_config(None, ["--hardware.device", "cuda"])
    assert doctor.host_notes(on_gpu) == ["GPUs: X: 20.0 of 85.0 GB are free (scalerl doctor)"]
    assert asked == [["versions", "GPUs"]]


def fake_python(path, version):
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return str(path)


def test_another_vllm_is_refused_before_a_server_starts(tmp_path):
    python = fake_python(tmp_path / "python", "0.31.2")
    (problem,) = Probe("here").look(python).unsupported
    assert f"{python} runs version 0.31.2; allowed: >=0.32,<0.34" in problem
    seen = Probe("here").look(fake_python(tmp_path / "other", "0.33.0"))
    assert seen.versions["vllm"] == "0.33.0" and seen.unsupported == ()
    site = site_of("--placement.engine", "vllm", seen=[HostReport("a", unsupported=(problem,))])
    verdict, text = doctor.versions(site)
    assert verdict == FAILS and f"a: vllm: {python} runs version 0.31.2" in text


@pytest.mark.parametrize(
    ("cuda", "driver", "advice"),
    [
        ("13.0", "560.35.03", "NVIDIA driver 560.35.03 is loaded, and torch's CUDA 13.0 needs 580 or newer; install"),
        ("13.0", "580.65.06", ""),
        (None, "560.35.03", ""),
    ],
)
def test_the_cuda_of_vllms_torch_is_compared_with_the_driver(cuda, driver, advice, tmp_path):
    """The environment of the servers may have another torch than the trainer's; it is read, not imported."""
    place = tmp_path / "lib" / "torch"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise ImportError('imported')")
    value = "None" if cuda is None else repr(cuda)
    (place / "version.py").write_text(f"__version__ = '2.14.0'\ncuda: Optional[str] = {value}\nhip = None\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={tmp_path / "lib"} exec {sys.executable} -P "$@"\n')
    python.chmod(0o755)
    assert installed_cuda(str(python)) == (cuda or "")
    problems = server_problems(str(python), "0.33.0", driver)
    assert len(problems) == bool(advice) and all(f"{python}: {advice}" in problem for problem in problems)


# ------------------------------------------------------------------------------------------------- disk and memory


def test_a_model_too_large_for_the_disk_and_the_memory(tmp_path, monkeypatch):
    """Qwen3-8B: 8.19e9 parameters, 12 bytes each in a checkpoint; no machine of the tests has 16 TB for 170 of them."""
    monkeypatch.chdir(tmp_path)
    words = ["--model", "Qwen/Qwen3-8B", "--data", "prompts.jsonl", "--task", "math", "--steps", "20000"]
    with pytest.raises(ConfigError, match=r"200 checkpoints.*--run-dir") as error:
        doctor.room(site_of(*words, "--checkpoint.keep", "199"))
    assert float(re.search(r"need ([\d.]+) GB", str(error.value))[1]) == pytest.approx(200 * 12 * 8.19, rel=0.01)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 50, 0, 1 << 50))
    verdict, text = doctor.room(site_of(*words))
    assert verdict == FAILS and "four versions of the weights need 131" in text


def test_a_small_dev_shm_stops_runs_with_more_than_one_gpu_process(monkeypatch):
    two = {("trainer", 0): Place("a", ("0",)), ("trainer", 1): Place("a", ("1",))}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(64 << 20, 0, 64 << 20))
    with pytest.raises(ConfigError, match=r"/dev/shm: 67 MB are free; .* between 2 GPU processes.*--shm-size=8g"):
        check_shared_memory(two)
    check_shared_memory({("trainer", 0): Place("a", ("0",)), ("generator", 0): Place("a", ("0",))})


PROC = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Jul  2 15:32:00 UTC 2025\nGCC version: 12.3.0\n"


@pytest.mark.parametrize(
    ("cuda", "driver", "text"),
    [
        ("13.0", "580.65.06", ""),
        ("13.0", "575.57.08", "NVIDIA driver 575.57.08 is loaded, and torch's CUDA 13.0 needs 580 or newer; install a"),
        ("13.0", "", "no NVIDIA driver is loaded .*, and torch's CUDA 13.0 needs 580"),
        (None, "580.65.06", "driver 580.65.06 is loaded, but this torch is built without CUDA; install a build"),
        ("14.1", "580.65.06", ""),  # unknown: nothing is claimed
    ],
)
def test_the_driver_that_is_found_needed_and_to_be_installed(cuda, driver, text, monkeypatch, tmp_path):
    monkeypatch.setattr(placement, "DRIVER_FILE", tmp_path / "version")
    if driver:
        (tmp_path / "version").write_text(PROC.format(driver))
    assert placement.driver_version() == driver
    advice = placement.driver_advice(cuda, driver)
    assert re.search(text, advice) if text else not advice


def test_the_error_of_a_start_and_the_doctor_say_which_driver_is_needed(monkeypatch, tmp_path):
    monkeypatch.setattr(placement, "DRIVER_FILE", tmp_path / "version")
    (tmp_path / "version").write_text(PROC.format("535.104.05"))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", raising_runtime)
    with pytest.raises(ConfigError, match=r"too old \(found version 12020\); NVIDIA driver 535.104.05 .* needs 580"):
        resolve_hardware(Hardware(device="cuda"))
    monkeypatch.setattr(resolve_module, "sees_gpu", lambda: True)
    (note,) = place_processes(RunConfig()).notes
    assert "trains on the CPU" in note and "580 or newer" in note
    assert place_processes(RunConfig(hardware=Hardware(device="cpu"))).notes == ()
    monkeypatch.setattr(resolve_module, "sees_gpu", lambda: False)
    assert place_processes(RunConfig()).notes == ()
    site = site_of("--hardware.device", "cpu", seen=[HostReport("a", {"cuda": "13.0", "driver": "580.65.06"})])
    assert doctor.versions(site) == (WORKS, "cuda 13.0, driver 580.65.06 (CUDA 13.0 needs 580)")
    site = site_of("--hardware.device", "cpu", seen=[HostReport("a", {"cuda": "13.0"})])
    assert doctor.versions(site) == (WORKS, "cuda 13.0, driver none (CUDA 13.0 needs 580)")


def raising_runtime():
    raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nPlease update it")


def test_the_disk_that_a_run_needs_by_hand():
    """8.19e9 parameters x 12 bytes: two checkpoints, the next and the best; with adapters only those are trained."""
    words = ["--model", "Qwen/Qwen3-8B", "--data", "prompts.jsonl", "--task", "math"]

    def needed(*more):
        return disk_bytes(RunSizes.of(read_config(None, [*words, *more])))

    params = WELL_KNOWN["Qwen/Qwen3-8B"].params
    assert needed("--steps", "1000") == 12 * params * 4
    assert needed("--steps", "20") == 12 * params * 2  # one checkpoint at the end, and the best
    files = ["--rollouts.weights", "directory", "--hardware.dtype", "bfloat16"]
    assert needed("--steps", "1000", *files) == 12 * params * 4 + 4 * 2 * params
    assert needed("--steps", "1000", "--model.lora.rank", "8") < 0.02 * needed("--steps", "1000")


# ----------------------------------------------------------------------------------------------- processes and time


def crash(site):
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(site):
    time.sleep(600)


def refuse(site):
    raise ConfigError("x: got 1;\nallowed: 2")


def fine(site):
    return WORKS, str(os.getpid())


class Mine:
    """A Site whose checks go wrong."""

    def __init__(self, config, limit_s, hosts, start_s):
        pass

    def check(self, name):
        return {"crash": crash, "hang": hang, "refuse": refuse}.get(name, fine)(self)


@pytest.mark.slow
def test_a_crash_a_hang_and_an_error_are_one_line_each_and_the_next_check_runs(monkeypatch):
    monkeypatch.setattr(doctor, "Site", Mine)
    began = time.monotonic()
    findings = list(
        examine(None, limit_s=8.0, start_s=8.0, checks=["a", "b", "crash", "c", "refuse", "d", "hang", "e"])
    )
    a, b, crashed, c, refused, d, hung, e = findings
    assert a.verdict == WORKS and a.text == b.text != c.text == d.text != e.text
    assert [one.verdict for one in (crashed, refused, hung)] == [FAILS] * 3
    assert "was killed by signal 11" in crashed.text and refused.text == "x: got 1; allowed: 2"
    assert "did not answer within 40 s" in hung.text and time.monotonic() - began < 300  # 35 s on a quiet machine


def met(*hosts, refused=""):
    """Return what a meeting of two probes finds; the second sends 1 GB/s, and may refuse connections."""
    answers = {
        "listen": [(host, host) for host in hosts], "reach": [refused, ""], "meet": None,
        "exchange": [(9e9, [9e9]), (9e9, [1e9])],
    }  # fmt: skip
    return meeting(SimpleNamespace(call=lambda method, *words, timeout_s: answers[method]), 5.0, "cuda")


def test_sending_slower_than_half_of_what_plans_assume_is_slow_between_hosts():
    verdict, text = met("a:1", "b:1")
    assert verdict == SLOW and "slowest pair b to a 1 GB/s; plans assume 40 GB/s" in text
    assert met("a:1", "a:2")[0] == WORKS
    verdict, text = met("a:1", "b:1", refused="Connection refused")
    assert verdict == FAILS and "Connection refused" in text


# ----------------------------------------------------------------------------------------------------- the learner


def config_of(*words, dtype="float32"):
    return read_config(None, ["--hardware.dtype", dtype, *words])


def test_an_update_with_a_wrong_gradient_fails(monkeypatch):
    """Weights 5% off move the gradient far beyond the tolerance of FP32."""
    exact = probe.exact_update

    def wrong(model, batch):
        with torch.no_grad():
            next(iter(model.parameters())).mul_(1.05)
        return exact(model, batch)

    assert "padded" in Probe("").learner(config_of("--learner.packing", "padded"))
    monkeypatch.setattr(probe, "exact_update", wrong)
    with pytest.raises(ConfigError, match=r"in float32, padded: loss or gradient .* allowed: 0.001"):
        Probe("").learner(config_of("--learner.packing", "padded"))


def test_the_head_in_bf16_is_refused(monkeypatch):
    from scalerl.training.models import head

    assert "nats of float64" in Probe("").head(config_of(dtype="bfloat16"))
    rule = head.HeadRule
    monkeypatch.setattr(head, "HeadRule", lambda: rule(fp32=False))
    with pytest.raises(ConfigError, match="log-probabilities of the FP32 head are 0"):
        Probe("").head(config_of(dtype="bfloat16"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen3-moe", "deepseek-v3", "gemma4"])
def test_an_architecture_in_miniature_agrees_with_float64(name, tmp_path):
    tiny_model(name).config.save_pretrained(tmp_path)
    words = ["--model", str(tmp_path), "--data", "prompts.jsonl", "--task", "math"]
    text = Probe("").learner(config_of(*words))
    own = f"{ARCHITECTURES[name][0].removesuffix('Text')}ForCausalLM in miniature"
    assert (own if name != "gemma4" else "(in place of model.path)") in text


def test_a_miniature_keeps_head_size_and_grouping_and_divides_over_gpus(tmp_path):
    """32 query heads over 8 key-value heads of 128, as in Llama 3.1 8B; 4 GPUs share 8 of them."""
    from transformers import LlamaConfig

    LlamaConfig(
        hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336, vocab_size=128256,
        eos_token_id=128001, architectures=["LlamaForCausalLM"],
    ).save_pretrained(tmp_path)  # fmt: skip
    model, name = miniature(HuggingFaceModel(path=str(tmp_path)), parallel=4)
    config = model.config
    assert name == "LlamaForCausalLM" and len(model.get_output_embeddings().weight) == VOCABULARY == 512
    assert (config.num_attention_heads, config.num_key_value_heads, config.num_hidden_layers) == (32, 8, 2)
    assert config.head_dim == 128 and config.hidden_size == 256


# ---------------------------------------------------------------------------------------------------------- servers


def test_a_server_given_by_address_that_does_not_answer(monkeypatch):
    site = site_of("--placement.engine", "vllm", "--placement.servers", "['http://127.0.0.1:9']")
    monkeypatch.setattr(doctor, "TCP_CONNECT_S", 0.5)
    with pytest.raises(ConfigError, match=r"no answer from http://127.0.0.1:9"):
        doctor.vllm(site)


@pytest.mark.vllm
@pytest.mark.skipif(not os.environ.get("SCALERL_VLLM_PYTHON"), reason="SCALERL_VLLM_PYTHON names no Python with vLLM")
def test_a_real_server_samples_with_the_weights_that_it_gets(monkeypatch):
    python = os.environ["SCALERL_VLLM_PYTHON"]
    config = read_config(None, ["--placement.engine", "vllm", "--placement.vllm_python", python])
    monkeypatch.setattr(doctor, "DOCTOR_SWAPS_S", 400.0)
    (finding,) = examine(config, checks=["vLLM"])
    assert finding.verdict == WORKS and "after each of three swaps" in finding.text, finding
