"""The same cells on a Ray cluster."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import gemrl
from gemrl.errors import ConfigError, EvaluationError, MissingExtraError
from gemrl.evaluate import cluster as module
from gemrl.evaluate.cells import TRIES, Cell, run_cells
from gemrl.evaluate.cluster import cluster
from gemrl.evaluate.rows import read_rows

# Ray puts its workers at a low priority, where other work on the machine would starve them.
os.environ.setdefault("RAY_worker_niceness", "0")
ray = pytest.importorskip("ray", reason="Ray is not installed: gemrl[cluster]")

KNOBS = [gemrl.Knobs(n=4, wp=wp) for wp in (0.2, 0.5, 1.0)]
REMOTE = "127.0.0.1:9"


def without_times(rows):
    return [{k: v for k, v in vars(row).items() if not k.endswith("_seconds")} for row in rows]


def cells_of(run):
    return [Cell(Path(run), knobs, 2, "validation") for knobs in KNOBS]


def evaluate(cells, file, runner=None):
    return run_cells(cells, lambda _: file, runner, quiet=True)


@pytest.fixture(scope="module")
def rows(run_folder, tmp_path_factory):
    """Two episodes of each setting, run in this process."""
    return evaluate(cells_of(run_folder), tmp_path_factory.mktemp("rows") / "rows.jsonl")


@pytest.fixture(scope="module")
def local():
    """One local cluster for all tests here."""
    with module._local(ray, 2):
        yield cluster("local")


def at_work():
    """Workers of this process's cluster that are at a cell."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if command.read_text().startswith("ray::_evaluate"):
                pid = int(command.parent.name)
                if parent_of(parent_of(pid)) == os.getpid():  # The raylet stands between.
                    found.append(pid)
        except OSError:  # It has just ended.
            continue
    return found


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.long
def test_a_cluster_gives_the_rows_that_one_process_gives(local, run_folder, rows, tmp_path):
    found = evaluate(cells_of(run_folder), tmp_path / "rows.jsonl", local)
    assert without_times(found) == without_times(rows)
    assert {row.bundle for row in found} == {gemrl.load(run_folder).digest}


def test_workers_need_no_file_of_the_drivers(local, run_folder, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(run_folder.parent)
    run = run_folder.name
    assert Path(run).exists()
    assert not ray.get(ray.remote(os.path.exists).remote(run))
    found = evaluate(cells_of(run)[:1], tmp_path / "rows.jsonl", local)
    assert without_times(found) == without_times(rows[:2])


def test_a_mistake_that_a_worker_finds_comes_back_as_one_line(local, run_folder, tmp_path):
    with pytest.raises(EvaluationError, match="hopper-medium-v2 has 11 observation") as caught:
        evaluate(
            [Cell(run_folder, KNOBS[0], 1, task="hopper-medium-v2")],
            tmp_path / "rows.jsonl",
            local,
        )
    assert "\n" not in str(caught.value)


def test_a_worker_of_another_version_is_refused(local, run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(gemrl, "__version__", "0.0.1")
    with pytest.raises(EvaluationError, match=r"0\.0\.1 here: install the same"):
        evaluate(cells_of(run_folder)[:1], tmp_path / "rows.jsonl", local)


def test_a_killed_worker_costs_one_cell_which_is_tried_again(local, run_folder, rows, tmp_path):
    killed = []

    def run(jobs):
        for done in local(jobs):
            until = time.monotonic() + 60
            while not killed and time.monotonic() < until:
                for pid in at_work()[:1]:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            yield done

    found = evaluate(cells_of(run_folder), tmp_path / "rows.jsonl", run)
    assert len(killed) == 1
    assert without_times(found) == without_times(rows)
    assert len(read_rows(tmp_path / "rows.jsonl")) == len(rows)


@pytest.mark.long
def test_a_cell_whose_worker_always_dies_is_an_error_that_names_it(local, run_folder, tmp_path):
    killed, over = set(), threading.Event()

    def kill_all():
        while not over.is_set():
            for pid in at_work():
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        with pytest.raises(EvaluationError, match=rf"N 4, λ 1, w_p 0\.5: .* died {TRIES} times"):
            evaluate(cells_of(run_folder)[1:2], tmp_path / "rows.jsonl", local)
    finally:
        over.set()
        killer.join()
    assert len(killed) == TRIES


DRIVER = """
import sys
from pathlib import Path
from gemrl.decide.knobs import Knobs
from gemrl.evaluate.cells import Cell, run_cells
from gemrl.evaluate.cluster import cluster
run, file, address = sys.argv[1:]
cells = [Cell(Path(run), Knobs(n=4, wp=wp), 2, "validation") for wp in (0.2, 0.5, 1.0)]
run_cells(cells, lambda _: Path(file), cluster(address), quiet=True)
"""


def driver_of(run, file, address):
    """A driver in a process group of its own."""
    command = [sys.executable, "-c", DRIVER, str(run), str(file), address]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)


def wait_for_a_row(driver, file):
    until = time.monotonic() + 180
    while not read_rows(file):
        assert driver.poll() is None, driver.stderr.read()
        assert time.monotonic() < until, "no row came"
        time.sleep(0.02)


@pytest.mark.long
def test_a_killed_driver_started_again_loses_nothing_and_repeats_nothing(
    local, run_folder, rows, tmp_path, monkeypatch
):
    file = tmp_path / "rows.jsonl"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    # A second driver, which joins the cluster by its address and token as a remote one does.
    driver = driver_of(run_folder, file, ray.get_runtime_context().gcs_address)
    try:
        wait_for_a_row(driver, file)
    finally:
        driver.kill()
        driver.communicate()
    left, handed = read_rows(file), []

    def noting(jobs):
        handed.extend(jobs)
        return local(jobs)

    found = evaluate(cells_of(run_folder), file, noting)
    assert len(handed) == len(KNOBS) - len({row.cell for row in left})
    assert read_rows(file)[: len(left)] == left
    assert len(read_rows(file)) == len(rows)
    assert without_times(found) == without_times(rows)


def processes_of_session(session):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.long
def test_ctrl_c_ends_a_local_cluster_and_keeps_its_rows(run_folder, tmp_path):
    file = tmp_path / "rows.jsonl"
    driver = driver_of(run_folder, file, "local")
    try:
        wait_for_a_row(driver, file)
        os.killpg(driver.pid, signal.SIGINT)
        _, said = driver.communicate(timeout=120)
    finally:
        driver.kill()
        driver.communicate()
    assert said.count("Traceback") == 1
    assert "KeyboardInterrupt" in said
    until = time.monotonic() + 60
    while processes_of_session(driver.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert processes_of_session(driver.pid) == []
    assert len(read_rows(file)) % 2 == 0


# What is refused


@pytest.fixture
def no_token(monkeypatch, tmp_path):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def test_a_remote_cluster_without_a_token_is_refused_with_a_way_out(no_token):
    no_token.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(ConfigError, match=r"no token.*RAY_AUTH_TOKEN.*ray get-auth-token"):
        cluster(REMOTE)
    no_token.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere/token")
    with pytest.raises(ConfigError, match="/nowhere/token"):
        cluster(REMOTE)


def test_a_cluster_that_asks_for_no_token_is_noticed(local, monkeypatch):
    module._require_guarded(ray, REMOTE)
    monkeypatch.setattr(module, "_authentication", lambda: None)
    with pytest.raises(EvaluationError, match=r"asks for no token.*RAY_AUTH_MODE=token"):
        module._require_guarded(ray, REMOTE)


@pytest.mark.parametrize("mode", ["disabled", None])
def test_a_remote_cluster_without_authentication_is_refused(no_token, mode):
    no_token.setenv("RAY_AUTH_TOKEN", "a token")
    if mode:
        no_token.setenv("RAY_AUTH_MODE", mode)
    # Ray has been imported: too late to turn its authentication on.
    with pytest.raises(ConfigError, match="start with RAY_AUTH_MODE=token"):
        cluster(REMOTE)


def test_authentication_is_turned_on_before_ray_is_imported(no_token):
    no_token.setenv("RAY_AUTH_TOKEN", "a token")
    no_token.delitem(sys.modules, "ray")
    module._require_token(REMOTE)
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_a_remote_cluster_with_a_token_or_on_a_trusted_network_is_accepted(no_token, tmp_path):
    assert callable(cluster(REMOTE, insecure=True))
    no_token.setenv("RAY_AUTH_MODE", "token")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a token")
    assert callable(cluster(REMOTE))


@pytest.mark.parametrize("address", [REMOTE, f"ray://{REMOTE}", "[::1]:9"])
def test_an_address_where_nobody_answers_is_an_error_in_one_line(address):
    with pytest.raises(EvaluationError, match=r"answers at .*:9 .*ray start") as caught:
        module._remote(ray, address, insecure=False).__enter__()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["", "auto", "here", "host", "http://host:1", "host:port"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigError, match=r"HOST:PORT"):
        cluster(address)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"gemrl\[cluster\]"):
        cluster("local")
