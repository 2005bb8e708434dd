"""docs/cluster.md and docs/scale.md: every configuration passes a dry run, the examples parse, the commands exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from doc_pages import blocks

from scalerl import cli
from scalerl.cli.plan import plan_parser
from scalerl.config import read_config
from scalerl.placement.devices import Host, devices

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cluster.md").read_text()
BLOCKS = blocks("docs/cluster.md", "toml")
PAPER = next(block for block in BLOCKS if "generators = 64" in block)


def test_the_page_goes_from_one_gpu_to_many():
    gpus = [int(n) for n in re.findall(r"^gpus = (\d+)", PAGE, re.M)]
    assert gpus == [1, 1, 2, 8, 8, 80, 128] and len(BLOCKS) == 7


def with_prompts(block, file):
    """Return a configuration of the page with a prompt file that exists."""
    return re.sub(r'"(/shared/)?\w+\.jsonl"', f'"{file}"', block)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_configuration_of_the_page_passes_a_dry_run(block, tmp_path, prompt_file, capsys):
    file = tmp_path / "run.toml"
    file.write_text(with_prompts(block, prompt_file))
    assert cli.main(["train", str(file), "--dry-run"]) == 0
    out = capsys.readouterr().out
    gpus = re.search(r"^gpus = (\d+)", block, re.M)
    where = "one GPU for both" if gpus and gpus[1] == "1" else f"{gpus[1]} GPUs" if gpus else "one trainer process"
    assert where in next(line for line in out.splitlines() if line.startswith("# placement: "))


def test_the_blocks_of_a_node_have_the_split_that_plan_finds(tmp_path, prompt_file, capsys):
    file, node = tmp_path / "run.toml", [block for block in BLOCKS if "\ngpus = 8\n" in block]
    for block in node:
        file.write_text(with_prompts(block, prompt_file))
        assert cli.main(["plan", str(file), "--gpus", "8", "--rollouts.slots", "0"]) == 0
        split = re.search(
            r"best: (\d+) trainer ranks, (\d+) generators, rollouts.slots = (\d+)", capsys.readouterr().out
        )
        shipped = [re.search(rf"^{key} = (\d+)", block, re.M)[1] for key in ("trainer_ranks", "generators", "slots")]
        assert list(split.groups()) == shipped
    assert len(node) == 2


def test_the_kuberay_example_places_the_papers_run_on_its_workers_and_no_process_on_its_head(tmp_path):
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((ROOT / "examples/kuberay.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert job["kind"] == "RayJob" and "scalerl train" in job["spec"]["entrypoint"]
    head = Host("head", tuple(map(str, range(int(cluster["headGroupSpec"]["rayStartParams"]["num-gpus"])))))
    gpus = tuple(map(str, range(int(container["resources"]["limits"]["nvidia.com/gpu"]))))
    workers = [Host(f"worker {n}", gpus) for n in range(group["replicas"])]
    file = tmp_path / "run.toml"
    file.write_text(PAPER)
    config = read_config(file, [])
    table = devices(config, [head, *workers])
    used = [(at.host, gpu) for (kind, _), at in table.items() if kind != "scorer" for gpu in at.gpus]
    assert len(used) == len(set(used)) == 80 and head.name not in dict(used) and config.loop_device == "cpu"


def test_the_slurm_example_is_a_shell_script():
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    subprocess.run(["bash", "-n", str(ROOT / "examples/slurm.sh")], check=True)
    assert "scalerl resume" in (ROOT / "examples/slurm.sh").read_text()


@pytest.mark.parametrize("page", ["cluster.md", "scale.md", "eight-gpus.md"])
def test_every_plan_command_of_a_page_has_options_that_exist(page):
    text = (ROOT / "docs" / page).read_text()
    commands = re.findall(r"^scalerl plan (\S+) ?(.*)$", text, re.M)
    assert commands
    for file, words in commands:
        _, fields = plan_parser().parse_known_args(words.split())
        assert file.endswith(".toml")
        if fields:
            read_config(None, [*fields, "--data", "p.jsonl", "--model", "Qwen/Qwen3-8B"])
