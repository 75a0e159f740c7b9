"""Choose snapshots of a training run as the behaviour policies that gemrl brings, and measure them.

    python tools/choose_behavior.py --run hopper --expert snapshot-00200192.npz \
        --medium snapshot-00130048.npz

The committed networks come from these runs of tools/train_behavior.py (`--steps` sets the schedule
of the learning rate; the last two were stopped when they had what was wanted):

    --env Hopper-v4 --steps 400000 --seed 1
    --env Walker2d-v4 --steps 1300000 --seed 1
    --env HalfCheetah-v4 --steps 5000000 --seed 4 --envs 16 --chunk 1024 --updates-per-step 0.125 \
        --pessimism 0 --lr 1e-3 --gamma 0.98 --tau 0.01 --buffer 500000 --entropy -0.4 \
        --snapshot-every 20000

`run` is the folder of such a run. The replay series is spread evenly over the
run up to the medium snapshot. Files and their measured levels go to gemrl/data/policies.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from train_behavior import make_env, measure

POLICIES = Path(__file__).parent.parent / "gemrl" / "data" / "policies"
# Not those by which training judges its snapshots: the best of many is flattered by its own.
EVALUATION_SEED = 777_000


@dataclass(frozen=True)
class Options:
    """Which snapshots, and how carefully they are measured."""

    run: Path
    """Folder of the training run."""
    expert: str
    """Snapshot that becomes the expert."""
    medium: str
    """Snapshot that becomes medium, and where the replay series ends."""
    replay: int = 12
    """Snapshots of the replay series at most; the nearest to even spacing are taken once each."""
    episodes: int = 20
    """Episodes by which expert and medium are measured; half as many for the others."""
    out: Path = POLICIES
    """Folder for the policies and levels.json."""


def steps_of(path: Path) -> int:
    """Environment steps after which a snapshot was taken."""
    return int(path.stem.split("-")[1])


def replay_series(run: Path, medium: Path, count: int) -> list[Path]:
    """Snapshots up to the medium one, as evenly spaced as they come."""
    found = [path for path in sorted(run.glob("snapshot-*.npz")) if path.name <= medium.name]
    wanted = np.linspace(0, steps_of(medium), count)
    nearest = [min(found, key=lambda path: abs(steps_of(path) - want)) for want in wanted]
    return list(dict.fromkeys(nearest))


def main(options: Options) -> None:
    """Copy, measure and record."""
    facts = json.loads((options.run / "options.json").read_text())
    robot = facts["env"].partition("-")[0].lower()
    expert, medium = options.run / options.expert, options.run / options.medium
    series = replay_series(options.run, medium, options.replay)
    chosen = {f"{robot}-expert.npz": expert, f"{robot}-medium.npz": medium}
    chosen |= {f"{robot}-replay-{i:02d}.npz": path for i, path in enumerate(series)}

    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.out.glob(f"{robot}-*.npz"):
        path.unlink()
    record = options.out / "levels.json"
    levels = json.loads(record.read_text()) if record.exists() else {}
    levels = {name: level for name, level in levels.items() if not name.startswith(robot)}
    judges = [make_env(facts["env"]) for _ in range(options.episodes)]
    for name, path in chosen.items():
        shutil.copyfile(path, options.out / name)
        with np.load(path, allow_pickle=False) as file:
            policy = {
                k: file[k].astype(np.float32)
                for k in file.files
                if file[k].ndim and k != "logstd_clip"
            }
        few = judges if path in (expert, medium) else judges[: (len(judges) + 1) // 2]
        levels[name] = {
            "env": facts["env"],
            "algorithm": "SAC",
            "env_steps": steps_of(path),
            "seed": facts["seed"],
            "hidden": [policy["W0"].shape[1], policy["W1"].shape[1]],
            **measure(few, facts["env"], policy, EVALUATION_SEED),
            "mujoco": facts["mujoco"],
            "gymnasium": facts["gymnasium"],
        }
        print(name, levels[name], flush=True)
    record.write_text(json.dumps(dict(sorted(levels.items())), indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options))
