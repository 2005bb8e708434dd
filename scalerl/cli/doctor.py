"""`scalerl doctor`: checks this machine, or the machines of a configuration, in two minutes."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict

from scalerl.cli.exits import FAILED
from scalerl.cli.options import Parser, add_json, add_trust, parse_with_config
from scalerl.cli.terminal import print_lines
from scalerl.core.packages import TRAINING_MODULES, prepare_environment
from scalerl.core.working import Working
from scalerl.training.config import HuggingFaceModel, read_config
from scalerl.training.config.trust import check_trust
from scalerl.training.models.files import check_model_files

DESCRIPTION = """check that a run will work here, in two minutes: versions, GPUs, the learner and the FP32 head against
float64, the network between trainer ranks and hosts, a vLLM server, disk and memory. One line each: works, works
slowly, or does not work with the cause and the cure. Without CONFIG: one trainer on each GPU of this machine. Every
field of the configuration is an option, as for `scalerl train`. The exit code is 1 if something does not work."""


def run_doctor(words: list[str]) -> int:
    """Run `scalerl doctor`; return the exit code.

    Raises:
        ConfigError: The configuration is invalid.
    """
    usage = "scalerl doctor [CONFIG.toml] [--json] [--trust] [--any.field VALUE ...]"
    parser = Parser(prog="scalerl doctor", usage=usage, description=DESCRIPTION, allow_abbrev=False)
    add_json(parser, "print JSON (docs/json.md), for a bug report")
    add_trust(parser, "the code that CONFIG.toml names")
    file, options, fields = parse_with_config(parser, words)
    prepare_environment(TRAINING_MODULES)
    from scalerl.training.machines.doctor import FAILS, examine

    config = read_config(file, fields) if file or fields else None
    if config is not None:
        if isinstance(config.model, HuggingFaceModel):
            check_model_files(config.model.path)
        check_trust([config], str(file or "the command line"), trusted=options.trust or file is None, typed=fields)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the lines of the checks give the reasons
    findings = []
    with Working("checking"):
        for finding in examine(config):
            findings.append(finding)
            if not options.json:
                print_lines(f"{finding.check:<9}  {finding.verdict}: {finding.text}")
    if options.json:
        print(json.dumps({"host": platform.node(), "checks": [asdict(finding) for finding in findings]}, indent=1))
    return FAILED if any(finding.verdict == FAILS for finding in findings) else 0
