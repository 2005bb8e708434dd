"""Completion in shells: commands, options and fields of the configuration."""

import shutil
import subprocess

import pytest

from scalerl.cli import main
from scalerl.cli.completion import SHELLS
from scalerl.cli.main import COMMANDS

ASK = """
source "$1"
shift
function=$(complete -p scalerl | sed 's/.*-F \\([a-zA-Z_]*\\).*/\\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
$function scalerl "${@: -1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    return {shell: tmp_path_factory.mktemp(shell) / "script" for shell in SHELLS}


@pytest.fixture
def script(request, scripts, capsys):
    def written(shell):
        if not scripts[shell].exists():
            assert main(["completion", shell]) == 0
            scripts[shell].write_text(capsys.readouterr().out)
        return scripts[shell]

    return written


@pytest.mark.parametrize(
    ("words", "proposals"),
    [
        ("scalerl re", {"report", "resume", "recipes"}),
        ("scalerl train --recipe.loss.", {"--recipe.loss.kind", "--recipe.loss.max_ratio"}),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(words, proposals, script):
    done = subprocess.run(
        ["bash", "-c", ASK, "ask", script("bash"), *words.split()], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == proposals


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_has_every_command(shell, script):
    text = script(shell).read_text()
    assert all(name in text for name in COMMANDS) and "--recipe.off_policy.max_lag" in text
