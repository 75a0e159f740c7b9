"""The demo at a small size: real data, real training processes, real episodes, a real page."""

import json
import re
import subprocess
import sys

import gemrl
from gemrl.evaluate.rows import read_rows


def demo(out, *words):
    command = [sys.executable, "-m", "gemrl", "demo", "--out", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


SMALL = ("--steps", "20", "--pretrain-steps", "20", "--data-steps", "3000", "--episodes", "1")


def test_demo_goes_from_data_to_report_and_a_second_run_reuses_everything(tmp_path):
    out = tmp_path / "demo"
    first = demo(out, *SMALL)
    assert first.returncode == 0, first.stderr
    for label in (
        "behaviour cloning",
        "IQL",
        "anchor alone",
        "N 1,",
        "N 64",
        "N 1024",
        "unguarded",
    ):
        assert label in first.stdout
    assert "← chosen" in first.stdout
    assert str(out / "report.html") in first.stdout.replace("\n", "")

    rows = read_rows(out / "rows.jsonl")
    assert {row.protocol for row in rows} == {"validation", "test"}
    assert sum(row.protocol == "test" for row in rows) == 7
    assert {row.data_origin for row in rows} == {"regenerated"}
    assert gemrl.load(out).method == "gem"
    assert gemrl.load(out / "baselines" / "iql").method == "iql"

    page = (out / "report.html").read_text(encoding="utf-8")
    # Self-contained: pictures are inside, and nothing is fetched from anywhere.
    assert len(re.findall(r'src="data:image/png;base64,', page)) >= 10
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "regenerated" in page

    weights = (out / "weights.safetensors").stat().st_mtime_ns
    second = demo(out, *SMALL)
    assert second.returncode == 0, second.stderr
    assert "is there already" in second.stdout
    assert "is trained already" in second.stdout
    assert read_rows(out / "rows.jsonl") == rows
    assert (out / "weights.safetensors").stat().st_mtime_ns == weights

    other = demo(out, *SMALL, "--steps", "21")
    assert other.returncode == 2
    assert "other settings" in other.stderr
    assert len(other.stderr.strip().splitlines()) == 1
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["updates"]["main"] == 20
