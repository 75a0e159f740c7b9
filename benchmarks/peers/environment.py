"""The virtual environment of the peers, which gemrl itself has no need of."""

import functools
import os
import subprocess
import sys
import venv
from pathlib import Path

PINS = {"torch": "2.13.0", "d3rlpy": "2.8.1", "onnx": "1.23.2", "onnxruntime": "1.31.1"}
FOLDER = Path(__file__).resolve().parents[2] / ".venv-peers"


def _has_pins(python: Path) -> bool:
    """Are the pinned versions there? A build's own suffix, as in 2.13.0+cpu, does not matter."""
    code = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    if not python.exists():
        return False
    found = subprocess.run([python, "-c", code, *PINS], capture_output=True, text=True)
    versions = [version.partition("+")[0] for version in found.stdout.split()]
    return versions == list(PINS.values())


@functools.cache
def peers_python() -> Path:
    """The interpreter with the peers, made where it is missing."""
    folder = Path(os.environ.get("GEMRL_PEERS_VENV") or FOLDER)
    python = folder / "bin" / "python"
    if not _has_pins(python):
        pins = [f"{name}=={version}" for name, version in PINS.items()]
        print(f"installing {', '.join(pins)} into {folder}", file=sys.stderr)
        if not python.exists():
            venv.create(folder, with_pip=True, symlinks=True)
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", *pins])
        if done.returncode:
            sys.exit(f"the peers could not be installed into {folder}")
    return python
