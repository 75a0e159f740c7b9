"""How a server is set up."""

import ipaddress
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemrl.decide.knobs import MAX_CANDIDATES, Knobs
from gemrl.deploy.serve.requests import Limits, knobs_over
from gemrl.errors import ConfigError, GemrlError

SHORTEST_TOKEN = 8


@dataclass(frozen=True)
class ServeConfig:
    """Address, limits, what to do under load, and what the gates may do."""

    host: str = "127.0.0.1"
    """Address to listen at. Any but a loopback address needs a token."""
    port: int = 8000
    """Port to listen at; 0 takes a free one."""
    token: str | None = None
    """What clients must show, at every route. Better given by --token-file or GEMRL_TOKEN, since
    other users of the machine can read a command line."""
    gates: Literal["auto", "off", "flag", "act"] = "auto"
    """Calibrated gates of the run: off, flag decisions, or act on flagged ones. Auto flags where
    the run has gates."""
    alpha: float | None = None
    """The gates' false-alarm rate; by default 0.01."""
    ladder: tuple[str, ...] | None = None
    """With --gates act, what to fall back to, in this order: smaller_n, anchor, behavior, refuse.
    By default all of them that the policy has."""
    overload: Literal["shed", "anchor"] = "shed"
    """What to do with a request that cannot be decided in time: turn it away, or answer with the
    anchor, which costs next to nothing."""
    queue: int = 256
    """Observations that may wait."""
    batch: int = 64
    """Observations that are decided together."""
    threads: int | None = None
    """Threads that share the observations of a batch. Unless told, a core is left to those who
    ask."""
    wait_ms: float = 1000.0
    """How long a request without a deadline may wait before it is turned away."""
    deadline_ms: float | None = None
    """Deadline of requests that name none; without it they are searched to the end."""
    max_deadline_ms: float = 10_000.0
    """The longest deadline that a request may name."""
    max_candidates: int = 4096
    """The largest n that a request may ask for."""
    max_rows: int = 256
    """Observations that a request may hold."""
    max_scored: int = 262_144
    """Candidates of all observations of a request together."""
    max_request_bytes: int = 1_048_576
    """Size of a request's body, or of a frame."""
    connections: int = 256
    """Connections that may be open together."""
    drain_seconds: float = 10.0
    """How long a server that was told to stop waits for requests that it has taken."""
    shadow_tolerance: float = 0.05
    """A shadow's action differs where a dimension is apart by more than this share of its range."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("port", 0, 65_535),
            ("queue", 1, 1_000_000),
            ("batch", 1, 4096),
            ("max_candidates", 0, MAX_CANDIDATES),
            ("max_rows", 1, 1_000_000),
            ("max_scored", 1, 2**31),
            ("max_request_bytes", 64, 2**30),
            ("connections", 1, 100_000),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConfigError(f"{_flag(name)} = {value!r}: must be from {least} to {most:,}")
        for name in ("wait_ms", "max_deadline_ms", "drain_seconds", "shadow_tolerance"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= 86_400_000):
                raise ConfigError(f"{_flag(name)} = {value!r}: must be at least 0, at most a day")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ConfigError(f"--threads = {self.threads!r}: must be from 1 to 1,024")
        given = self.deadline_ms
        if given is not None and not 0 < given <= self.max_deadline_ms:
            raise ConfigError(
                f"--deadline-ms = {given!r}: must be above 0, at most --max-deadline-ms, "
                f"{self.max_deadline_ms:g}"
            )
        if self.token is not None and (
            len(self.token) < SHORTEST_TOKEN
            or not self.token.isascii()
            or not self.token.isprintable()
            or " " in self.token
        ):
            raise ConfigError(
                f"the token must have {SHORTEST_TOKEN} or more plain letters, no space: take the "
                "output of `python -c 'import secrets; print(secrets.token_urlsafe())'`"
            )

    def require_token(self) -> None:
        """Refuse to listen where other machines can reach it and anybody may ask."""
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} can be reached from other machines: set a token "
                "(--token-file FILE or GEMRL_TOKEN), or listen at 127.0.0.1"
            )

    @property
    def limits(self) -> Limits:
        """How much a request may ask for."""
        return Limits(
            self.max_candidates,
            self.max_rows,
            self.max_scored,
            self.max_request_bytes,
            self.max_deadline_ms,
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_profiles(path: Path | None, defaults: Knobs) -> dict[str, Knobs]:
    """Named knobs from a JSON file: {"careful": {"n": 64, "wp": 1.0}}; the rest is as default."""
    if path is None:
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as profiles: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold a map from names to knobs")
    profiles: dict[str, Knobs] = {}
    for name, knobs in values.items():
        try:
            profiles[name] = knobs_over(defaults, knobs)
        except GemrlError as error:
            raise ConfigError(f"{path}, profile {name!r}: {error}") from error
    return profiles


def read_token(token: str | None, file: Path | None, variable: str | None) -> str | None:
    """The token from the command line or a file, else from the environment."""
    if token is not None and file is not None:
        raise ConfigError("--token and --token-file exclude each other")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {file}: cannot be read ({error})") from error
    return token if token is not None else variable


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
