"""`gemrl bench`: what decisions cost, for every method under one harness."""

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from gemrl.errors import ConfigError

# The paper's columns, and how they are written.
PAPER = (("latency", ".2f"), ("memory", ".1f"), ("parameters", ".2f"))


@dataclass
class BenchArgs:
    """Measure what a decision of each method costs on this machine: latency, throughput, memory,
    and how they grow with candidates (N) and denoising steps (T).
    """

    name: Positional[str] = ""
    """decisions."""
    methods: tuple[str, ...] = ()
    """Methods; by default all."""
    rounds: int = 20
    """Rounds in which all settings take turns."""
    calls: int = 10
    """Decisions of each setting in a round."""
    out: Path | None = None
    """Folder for the figures as JSON lines, a Markdown document, a page and plots."""
    json: bool = False
    """Print JSON."""


def bench(args: BenchArgs) -> None:
    """Measure and print or write."""
    from gemrl.evaluate.decision_costs import growth, measure, settings
    from gemrl.learn.compiled import kept_programs
    from gemrl.methods import METHODS
    from gemrl.progress import bar, said_on_success

    if args.name != "decisions":
        raise ConfigError(f"bench {args.name!r}: must be decisions")
    for name, value in (("rounds", args.rounds), ("calls", args.calls)):
        if value < 1:
            raise ConfigError(f"{name} = {value}: must be at least 1")
    wanted = settings(args.methods or tuple(METHODS))
    costs: list[Any] = []
    with (
        said_on_success(),
        kept_programs(),
        bar("bench decisions", args.rounds, "rounds", args.json) as report,
    ):
        report(0, f"compiling {len(wanted)} settings")
        for done, found in enumerate(measure(wanted, args.rounds, args.calls), start=1):
            costs = found
            report(done, f"{len(wanted)} settings")
    if args.out is not None:
        from gemrl.data.storage import write_text
        from gemrl.evaluate.reproduce.document import write

        lines = "".join(json.dumps(asdict(cost)) + "\n" for cost in costs)
        write_text(args.out / "decisions.jsonl", lines)
        for file in write(document(costs), args.out, "decisions"):
            if file.suffix != ".png":
                print(file)
    elif not args.json:
        from gemrl.evaluate.reproduce.document import Table
        from gemrl.evaluate.results import table

        for part in document(costs, plots=False).parts:
            text = table(part.headings, part.lines) if isinstance(part, Table) else part
            print(f"{text}\n")
    if args.json:
        found = {
            "machine": machine(),
            "costs": [asdict(cost) for cost in costs],
            "growth": [asdict(one) for one in growth(costs)],
        }
        print(json.dumps(found))


def machine() -> str:
    """The device at hand."""
    import jax

    from gemrl.learn.loop import usable_cores

    device = jax.devices()[0]
    kind = f"{usable_cores()} cores" if device.platform == "cpu" else device.device_kind
    return f"{device.platform} ({kind}, {platform.machine()}), JAX {jax.__version__}"


def document(costs: Any, plots: bool = True) -> Any:
    """Tables of all settings and of how methods grow, the paper's figures beside, and plots."""
    from gemrl.evaluate.decision_costs import BATCH, growth
    from gemrl.evaluate.reproduce.comparison import TITLES
    from gemrl.evaluate.reproduce.document import Document, Table
    from gemrl.evaluate.reproduce.paper import quoted

    def title(name: str) -> str:
        method, _, rest = name.partition(" ")
        return f"{TITLES[method]} {rest}".strip()

    lines = []
    for cost in costs:
        setting = f"{cost.knob}{cost.value}"
        paper = [quoted("compute", title(cost.method), setting, key, form=form)
                 for key, form in PAPER]  # fmt: skip
        lines.append(
            (
                title(cost.method),
                f"{cost.knob} = {cost.value}" + ("" if cost.scales else " (not its knob)"),
                f"{cost.median_ms:.3f}",
                f"{cost.p99_ms:.3f}",
                f"{cost.decisions_per_second:,.0f}",
                "–" if cost.memory_mb is None else f"{cost.memory_mb:.2f}",
                f"{cost.parameters / 1e6:.2f}",
                *paper,
            )
        )
    headings = (
        "method", "setting", "median ms", "p99 ms", f"decisions/s in batches of {BATCH}",
        "memory MB", "parameters, M", "paper, ms (GPU)", "paper, peak MB (GPU)",
        "paper, parameters, M",
    )  # fmt: skip
    shape = [
        (
            title(one.method),
            one.knob,
            "yes" if one.scales else "no",
            f"{one.microseconds:+.3f}",
            f"{one.ratio:.2f}",
        )
        for one in growth(costs)
    ]
    found = Document("What a decision costs")
    count = min(cost.decisions for cost in costs)
    few = "" if count >= 100 else ", of so few about the slowest"
    found.add(
        f"Measured on {machine()}: random weights, all settings in turns; medians and 99th "
        f"percentiles are of {count:,} single decisions each{few}. The paper's columns are "
        "quoted; they are of a GPU, so that their shape can be compared and their milliseconds "
        "cannot. Memory is what XLA plans for the programs of one decision: weights, results and "
        "scratch.",
        Table("Every method and setting", headings, lines),
        Table(
            "How latency grows: the slope of the median, and the largest setting over the smallest",
            ("method", "knob", "its own knob", "µs for each", "largest / smallest"),
            shape,
        ),
    )
    return found.add(*_plots(costs, title)) if plots else found


def _plots(costs: Any, title: Any) -> list[Any]:
    from gemrl.evaluate.reproduce.document import Plot
    from gemrl.evaluate.reproduce.plots import curves

    found = []
    for knob, field, words in (
        ("N", "median_ms", "latency of a decision, ms"),
        ("T", "median_ms", "latency of a decision, ms"),
        ("N", "memory_mb", "memory of a decision, MB"),
    ):
        groups: dict[str, list[tuple[float, float, float, float]]] = {}
        for cost in costs:
            value = getattr(cost, field)
            if cost.knob == knob and value is not None:
                groups.setdefault(title(cost.method), []).append((cost.value, *[value] * 3))
        if groups:
            caption = f"{words[0].upper()}{words[1:]}, against {knob}"
            figure = curves(groups, knob, words, log=True)
            figure.axes[0].set_yscale("log")  # Methods are orders of magnitude apart.
            found.append(Plot(caption, figure))
    return found
