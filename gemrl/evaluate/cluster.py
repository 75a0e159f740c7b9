"""Cells on a Ray cluster: of this machine's cores, or of many machines.

What goes to a worker is the work as a line of JSON and, once for each policy, the two files of its
bundle, since machines need not share a file system. What comes back is a line of JSON.
"""

import fcntl
import json
import os
import re
import secrets
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import IO, Any

import gemrl
from gemrl.decide.policy import Policy
from gemrl.errors import ConfigError, EvaluationError, MissingExtraError
from gemrl.evaluate.cells import (
    TRIES,
    Done,
    Runner,
    Work,
    describe,
    load_policy,
    policy_of,
    rows_of,
)
from gemrl.evaluate.rows import Row
from gemrl.evaluate.workers import answer, gave_up, rows_in
from gemrl.learn.bundle import MANIFEST, WEIGHTS
from gemrl.learn.parallel import core_sets
from gemrl.progress import say

LOCAL = "local"
ADDRESS = re.compile(r"(ray://)?(?P<host>[^/:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
# Seconds until an address without an answer is given up.
REACHED_WITHIN = 10.0
MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Where Ray looks for its authentication."""

Ref = Any
"""Ray's reference to a value in its object store."""


def cluster(address: str, *, insecure: bool = False) -> Runner:
    """Run cells on the Ray cluster at HOST:PORT or ray://HOST:PORT, or on `local`: one of this
    machine's cores, which ends with the run. A process that has a connection to Ray keeps to it.

    Whoever reaches a Ray cluster can run code on it. So a remote one must ask for a token, unless
    `insecure` says that its network is trusted.
    """
    if address != LOCAL and not ADDRESS.fullmatch(address):
        raise ConfigError(
            f"cluster = {address!r}: must be {LOCAL}, HOST:PORT or ray://HOST:PORT of a Ray cluster"
        )
    if address != LOCAL and not insecure:
        _require_token(address)
    ray = _load_ray()

    def run(jobs: Sequence[Work]) -> Iterator[Done]:
        if ray.is_initialized():
            yield from _spread(ray, jobs)
            return
        place = _local(ray, len(jobs)) if address == LOCAL else _remote(ray, address, insecure)
        with place:
            yield from _spread(ray, jobs)

    return run


def _load_ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        return import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            "this needs ray, which is not installed: pip install 'gemrl[cluster]'"
        ) from error


def _require_token(address: str) -> None:
    """Turn Ray's authentication on. Refuse to go on without a token."""
    mode = os.environ.get(MODE)
    # Ray reads the variable once, when it is imported.
    if mode is None and "ray" not in sys.modules:
        mode = os.environ[MODE] = "token"
    if mode != "token":
        raise ConfigError(
            f"{MODE} is {mode or 'not set'}, so {address} would be used without authentication: "
            f"start with {MODE}=token, here and on each machine of the cluster"
        )
    file = Path(os.environ.get(TOKEN_FILE) or Path.home() / ".ray" / "auth_token")
    if not os.environ.get(TOKEN) and not (file.is_file() and file.stat().st_size):
        raise ConfigError(
            f"no token for the Ray cluster at {address}: put the one that it was started with into "
            f"{file} or {TOKEN}, or make one with `ray get-auth-token --generate`"
        )


@contextmanager
def _local(ray: Any, jobs: int) -> Iterator[None]:
    """A cluster of this machine's cores, for the time of the block."""
    # Ray listens on all interfaces even here, so it has a token, which nobody else knows. That
    # there is authentication is Ray's own default for such a cluster.
    before = {name: os.environ.pop(name, None) for name in (MODE, TOKEN)}
    os.environ[TOKEN] = _own_token()
    # A folder of its own: Ray's usual one may belong to another user or another cluster.
    with TemporaryDirectory(prefix="gemrl-ray-", ignore_cleanup_errors=True) as folder:
        try:
            _connect(
                ray,
                LOCAL,
                num_cpus=len(core_sets(jobs)),
                include_dashboard=False,
                _temp_dir=folder,
            )
            yield
        finally:
            ray.shutdown()
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


@lru_cache(maxsize=1)
def _own_token() -> str:
    """The token of this process's local clusters. Ray reads the first and keeps to it."""
    return secrets.token_hex(32)


@contextmanager
def _remote(ray: Any, address: str, insecure: bool) -> Iterator[None]:
    """A connection to a cluster, for the time of the block."""
    _require_reachable(address)
    try:
        _connect(ray, address)
        if not insecure:
            _require_guarded(ray, address)
        if ray.cluster_resources().get("CPU", 0) < 1:
            say(f"the Ray cluster at {address} has no CPU: waiting for a machine to join it")
        yield
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Ray itself would try for minutes, and fill the screen."""
    found = ADDRESS.fullmatch(address)
    assert found is not None
    host, port = found["host"].strip("[]"), int(found["port"])
    try:
        socket.create_connection((host, port), REACHED_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise EvaluationError(
            f"no Ray cluster answers at {address} ({error}): start one with `ray start --head`"
        ) from error


def _require_guarded(ray: Any, address: str) -> None:
    """A cluster without authentication takes any token: ask it how it was started."""
    try:
        mode = ray.get(ray.remote(num_cpus=0)(_authentication).remote())
    except ray.exceptions.RayError as error:
        raise EvaluationError(
            f"{address}: {_words(error)} (each machine of the cluster needs gemrl "
            f"{gemrl.__version__})"
        ) from error
    if mode != "token":
        raise EvaluationError(
            f"the Ray cluster at {address} asks for no token: whoever reaches it can run code on "
            f"it: start it with {MODE}=token"
        )


def _authentication() -> str | None:
    """How the cluster of this worker was started. Runs in a worker."""
    return os.environ.get(MODE)


def _connect(ray: Any, address: str, **options: Any) -> None:
    try:
        with warnings.catch_warnings():
            # JAX warns of forks; what Ray forks becomes another program at once.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            ray.init(address, log_to_driver=False, logging_level="error", **options)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        hint = "" if address == LOCAL else "; is the token the one that it was started with?"
        raise EvaluationError(f"no Ray cluster ({address}): {_words(error)}{hint}") from error


def _spread(ray: Any, jobs: Sequence[Work]) -> Iterator[Done]:
    """Hand out all jobs and yield what comes back. One whose worker dies is handed out again."""
    # Ray's own retries have no end where memory runs out, so they are counted here.
    evaluate = ray.remote(num_cpus=1, max_retries=0)(_evaluate)
    stored: dict[str, Ref] = {}

    def store(folder: str) -> Ref:
        if folder not in stored:
            stored[folder] = ray.put(_files(Path(folder)))
        return stored[folder]

    def submit(job: Work) -> Ref:
        # Inside a map Ray leaves references alone: a worker fetches a policy that it lacks.
        folders = [job["run"], *(folder for folder, _ in job["others"].values())]
        bundles = {folder: store(folder) for folder in folders}
        return evaluate.remote(json.dumps(job), bundles, gemrl.__version__)

    running = {submit(job): (job, 1) for job in jobs}
    while running:
        (ended, *_), _ = ray.wait(list(running))
        job, tries = running.pop(ended)
        try:
            line = ray.get(ended)
        except ray.exceptions.RayTaskError as error:
            raise EvaluationError(
                f"{describe(job)}: {_words(error)} (each machine of the cluster needs gemrl "
                f"{gemrl.__version__})"
            ) from error
        except ray.exceptions.RayError as error:
            if tries == TRIES:
                raise gave_up(job) from error
            running[submit(job)] = (job, tries + 1)
            continue
        yield job, rows_in(line, job)


def _files(folder: Path) -> dict[str, bytes]:
    """A bundle as the contents of its files."""
    return {name: (folder / name).read_bytes() for name in (MANIFEST, WEIGHTS)}


def _words(error: Exception) -> str:
    """What an error of Ray's says, in one line: its last, where a traceback comes before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _evaluate(line: str, bundles: dict[str, Ref], version: str) -> str:
    """A cell's answer. Runs in a worker; `bundles` are its policies by their folders' names."""

    def rows(job: Work) -> list[Row]:
        if gemrl.__version__ != version:
            raise EvaluationError(
                f"gemrl {gemrl.__version__} on {socket.gethostname()} and {version} here: install "
                "the same on all machines"
            )
        _keep_to_a_core()
        policy = policy_of(job, lambda folder, digest: _unpacked(bundles[folder], digest))
        return rows_of(policy, job)

    return answer(json.loads(line), rows)


@lru_cache(maxsize=1)
def _keep_to_a_core() -> IO[str] | None:
    """Take a core that no other worker of this machine has, until this one ends.

    Ray counts its workers by cores but lets each use all of them, and so would the networks do.
    """
    for core in sorted(os.sched_getaffinity(0)):
        lock = open(Path(gettempdir()) / f"gemrl-core-{core}-{os.getuid()}.lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        os.sched_setaffinity(0, [core])
        return lock
    return None


def _unpacked(bundle: Ref, digest: str) -> Policy:
    """The policy out of the object store. Its files are checked as any bundle's are."""
    files: dict[str, bytes] = _load_ray().get(bundle)
    with TemporaryDirectory(prefix="gemrl-") as folder:
        for name, contents in files.items():
            (Path(folder) / name).write_bytes(contents)
        return load_policy(folder, digest)
