"""A server as a user starts one: `gemrl serve` in a process of its own, with a policy's folder."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from deciders.policies import load_policy


class ServerProcess:
    """A context manager: `port` is where it listens, from when it is ready."""

    def __init__(self, run: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gemrl", "serve", str(run), "--port", "0", *words],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._ready.wait()
        ready = [line for line in self.said if line.startswith("ready: ")]
        if not ready:
            raise RuntimeError(f"the server did not start: {''.join(self.said)}")
        self.url = ready[0].split()[1]
        self.port = int(self.url.rpartition(":")[2])

    def _listen(self) -> None:
        """Keep what it says, so that its pipe never fills."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("ready: "):
                self._ready.set()
        self._ready.set()

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def write_policy(dimensions: int, folder: Path) -> Path:
    """A benchmark's policy as a run folder. Its value network, which no decision reads, is new."""
    import dataclasses

    import jax

    from gemrl.learn.bundle import config_from_json, save_bundle
    from gemrl.methods import method_named

    bundle = load_policy(dimensions, "jax").bundle
    manifest, spec = bundle.manifest, bundle.spec
    name = manifest["method"]
    method, config = method_named(name), config_from_json(name, manifest["config"])
    fresh = method.models(method.init(config, spec.obs_dim, spec.action_dim, jax.random.key(0)))
    models = dataclasses.replace(bundle.models, value=fresh.value)
    known = ("method", "config", "spec", "digest")
    about = {key: value for key, value in manifest.items() if key not in known}
    save_bundle(folder, name, config, models, spec, **about)
    return folder


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_seconds(process: int) -> float:
    """What a process has worked, in seconds of a core."""
    stat = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
