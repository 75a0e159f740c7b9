"""`gemrl serve` and `gemrl replay`."""

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic

from tyro.conf import OmitArgPrefixes, Positional

from gemrl.arguments import Config, KnobArgs, RuleArgs
from gemrl.errors import ConfigError, DataError

TOKEN_VARIABLE = "GEMRL_TOKEN"


@dataclass
class ServeArgs(RuleArgs, Generic[Config]):
    """Serve a policy: the OpenPI wire over WebSocket, JSON over HTTP, and a page to watch it."""

    run: Positional[Path]
    """Folder of the trained policy."""
    knobs: OmitArgPrefixes[KnobArgs]
    server: OmitArgPrefixes[Config]
    token_file: Path | None = None
    """File that holds the token."""
    profiles: Path | None = None
    """JSON file of named knobs, such as {"careful": {"n": 64, "wp": 1.0}}."""
    shadow: Path | None = None
    """Run folder of a second policy, which decides too and never acts."""
    states: str | None = None
    """Dataset (task name or file) whose states the page can show."""
    log: Path | None = None
    """Folder for the log of decisions."""
    log_file_mb: float | None = None
    """A file of the log that is larger is followed by a new one; by default 64."""
    log_total_mb: float | None = None
    """The oldest files of the log are removed where all of them are larger than this; by default
    1024."""
    log_days: float | None = None
    """Files of the log last written to longer ago are removed; by default 30."""
    redact: tuple[str, ...] = ()
    """Fields that the log leaves out: observation, action, episode."""


@dataclass
class ReplayArgs:
    """Decide again all that a server's log has, and compare bit for bit."""

    log: Positional[Path]
    """File or folder of the log."""
    run: Path | None = None
    """Folder of the policy, where it is not the one that the log names."""
    behavior: Path | None = None
    """Folder of the policy whose density it had, likewise."""
    json: bool = False
    """Print JSON."""


def serve_parser(words: Sequence[str]) -> Any:
    """The settings of `serve` are the server's own, which the extra gemrl[serve] brings."""
    from gemrl.deploy.serve.config import ServeConfig

    return ServeArgs[ServeConfig]


def serve(args: ServeArgs[Any]) -> None:
    """Serve a policy until a signal comes."""
    from gemrl.cli import knobs_from
    from gemrl.decide.policy import load
    from gemrl.deploy.serve import Server
    from gemrl.deploy.serve.config import read_profiles, read_token
    from gemrl.deploy.serve.log import LogConfig
    from gemrl.progress import say

    token = read_token(args.server.token, args.token_file, os.environ.get(TOKEN_VARIABLE))
    config = dataclasses.replace(args.server, token=token)
    about_log = {
        name: getattr(args, f"log_{name}")
        for name in ("file_mb", "total_mb", "days")
        if getattr(args, f"log_{name}") is not None
    }
    if args.log is None and (about_log or args.redact):
        raise ConfigError("--log-... and --redact say how the log is kept: they need --log FOLDER")
    log = None if args.log is None else LogConfig(args.log, **about_log, redact=args.redact)
    policy = load(args.run, behavior=args.behavior)
    task = policy.bundle.manifest["task"]
    knobs = knobs_from(args.knobs, policy, task, args.decide)
    server = Server(
        policy,
        config,
        knobs=knobs,
        profiles=read_profiles(args.profiles, knobs),
        run=args.run,
        behavior=args.behavior,
        shadow=None if args.shadow is None else load(args.shadow),
        states=None if args.states is None else policy.bundle.read_data(args.states),
        log=log,
    )
    where = f"serving {args.run} at {server.url} ({policy.backend.name} backend)"
    server.run(
        lambda: say(f"{where}; getting ready"),
        lambda: say(f"ready: {server.url}  (knobs: {knobs.describe()})"),
    )
    say("stopped")


def replay(args: ReplayArgs) -> None:
    """Replay a log."""
    from gemrl.deploy.serve.replay import replay as replay_log

    found = replay_log(args.log, args.run, args.behavior)
    if args.json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"{found.requests:,} requests with {found.decisions:,} decisions decided again: "
            f"{found.same:,} the same bit for bit, {len(found.different):,} different"
        )
        if found.redacted:
            print(f"  {found.redacted:,} requests were logged without what deciding again needs")
        if found.missing:
            print(f"  {found.missing:,} decisions are missing in the log, as it says itself")
    if found.different:
        raise DataError(
            f"{len(found.different)} decisions differ, the first at {found.different[0]}"
        )
