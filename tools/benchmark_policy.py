"""Make a small policy for the benchmarks out of a run: its weights in half precision, and states.

    python tools/benchmark_policy.py RUN DATASET OUT.npz [--gaussian] [--value-scale 0.01]

With --gaussian the states are drawn from a normal distribution with the data's mean and covariance,
so that no row of the dataset is in the file. --value-scale multiplies the critics' last layer, as
training on smaller rewards would have.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import gemrl
from gemrl.learn.tensors import load_arrays

STATES = 512


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("dataset")
    parser.add_argument("out", type=Path)
    parser.add_argument("--gaussian", action="store_true")
    parser.add_argument("--value-scale", type=float, default=1.0)
    args = parser.parse_args()
    policy = gemrl.load(args.run, backend="jax")
    manifest = policy.bundle.manifest
    reading = manifest["dataset"].get("reading", {})
    data = gemrl.load_dataset(args.dataset, task=manifest["task"], **reading)
    config = manifest["config"]
    _, held = data.split_episodes(config["holdout"], config["seed"])
    rng = np.random.default_rng(0)
    if args.gaussian:
        seen = data.observations.astype(np.float64)
        states = rng.multivariate_normal(seen.mean(0), np.cov(seen.T), STATES)
    else:
        states = data.observations[rng.choice(held, STATES, replace=len(held) < STATES)]
    arrays, _ = load_arrays(args.run / "weights.safetensors")
    for name in arrays:
        if name.startswith("critics/") and "/net/layers/1/" in name:
            arrays[name] = arrays[name] * np.float32(args.value_scale)
    kept = {k: v.astype(np.float16) for k, v in arrays.items() if not k.startswith("value/")}
    about = {key: manifest[key] for key in ("method", "config", "spec", "task", "updates")}
    about["value_scale"] = args.value_scale
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, about=json.dumps(about), states=states.astype(np.float32), **kept)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
