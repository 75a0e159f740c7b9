"""The command `gemrl tune`: its words, and what it calls."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from gemrl.errors import ConfigError

# What has a meaning where real episodes are spent.
WITH_EPISODES = ("run", "n", "lams", "wps", "episodes", "json")


@dataclass
class TuneArgs:
    """Choose knobs from the log alone: compare settings of λ and w_p on held-out episodes, and
    recommend one, or keep the suite's default where they cannot be told apart.
    """

    run: Positional[Path]
    """Folder of a trained run."""
    dataset: str | None = None
    """The dataset it was trained on; by default where it was read from."""
    n: int | None = None
    """Candidates beside the anchor, for all settings; by default the suite's."""
    lams: tuple[float, ...] | None = None
    """Pessimism to compare; by default none and the suite's. The suite's is always there."""
    wps: tuple[float, ...] | None = None
    """Support weights to compare; by default eight from 0 to 4. The suite's is always there."""
    states: int = 50_000
    """Held-out transitions to fit on, at most."""
    fits: int = 5
    """Times that everything is fitted anew."""
    updates: int = 4000
    """Minibatches of a fit."""
    coverage: float = 0.01
    """Actions less likely than this share of the logged ones count as the worst there is where a
    setting takes more than this share of them; 0 trusts the fit everywhere."""
    confidence: float = 0.95
    """Confidence of each bound."""
    episodes: int | None = None
    """Spend this many validation episodes in the task's environment on the settings instead."""
    rows: tuple[Path, ...] = ()
    """Files of rows (.jsonl) of the same settings: tells what the recommendation costs there."""
    seed: int = 0
    """The same seed gives the same answer."""
    json: bool = False
    """Print JSON."""
    html: Path | None = None
    """Write a page with pictures to this file as well."""


def tune(args: TuneArgs) -> None:
    """Choose knobs."""
    from gemrl.decide.policy import load
    from gemrl.evaluate.rows import ROWS, read_rows
    from gemrl.evaluate.tune import grid_for
    from gemrl.evaluate.tune.regret import describe_regret, regrets
    from gemrl.evaluate.tune.words import describe, describe_online
    from gemrl.progress import said_on_success

    policy = load(args.run)
    _require_files(args)
    grid = grid_for(policy, args.n, args.lams, args.wps)
    if args.episodes is not None:
        from gemrl.evaluate.tune.online import spend

        with said_on_success():
            found = spend(policy, grid, args.episodes, args.run / ROWS, quiet=False)
        print(json.dumps(found, indent=2) if args.json else describe_online(found))
        return
    found = _from_log(args, policy, grid)
    if args.rows:
        found["regret"] = regrets(found, [row for path in args.rows for row in read_rows(path)])
    if args.html is not None:
        from gemrl.evaluate.tune.page import write_page
        from gemrl.progress import say

        say(f"pictures in {write_page(found, args.html)}")
    told = [describe(found), *(describe_regret(one) for one in found.get("regret", []))]
    print(json.dumps(found, indent=2) if args.json else "\n\n".join(told))


def _from_log(args: TuneArgs, policy: Any, grid: Any) -> dict[str, Any]:
    """Compare the settings on the policy's own dataset."""
    from gemrl.evaluate.tune import Budget
    from gemrl.evaluate.tune import tune as compare
    from gemrl.evaluate.tune.fqe import FqeConfig
    from gemrl.learn.compiled import kept_programs
    from gemrl.progress import said_on_success

    budget = Budget(
        args.states, args.fits, args.coverage, args.confidence, FqeConfig(updates=args.updates)
    )
    with said_on_success(), kept_programs():
        data = policy.bundle.read_data(args.dataset)
        return compare(policy, data, grid, budget, args.seed, quiet=False)


def _require_files(args: TuneArgs) -> None:
    """Refuse what would fail only after minutes of work, or be read and ignored."""
    if args.html is not None and (args.html.is_dir() or not args.html.parent.is_dir()):
        raise ConfigError(f"--html {args.html}: must be a file in a folder that is there")
    missing = [str(path) for path in args.rows if not path.is_file()]
    if missing:
        raise ConfigError(f"no such file: {', '.join(missing)}")
    if args.episodes is not None:
        given = [f.name for f in fields(args) if getattr(args, f.name) != f.default]
        idle = [name for name in given if name not in WITH_EPISODES]
        if idle:
            raise ConfigError(f"--{idle[0]} does not go with --episodes, which looks at no log")
