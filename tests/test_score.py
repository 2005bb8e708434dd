"""`scalerl score`: verdicts on rows by a named verifier."""

import json

from scalerl.cli import main


def scored(tmp_path, capsys, rows, *words):
    """Score rows; return exit code, standard output and standard error."""
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    code = main(["score", str(file), *words])
    return code, *capsys.readouterr()


MATH = [
    {"prompt": "1+1", "completion": "<think>3</think>\\boxed{2}", "answer": "2"},
    {"prompt": "1/2", "completion": "\\boxed{0.5}", "answer": "\\frac{1}{2}"},
    {"prompt": "2+2", "completion": "\\boxed{5}", "answer": 4},
]


def test_json_output_has_one_object_per_row_in_order(tmp_path, capsys):
    code, out, _ = scored(tmp_path, capsys, MATH, "--task", "math", "--json", "--workers", "1")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [row["passed"] for row in rows] == [True, True, False]
    assert [row["score"] for row in rows] == [1.0, 1.0, 0.0]
    assert rows[2] == {"passed": False, "score": 0.0, "reason": "got 5, expected 4"}


def test_programs_are_scored_in_the_configured_sandbox(tmp_path, capsys):
    tests = {"inputs": ["3 4"], "outputs": ["7"]}
    rows = [
        {"prompt": "add", "completion": "```python\nprint(sum(map(int, input().split())))\n```", "tests": tests},
        {"prompt": "add", "completion": "```python\nprint(8)\n```", "tests": json.dumps(tests)},
    ]
    words = ("--task", "code", "--sandbox", "unsafe", "--workers", "1")
    code, out, _ = scored(tmp_path, capsys, rows, *words)
    assert code == 0 and "WITHOUT a sandbox" in out.splitlines()[0]
    assert out.splitlines()[-1] == "1 of 2 passed (50%), mean score 0.500"
