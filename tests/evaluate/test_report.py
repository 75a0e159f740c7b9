"""The page can be made of any run, whatever it has or lacks."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import gemrl
from gemrl.errors import DataError, MissingExtraError
from gemrl.evaluate.report import write_report
from gemrl.evaluate.results import markdown
from gemrl.evaluate.rows import read_rows


def page_of(run):
    return write_report([run], run / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def run(run_folder, tmp_path):
    """A copy of the trained run without rows."""
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    return folder


def test_a_run_with_no_rows_and_no_dataset_file_gets_a_page_that_says_so(run):
    page = page_of(run)
    assert "No test rows yet" in page
    assert "dataset is not where it was" in page


def test_a_run_with_one_evaluation_gets_a_page_with_its_line(run):
    policy = gemrl.load(run)
    knobs = gemrl.Knobs(n=4, wp=0.7)
    gemrl.evaluate_policy(policy, knobs, episodes=2, rows_file=run / "rows.jsonl", quiet=True)
    page = page_of(run)
    assert "GEM, N 4" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


@pytest.mark.parametrize("dimensions", [1, 3])
@pytest.mark.parametrize("kind", [gemrl.GemConfig, gemrl.BcConfig])
def test_runs_of_any_action_size_and_without_a_task_get_a_page(tmp_path, kind, dimensions):
    rng = np.random.default_rng(0)
    path = tmp_path / "logs.npz"
    np.savez(
        path,
        observations=rng.normal(size=(200, 3)),
        actions=rng.uniform(-1, 1, size=(200, dimensions)),
        rewards=rng.normal(size=200),
        terminals=np.arange(200) % 20 == 19,
    )
    extra = {"pretrain_steps": 5} if kind is gemrl.GemConfig else {}
    config = kind(steps=5, hidden=(8, 8), batch_size=16, **extra)
    gemrl.train(gemrl.load_dataset(path), config, tmp_path / "run", quiet=True)
    assert "no benchmark task" in page_of(tmp_path / "run")


def test_data_whose_reader_is_not_installed_is_left_out(run, monkeypatch):
    def missing(*args, **kwargs):
        raise MissingExtraError("reading logs needs pyarrow")

    monkeypatch.setattr("gemrl.evaluate.report.load_dataset", missing)
    assert "dataset is not where it was" in page_of(run)


def test_a_report_that_cannot_be_written_is_refused_by_its_own_name(run):
    with pytest.raises(DataError, match=r"^cannot write /proc/x\.html: "):
        write_report([run], Path("/proc/x.html"))


def test_rows_of_different_tasks_are_not_averaged(run):
    policy = gemrl.load(run)
    for task in ("maze2d-umaze-v1", "maze2d-medium-v1"):
        gemrl.evaluate_policy(
            policy,
            gemrl.Knobs(n=0),
            task=task,
            episodes=1,
            rows_file=run / "rows.jsonl",
            quiet=True,
        )
    with pytest.raises(DataError, match="more than one task"):
        markdown(read_rows(run / "rows.jsonl"))
