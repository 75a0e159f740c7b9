"""How fast GEM trains in gemrl, beside the same in PyTorch and beside bare matrix products.

    python benchmarks/training.py [--quick] [--markdown]

Observation 17, action 6, batch 256, two hidden layers of 256, 8 mixture components, and 2, 4 and 10
critics (`--quick`: 4). Peers, all on the CPU: `eager_gem` is GEM in eager PyTorch as a user of CORL
would write it, `compiled_gem` the same with torch.compile, `corl_iql` an eager IQL in CORL's shape
and `d3rlpy_iql` d3rlpy's own, both with two critics. `jax_gemm`, `tuned_gemm`, `numpy_gemm`
and `mkl_gemm` make the matrix products of one GEM update and nothing else: gemrl's rate over theirs
is its share of what the hardware gives by way of JAX (as it comes, and with the compiler options of
gemrl's training, which let independent products run side by side), OpenBLAS and MKL.

Every contender is a process that sleeps while another has its turn. A round gives each a turn, in
an order that rotates; a ratio is taken within a round, and the table has the median of the rounds
with the least and the greatest. Each contender runs on one core or on all, whichever was faster in
a trial at the start; the table has both rates.

PyTorch and d3rlpy are installed into `.venv-peers` in the checkout, or the folder that
GEMRL_PEERS_VENV names. PyTorch for Linux brings CUDA's libraries, several gigabytes, unless pip is
told of the index with builds for CPUs (PIP_EXTRA_INDEX_URL). The first run also compiles, for a
minute or two. Leave the machine alone meanwhile: threads that wait for one another by spinning, as
PyTorch's do, lose far more than the core that is taken from them. What other processes took is
measured and printed.

The last line is a JSON object: gemrl's rate over each peer's (`eager_gem`, ... at 4 critics,
`eager_gem_m10` at 10), shares of the products' rates (`gemm_share` of JAX's, `gemm_share_tuned`,
`gemm_share_numpy`, `gemm_share_mkl`), updates a second and the peak of memory of gemrl at 4
critics, and the share of the machine that other processes took. A peer that cannot run is null, and
the table says why.
"""

import argparse
import json
import statistics
import sys
import time

from peers.contenders import GEM_PEERS, GEMMS, IQL_PEERS, OURS, Contender
from peers.products import gem_flops

CRITICS, MAIN = (2, 4, 10), 4
SETTLE = 0.1  # seconds; OpenMP's threads spin for a while after their work is done
QUIET = 0.03  # of the machine's cores taken by others
HEADER = ("contender", "updates/s", "gemrl over it", "cores", "at 1 / all cores", "GFLOP/s", "MB")
JSON_NAMES = {
    "jax_gemm": "gemm_share",
    "tuned_gemm": "gemm_share_tuned",
    "numpy_gemm": "gemm_share_numpy",
    "mkl_gemm": "gemm_share_mkl",
}


def measured(critics: int, rounds: int, seconds: float) -> list[Contender]:
    """Every contender at so many critics, gemrl first. IQL's two critics are measured once."""
    peers = GEM_PEERS + (IQL_PEERS if critics == MAIN else ())
    contenders = [Contender(name, critics) for name in (OURS, *peers, *GEMMS)]
    for contender in contenders:
        print(f"M = {critics}: {contender.name} warms up", file=sys.stderr)
        contender.start(seconds / 4)
    for number in range(rounds):
        must_run(contenders[0])
        print(f"M = {critics}: round {number + 1} of {rounds}", file=sys.stderr)
        first = number % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            time.sleep(SETTLE)
            contender.turn(seconds)
    must_run(contenders[0])
    for contender in contenders:
        contender.finish()
    return contenders


def must_run(ours: Contender) -> None:
    """Without gemrl there is nothing to measure."""
    if ours.missing:
        sys.exit(f"gemrl itself does not run: {ours.missing}")


def ratios(ours: Contender, other: Contender) -> list[float]:
    """The rate of gemrl over another's in each round."""
    return [a / b for a, b in zip(ours.rates, other.rates, strict=True)]


def row(ours: Contender, contender: Contender) -> tuple[str, ...]:
    """A contender's line of the table."""
    if contender.missing:
        return (contender.name, f"missing: {contender.missing}", *[""] * (len(HEADER) - 2))
    rate = statistics.median(contender.rates)
    within = ratios(ours, contender)
    spread = f"{statistics.median(within):.2f} ({min(within):.2f} to {max(within):.2f})"
    cores = max(contender.trial, key=lambda cores: contender.trial[cores])
    # IQL's products are others, and fewer.
    flops = 0 if contender.name in IQL_PEERS else gem_flops(contender.critics)
    return (
        contender.name,
        f"{rate:.1f}",
        "" if contender is ours else spread,
        str(cores),
        " / ".join(f"{rate:.1f}" for rate in contender.trial.values()),
        f"{rate * flops / 1e9:.0f}" if flops else "",
        f"{contender.megabytes:.0f}",
    )


def table(rows: list[tuple[str, ...]], markdown: bool) -> str:
    """Rows under the header, for a terminal or for a page."""
    if markdown:
        marks = ("---", *["---:"] * (len(HEADER) - 1))
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEADER, marks, *rows))
    # Why a contender is missing takes its line to the end; columns are as wide as the others need.
    whole = [cells for cells in (HEADER, *rows) if not cells[1].startswith("missing")]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in (HEADER, *rows)
    )


def summary(contenders: list[Contender]) -> dict[str, float | None]:
    """The JSON object's entries at one number of critics."""
    ours, *others = contenders
    found: dict[str, float | None] = {}
    for other in others:
        ratio = None if other.missing else round(statistics.median(ratios(ours, other)), 3)
        name = JSON_NAMES.get(other.name, other.name)
        if ours.critics == MAIN:
            found[name] = ratio
        if other.name not in IQL_PEERS:
            found[f"{name}_m{ours.critics}"] = ratio
    if ours.critics == MAIN:
        found["updates_per_second"] = round(statistics.median(ours.rates), 1)
        found["peak_memory_mb"] = round(ours.megabytes or 0.0)
    return found


def main() -> None:
    """Measure, print a table for each number of critics and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 critics, fewer and shorter rounds")
    parser.add_argument("--markdown", action="store_true", help="tables for a Markdown page")
    args = parser.parse_args()
    rounds, seconds = (3, 1.5) if args.quick else (7, 2.0)
    found: dict[str, float | None] = {}
    busiest = 0.0
    for critics in (MAIN,) if args.quick else CRITICS:
        contenders = measured(critics, rounds, seconds)
        rows = [row(contenders[0], contender) for contender in contenders]
        print(f"{critics} critics, {gem_flops(critics) / 1e6:.0f} MFLOP an update\n")
        print(table(rows, args.markdown))
        share = statistics.mean(share for c in contenders for share in c.others)
        print(f"\nOther processes took {share:.1%} of the machine.", end="\n\n", flush=True)
        busiest = max(busiest, share)
        found |= summary(contenders)
    if busiest > QUIET:
        print("That is too much for these numbers to mean anything: run it on a quiet machine.\n")
    print(json.dumps(found | {"others_share": round(busiest, 3)}))


if __name__ == "__main__":
    main()
