"""The page can be made of any runs, whatever they have or lack."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from test_report_settings import made_row

import gemrl
from gemrl.cli import main
from gemrl.data.tasks import TASKS
from gemrl.errors import BundleError, DataError, MissingExtraError
from gemrl.evaluate.report import write_report
from gemrl.evaluate.report.gather import gather
from gemrl.evaluate.results import markdown
from gemrl.evaluate.rows import ROWS, append_rows, read_rows
from gemrl.learn.bundle import MANIFEST, manifest_digest

UMAZE, MEDIUM = "maze2d-umaze-v1", "maze2d-medium-v1"
SEARCH = gemrl.Knobs(n=64, wp=1.0)


def page_of(*runs):
    return write_report(runs, runs[0] / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def run(run_folder, tmp_path):
    """A copy of the trained run without rows."""
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    return folder


@pytest.fixture(scope="module")
def reproduced(run_folder, tmp_path_factory):
    """A folder as `gemrl reproduce` leaves it: a trained policy and rows of two tasks."""
    out = tmp_path_factory.mktemp("reproduced")
    run = out / "runs" / UMAZE / "gem" / "seed-0"
    shutil.copytree(run_folder, run)
    shutil.copytree(run_folder, run / "snapshots" / "0000000300")
    (out / "runs" / UMAZE / "gem" / "seed-1").mkdir()
    (out / "runs" / UMAZE / "gem" / "seed-1" / "metrics.jsonl").write_text('{"update": 1}\n')
    manifest = json.loads((run / MANIFEST).read_text())
    for task, fingerprint in ((UMAZE, manifest["dataset"]["fingerprint"]), (MEDIUM, "e" * 64)):
        append_rows(out / "rows" / f"{task}.jsonl", _rows_of(task, fingerprint))
    return out


def _rows_of(task, fingerprint):
    rng = np.random.default_rng(len(task))
    settings = [("bc", gemrl.Knobs(n=0, wp=0.0), "test"), ("iql", gemrl.Knobs(n=0, wp=0.0), "test")]
    settings += [("gem", replace(SEARCH, n=n), "test") for n in (0, 64, 1024)]
    settings += [("gem", replace(SEARCH, n=64, wp=wp), "validation") for wp in (0.1, 0.4, 1.0)]
    return [
        made_row(
            float(rng.normal(50, 5)) + 10 * (knobs.wp == 1.0),
            knobs,
            method,
            seed,
            episode + 1_000_000 * (protocol == "test"),
            protocol,
            task=task,
            data_fingerprint=fingerprint,
            violation=float(rng.uniform()),
            wall_seconds=1.0,
            decide_seconds=0.5,
            simulate_seconds=0.25,
        )
        for method, knobs, protocol in settings
        for seed in (0, 1)
        for episode in range(3)
    ]


@pytest.fixture(scope="module")
def page(reproduced):
    return page_of(reproduced)


def test_a_run_with_no_rows_and_no_dataset_file_gets_a_page_that_says_so(run):
    page = page_of(run)
    assert "No test rows yet" in page
    assert "dataset is not where it was" in page


def test_a_run_with_one_evaluation_gets_a_page_with_its_line_and_its_decisions(run):
    policy = gemrl.load(run)
    knobs = gemrl.Knobs(n=8, wp=0.7)
    gemrl.evaluate_policy(policy, knobs, episodes=2, rows_file=run / ROWS, quiet=True)
    page = page_of(run)
    assert "GEM, N 8" in page
    assert "the only search tested" in page
    assert "between episodes of one training seed" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    # The dataset is gone, so states are those that the episodes went through.
    assert "dataset is not where it was" in page
    assert "One decision, seen from inside" in page
    assert "What it does in the maze" in page


@pytest.mark.parametrize(
    ("kind", "dimensions"),
    [
        (gemrl.GemConfig, 3),
        (gemrl.BcConfig, 1),
        pytest.param(gemrl.GemConfig, 1, marks=pytest.mark.long),
        pytest.param(gemrl.BcConfig, 3, marks=pytest.mark.long),
    ],
)
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
    page = page_of(tmp_path / "run")
    assert "no benchmark task" in page
    assert "3 observed" in page
    pictured = kind is gemrl.GemConfig and dimensions > 1
    assert ("One decision, seen from inside" in page) == pictured


def test_data_whose_reader_is_not_installed_is_left_out(run, monkeypatch):
    def missing(*args, **kwargs):
        raise MissingExtraError("reading logs needs pyarrow")

    monkeypatch.setattr("gemrl.evaluate.report.section.load_dataset", missing)
    page = page_of(run)
    assert "dataset is not where it was at training: reading logs needs pyarrow." in page


def test_a_report_that_cannot_be_written_is_refused_by_its_own_name(run):
    with pytest.raises(DataError, match=r"^cannot write /proc/x\.html: "):
        write_report([run], Path("/proc/x.html"))


def test_several_tasks_get_an_overview_and_a_section_each(page):
    assert "Normalized score on test seeds, by task and method" in page
    assert "P(GEM &gt; IQL)" in page
    assert "Performance profile" in page
    for index, task in enumerate((UMAZE, MEDIUM)):
        assert f'<section id="task-{index}">\n<h2>{task}</h2>' in page
        assert f'<a href="#task-{index}">{task}</a>' in page
    assert "chosen on validation seeds" in page
    assert not re.findall(r'(?:src|href)="(?!data:|#task-)', page)
    assert page.startswith("<!doctype html>")


def test_every_table_and_chart_of_scores_says_which_seeds_it_is_of(page):
    captions = re.findall(r"<caption>(.*?)</caption>", page)
    untold = [c for c in captions if "test seeds" not in c and "validation seeds" not in c]
    assert set(untold) == {"Policies", "Likelihood of the logged actions"}
    charts = re.findall(r'<img class="chart[^>]*alt="([^"]*)"', page)
    assert len(charts) > 10
    told = ("test seeds", "validation seeds", "against updates", "Score against", "Performance")
    assert all(any(words in alt for words in told) for alt in charts)


def test_the_page_labels_data_environment_seeds_episodes_and_last_step(page):
    for text in (
        "regenerated, fingerprint",
        f"gemrl/{UMAZE} on mujoco 3.3.0",
        "0, 1",
        "3 on test seeds, 3 on validation seeds",
        "after 100 updates",
        "GEM: chosen on validation seeds",
        "Configuration: gem, seeds 0",
        "jaxlib",
        "steps a second",
    ):
        assert text in page


def test_unfinished_training_is_named_and_snapshots_are_no_policies_of_their_own(page, reproduced):
    assert f"{reproduced}/runs/{UMAZE}/gem/seed-1: training has not finished" in page
    assert "snapshots" not in page


def test_the_same_rows_make_the_same_page(reproduced, tmp_path):
    files = [reproduced / "rows" / f"{MEDIUM}.jsonl"]
    once, again = (write_report(files, tmp_path / name) for name in ("a.html", "b.html"))
    assert once.read_bytes() == again.read_bytes()


def test_the_page_needs_no_environment_installed(reproduced, tmp_path):
    runs = [reproduced / "runs" / UMAZE / "gem", reproduced / "rows" / f"{MEDIUM}.jsonl"]
    words = ["report", *map(str, runs), "--out", str(tmp_path / "x.html")]
    code = (
        "import sys\n"
        "for name in ('mujoco', 'gymnasium', 'gymnasium_robotics'): sys.modules[name] = None\n"
        "from gemrl.cli import main\n"
        f"sys.exit(main({words!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.html").read_text(encoding="utf-8").count("<section id=") == 2


def test_a_run_its_seeds_and_files_of_rows_are_all_found_and_rows_counted_once(
    reproduced, tmp_path
):
    run = reproduced / "runs" / UMAZE / "gem"
    assert len(gather([run / "seed-0"]).subjects[0].sources) == 1
    assert len(gather([run]).subjects[0].sources) == 1
    file = reproduced / "rows" / f"{UMAZE}.jsonl"
    shutil.copy(file, tmp_path / "copy.jsonl")
    both = gather([reproduced, tmp_path / "copy.jsonl", file])
    assert len(both.subjects[0].rows) == len(read_rows(file))
    assert [subject.task for subject in both.subjects] == [UMAZE, MEDIUM]


def test_rows_of_different_data_are_never_averaged(tmp_path):
    rows = [made_row(10.0), made_row(90.0, data_fingerprint="d" * 64, bundle="other")]
    append_rows(tmp_path / ROWS, rows)
    page = page_of(tmp_path)
    assert f"<h2>{UMAZE}, data ffffffff</h2>" in page
    assert f"<h2>{UMAZE}, data dddddddd</h2>" in page
    tables = re.findall(r"<caption>Scores on test seeds</caption>.*?</table>", page, re.DOTALL)
    scores = [re.findall(r'data-value="([^"]*)"', table)[1] for table in tables]
    assert sorted(scores) == ["10.0", "90.0"]


def test_policies_that_share_a_training_seed_are_pointed_out(tmp_path):
    append_rows(tmp_path / ROWS, [made_row(1.0), made_row(2.0, bundle="other", episode=1)])
    assert "2 different policies of GEM share training seed 0" in page_of(tmp_path)


HOSTILE = '"><script>alert(1)</script>'


def test_hostile_names_are_escaped(run, tmp_path):
    row = made_row(
        task=HOSTILE,
        env_id=HOSTILE,
        simulator=HOSTILE,
        method=HOSTILE,
        bundle=HOSTILE,
        data_origin=HOSTILE,
        data_fingerprint=HOSTILE,
    )
    folder = tmp_path / "<script>alert(2)<"
    shutil.copytree(run, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["dataset"] |= {"source": HOSTILE, "origin": HOSTILE, "fingerprint": HOSTILE}
    manifest["task"], manifest["software"]["jax"] = None, HOSTILE
    manifest["digest"] = manifest_digest(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    append_rows(folder / ROWS, [row, replace(row, task="b" + HOSTILE)])
    page = page_of(folder)
    assert page.count("<script>") == 1, "the page's own"
    assert "alert(2)" in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"score": float("nan")}, "score = nan, which is not finite"),
        ({"score": "high"}, "score = 'high'"),
        ({"updates": 1.5}, "updates = 1.5"),
        ({"task": None}, "task = None"),
    ],
)
def test_rows_of_the_wrong_kind_are_refused_by_name(tmp_path, change, said):
    append_rows(tmp_path / ROWS, [replace(made_row(), **change)])
    with pytest.raises(DataError, match=re.escape(f"{ROWS}, line 1: a row with {said}")):
        gather([tmp_path])


def test_a_folder_without_policies_or_rows_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "no policy in" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_a_manifest_that_lacks_a_field_is_refused_by_name(run):
    manifest = json.loads((run / MANIFEST).read_text())
    del manifest["updates"]
    manifest["digest"] = manifest_digest(manifest)
    (run / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"manifest\.json: lacks a field .*updates"):
        gather([run])


def test_metrics_that_cannot_be_read_are_refused_by_name(run):
    (run / "metrics.jsonl").write_text("{half a line\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl"):
        page_of(run)


def test_rows_of_different_tasks_are_not_averaged(tmp_path):
    append_rows(tmp_path / ROWS, [made_row(), made_row(task=MEDIUM)])
    with pytest.raises(DataError, match="more than one task"):
        markdown(read_rows(tmp_path / ROWS))
    assert {s.task for s in gather([tmp_path]).subjects} == {UMAZE, MEDIUM} <= set(TASKS)


def in_browser(page, folder):
    """What a page's scripts wrote into its title, in a headless browser."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no chromium is installed to open the page in")
    file = folder / "page.html"
    file.write_text(page)
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    words += ["--disable-background-networking", f"--user-data-dir={folder / 'profile'}"]
    words += ["--window-size=1280,900", "--dump-dom", file.as_uri()]
    done = subprocess.run([browser, *words], capture_output=True, text=True, timeout=120)
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found, done.stderr
    return json.loads(found[1])


def test_a_click_on_a_heading_sorts_its_table_up_and_then_down(page, tmp_path):
    script = """
      const table = document.querySelectorAll("table.sortable")[1];
      const head = table.tHead.rows[0].cells[1];
      const seen = () => [head.getAttribute("aria-sort"),
        ...[...table.tBodies[0].rows].map((row) => Number(row.cells[1].dataset.value))];
      const button = head.querySelector("button");
      button.focus();
      const found = [document.activeElement === button, seen()];
      for (const _ of [1, 2]) { button.click(); found.push(seen()); }
      document.title = JSON.stringify(found);
    """
    clicked = page.replace("</body>", f"<script>{script}</script></body>")
    focused, before, up, down = in_browser(clicked, tmp_path)
    assert focused
    assert before[0] == "none"
    assert up == ["ascending", *sorted(before[1:])]
    assert down == ["descending", *sorted(before[1:], reverse=True)]


def test_on_a_phone_tables_scroll_in_their_own_box_and_the_page_does_not(page, tmp_path):
    # A window has a least width, a frame has none.
    script = """
      const page = document.querySelector("iframe").contentDocument;
      const boxes = [...page.querySelectorAll(".scroll")];
      const whole = page.documentElement;
      document.title = JSON.stringify([whole.clientWidth, whole.scrollWidth,
        boxes.filter((box) => box.scrollWidth > box.clientWidth).length,
        boxes.every((box) => box.tabIndex === 0)]);
    """
    frame = f'<iframe style="width: 390px; border: 0" srcdoc="{escape(page)}"></iframe>'
    phone = f"<title></title>{frame}<script>addEventListener('load', () => {{ {script} }})</script>"
    width, needed, scrolling, reachable = in_browser(phone, tmp_path)
    assert needed == width <= 390
    assert scrolling > 0
    assert reachable
