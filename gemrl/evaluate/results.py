"""Rows of several training seeds as Markdown: what `docs/results.md` shows."""

from collections.abc import Sequence

from gemrl.errors import DataError
from gemrl.evaluate.choose import choose
from gemrl.evaluate.rows import Row
from gemrl.evaluate.table import HEADINGS, label_of, lines_of, settings_of
from gemrl.maths.statistics import Estimate, clustered


def markdown(rows: Sequence[Row]) -> str:
    """Labels, the table on test seeds, paired differences, and the choice of knobs."""
    test = [row for row in rows if row.protocol == "test"]
    validation = [row for row in rows if row.protocol == "validation" and row.method == "gem"]
    if not test:
        raise DataError("there are no test rows to show")
    for name in ("task", "updates", "data_origin", "mass_scale"):
        kinds = sorted({str(getattr(row, name)) for row in rows})
        if len(kinds) > 1:
            raise DataError(f"these rows are of more than one {name} ({', '.join(kinds)})")
    parts = [labels(test), table(HEADINGS, [found.cells for found in lines_of(test)])]
    pairs = differences(test)
    if pairs:
        parts.append(table(("difference in score, same starts", "mean ± standard error"), pairs))
    if validation:
        chosen, choices = choose(validation)
        cells = [
            (c.knobs.describe() + (" (chosen)" if c is chosen else ""), str(c.score))
            for c in choices
        ]
        parts.append(table(("setting", "score on validation seeds"), cells))
    return "\n\n".join(parts)


def labels(rows: Sequence[Row]) -> str:
    """What the scores are scores of."""
    seeds = sorted({row.train_seed for row in rows})
    episodes = len({row.episode_seed for row in rows})

    def one(name: str) -> str:
        return ", ".join(
            sorted(
                {
                    f"{getattr(row, name):,}" if name == "updates" else str(getattr(row, name))
                    for row in rows
                }
            )
        )

    return (
        f"{one('task')}, {one('data_origin')} data; environment {one('env_id')} on "
        f"{one('simulator')}; last step, after {one('updates')} updates; training seeds "
        f"{', '.join(map(str, seeds))}; {episodes} test episodes for each; knobs chosen on "
        "validation seeds."
    )


def differences(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """GEM's guarded searches against everything else, paired by training seed and start."""
    settings = settings_of(rows)
    searches = [s for s in settings if s[0] == "gem" and s[1].n > 1 and s[1].wp != 0]
    others = [s for s in settings if s not in searches and s[1].n != 1]
    return [
        (f"{label_of(m, k)} − {label_of(om, ok)}", str(paired(found, ofound)))
        for m, k, found in searches
        for om, ok, ofound in others
        if _starts(found) & _starts(ofound)
    ]


def _starts(rows: Sequence[Row]) -> set[tuple[int, int]]:
    return {(row.train_seed, row.episode_seed) for row in rows}


def paired(first: Sequence[Row], second: Sequence[Row]) -> Estimate:
    """Mean difference in score over the episodes that both have."""
    other = {(row.train_seed, row.episode_seed): row.score for row in second}
    groups: dict[int, list[float]] = {}
    for row in first:
        key = (row.train_seed, row.episode_seed)
        if key in other:
            groups.setdefault(row.train_seed, []).append(row.score - other[key])
    return clustered(list(groups.values()))


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    marks = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, marks, *lines))
