"""How far critics have come: the mean value of minibatches along a training.

    python tools/critic_means.py RUN [RUN ...]

A JSON line a run, from its metrics.jsonl: after every 10,000 updates of the main phase, the mean of
the critics over the data's transitions, in the rewards that the method trains on. Critics that are
still rising have not seen the whole of the future yet.
"""

import argparse
import json
from pathlib import Path

from gemrl.learn.bundle import load_manifest
from gemrl.learn.metrics import read_metrics
from gemrl.methods.protocol import MAIN

EVERY = 10_000


def main() -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        manifest = load_manifest(run)
        lines = [line for line in read_metrics(run) if line["phase"] == MAIN]
        # Updates are counted from the first phase on.
        before = lines[-1]["update"] - manifest["config"]["steps"]
        means = {
            line["update"] - before: round(line["critic/mean"], 1)
            for line in lines
            if (line["update"] - before) % EVERY == 0
        }
        facts = {"task": manifest["task"], "method": manifest["method"]}
        facts["reward_scale"] = round(manifest["spec"]["reward_scale"], 3)
        print(json.dumps(facts | {"critic_mean": means}))


if __name__ == "__main__":
    main()
