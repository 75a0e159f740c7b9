"""The process of one contender: `python -m deciders.worker CORES NAME`.

It answers lines of JSON. {"dimensions", "n", "batch", "count"} makes that many decisions, each at
another state or batch of states, after one that is not counted, and gives the seconds of each;
{"memory": true} gives the peak of resident memory.
"""

import importlib
import json
import sys
import time
from functools import cache

from peers.worker import alone_on, peak_memory

LAMBDA, WEIGHT = 1.0, 0.4


def main() -> None:
    """Answer until the lines end."""
    answers = alone_on(int(sys.argv[1]))
    module = importlib.import_module(f"deciders.{sys.argv[2]}")
    make = cache(module.make)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        if "memory" in order:
            answer = {"megabytes": peak_memory()}
        else:
            decide = make(order["dimensions"], order["n"], order["batch"])
            seconds = []
            for number in range(-1, order["count"]):
                start = time.perf_counter()
                decide(max(number, 0))
                seconds.append(time.perf_counter() - start)
            answer = {"seconds": seconds[1:]}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
