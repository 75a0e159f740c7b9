"""A report on a dataset in words: what to think about before training, most important first."""

from typing import Any

from gemrl.data.inspect.dimensions import about_dimensions
from gemrl.data.inspect.words import LEVELS, Said, number, some
from gemrl.data.tasks import TASKS

FEW_ROWS, FEW_EPISODES = 10_000, 10


def find(report: dict[str, Any]) -> list[dict[str, str]]:
    """Findings of a report: `level` (`refused` is refused by training), `about` and `text`."""
    found = [
        {"level": level, "about": about, "text": text}
        for part in (_values, _actions, _rewards, _ends, about_dimensions, _rows, _task)
        for level, about, text in part(report)
    ]
    return sorted(found, key=lambda finding: LEVELS.index(finding["level"]))


def _values(report: dict[str, Any]) -> Said:
    for name, bad in report["bad_values"].items():
        kinds = [f"{bad[kind]} {kind}" for kind in ("nan", "infinite") if bad[kind]]
        dims = "" if name in ("rewards", "masks") else f", dimensions {some(bad['dims'])}"
        yield (
            "refused",
            "not_finite",
            f"{name}: {bad['nan'] + bad['infinite']} values are not finite ({', '.join(kinds)}) in "
            f"{bad['rows']} rows, the first in row {bad['first_row']}{dims}; training will refuse "
            "them",
        )
    if not report["usable_bounds"]:
        yield (
            "refused",
            "action_low",
            "the action bounds are no range: action_low must be finite and below action_high",
        )


def _actions(report: dict[str, Any]) -> Said:
    outside = report["outside"]
    if report["outside_bounds"]:
        worst = outside["worst"]
        text = (
            f"{report['outside_bounds']} actions lie outside the bounds ({outside['share']:.1%} of "
            f"the rows, dimensions {some(outside['dims'])}), the first in row "
            f"{outside['first_row']}, the worst {number(worst['value'], '.4g')} in dimension "
            f"{worst['dim']} of row {worst['row']}; training will refuse them (see --outside and "
            "--bounds)"
        )
        if outside["share"] > 0.5:
            text += ". So many are in other units or were never clipped"
        yield "refused", "outside_bounds", text
    if report["saturated_share"] > 0.1:
        yield (
            "warning",
            "saturated_share",
            f"{report['saturated_share']:.0%} of action components sit at a bound"
            + (" or beyond" if report["outside_bounds"] else "")
            + ": Gaussian densities spike there, and the floor of log-std decides how much",
        )
    if report["constant_action_dims"]:
        dims = some(report["constant_action_dims"])
        text = f"action dimensions {dims} never change: there is nothing to choose in them"
        yield "warning", "constant_action_dims", text
    little = [
        column["dim"]
        for column, low, high in zip(
            report["action_dims"], report["action_low"], report["action_high"], strict=True
        )
        if report["usable_bounds"]
        and not column["constant"]
        and column["max"] is not None
        and column["max"] - column["min"] < 0.1 * (high - low)
    ]
    if little:
        text = (
            f"action dimensions {some(little)} use less than a tenth of their bounds: other units?"
        )
        yield "warning", "action_dims", text
    if report["held_action_share"] > 0.3:
        yield (
            "warning",
            "held_action_share",
            f"{report['held_action_share']:.0%} of actions equal the one before exactly: held over "
            f"about {1 / max(1 - report['held_action_share'], 1e-3):.0f} rows each, by a slower "
            "controller or a resampled log",
        )


def _rewards(report: dict[str, Any]) -> Said:
    reward, timing = report["reward"], report["reward_timing"]
    if reward["nonzero_share"] == 0:
        yield "warning", "reward", "all rewards are zero: there is nothing to learn a value from"
    elif reward["distinct"] == 1 and report["rows"] > 1:
        if not report["terminals"]:
            rest = "without terminals there is nothing to learn a value from"
        else:
            rest = "only how soon episodes end tells good from bad"
        yield "warning", "reward", f"all rewards are {reward['min']:g}: {rest}"
    if timing["verdict"] == "current":
        yield (
            "warning",
            "reward_timing",
            "the reward seems to belong to its own row's observation, not to the next one, where "
            "environments mostly give it: it comes one step late for the action that earned it",
        )
    if timing["verdict"] == "previous":
        yield (
            "warning",
            "reward_timing",
            "the reward seems to belong to the row before, to its action and the way to this row's "
            "observation: it comes one step late for the action that earned it",
        )
    if reward["never_falls"] and 2 < reward["distinct"] <= 10:
        yield (
            "note",
            "reward",
            "rewards never fall within an episode: they look like a count of what is done so far, "
            "paid again in every row",
        )
    low, high = reward["q05"], reward["q95"]
    if low is not None and reward["distinct"] > 10 and high > low:
        far = max(reward["max"] - high, low - reward["min"]) / (high - low)
        if far > 20:
            yield (
                "warning",
                "reward",
                f"rewards reach from {reward['min']:.4g} to {reward['max']:.4g} where nine in ten "
                f"lie within {low:.4g} to {high:.4g}: a few rows will rule the critics' loss",
            )


def _ends(report: dict[str, Any]) -> Said:
    ends, reading = report["ends"], report["ends"]["reading"]
    if report["jumps"]:
        jump = report["jump"]
        yield (
            "warning",
            "jumps",
            f"{report['jumps']} rows inside episodes are not followed by their next observation, "
            f"the first row {jump['first_row']}, by up to {number(jump['largest'], '.3g')}: "
            "episodes are joined without an end there, or rows are missing",
        )
    if ends["inside"]:
        yield (
            "note",
            "ends",
            f"{ends['inside']} terminals lie inside episodes: the log goes on after them, as in "
            "AntMaze's files; values do not bootstrap there",
        )
    if reading in ("time_limit_as_terminal", "last_row_only"):
        yield "warning", "ends", meaning(ends)
    elif report["terminals"] == 0 and report["episodes"] > 1:
        yield (
            "warning",
            "terminals",
            "no terminals: every episode end is taken as a cut, and values bootstrap there; "
            + meaning(ends),
        )
    elif reading != "unknown":
        yield "note", "ends", meaning(ends)
    if reading == "time_limit" and ends["cuts_at_longest"] == ends["cut"] - 1:
        yield (
            "note",
            "ends",
            f"the last episode stops after {ends['last_length']} rows, where the log does",
        )


def meaning(ends: dict[str, Any]) -> str:
    """What the ends of the episodes seem to mean."""
    longest = _limit(ends["longest"])
    return {
        "no_ends": "nothing ends: it is one episode to the last row",
        "last_row_only": "the only terminal is the last row: it is probably the end of the log and "
        "not of the task, and stops bootstrapping there",
        "endless": "each episode goes on where the one before stopped, so this is one endless log, "
        "and the ends mark something else, such as reached targets",
        "time_limit": f"{ends['cuts_at_longest']} of {ends['cut']} cuts come at the greatest "
        f"length, {longest}: a time limit",
        "time_limit_as_terminal": f"{ends['terminals_at_longest']} of {ends['terminal']} terminals "
        f"come at exactly {longest}, the greatest length: a time limit written as a terminal would "
        "teach that the world ends there",
        "cuts": "the cuts come at different lengths",
        "success": "terminals seem to mark success: they come with the best rewards",
        "failure": "terminals seem to mark failure: they come early or with the worst rewards",
        "unknown": "what terminals mean cannot be told from the rewards",
    }[ends["reading"]]


def _limit(longest: int) -> str:
    """A length, and the rounder one that it was before a last row without successor was dropped."""
    if longest % 50 != 0 and (longest + 1) % 50 == 0:
        return f"{longest} rows ({longest + 1} with a last row whose successor is unknown)"
    return f"{longest} rows"


def _rows(report: dict[str, Any]) -> Said:
    rows = report["rows"]
    if report["frozen_share"] == 1:
        yield (
            "warning",
            "frozen_share",
            "next_observations equal observations in every row: nothing ever moves, or the same "
            "array was stored twice",
        )
    elif report["frozen_share"] > 0.05:
        yield (
            "warning",
            "frozen_share",
            f"in {report['frozen_share']:.0%} of the rows nothing moves: the next observation is "
            "the same",
        )
    if report["repeated_rows"] > max(1, 0.001 * rows):
        yield (
            "warning",
            "repeated_rows",
            f"{report['repeated_rows']} rows ({report['repeated_rows'] / rows:.1%}) repeat another "
            "row exactly: they weigh more, and held-out episodes are not new",
        )
    if rows < FEW_ROWS:
        yield (
            "warning",
            "rows",
            f"only {rows:,} rows: networks of the usual size will learn them by heart",
        )
    if 1 < report["episodes"] < FEW_EPISODES:
        yield (
            "warning",
            "episodes",
            f"only {report['episodes']} episodes: too few to hold some out and judge by them",
        )


def _task(report: dict[str, Any]) -> Said:
    task = TASKS.get(report["task"] or "")
    if task is None:
        return
    for name in ("observation_dim", "action_dim"):
        wanted = task.obs_dim if name == "observation_dim" else task.action_dim
        if report[name] != wanted:
            yield (
                "warning",
                name,
                f"{task.name} has {wanted} {name.split('_')[0]} dimensions, this data "
                f"{report[name]}: it cannot be evaluated there",
            )


def describe(report: dict[str, Any]) -> str:
    """The report as lines of text."""
    length, returns = report["episode_length"], report["episode_return"]
    reward, timing = report["reward"], report["reward_timing"]
    ends, score = report["ends"], report["score"]
    bounds = sorted(set(zip(report["action_low"], report["action_high"], strict=True)), key=str)
    ranges = [f"{number(low, 'g')} to {number(high, 'g')}" for low, high in bounds]
    lines = [
        f"{report['source']}",
        f"  task            {report['task'] or 'none'} ({report['origin']} data)",
        f"  fingerprint     {report['fingerprint'][:16]}",
        f"  rows            {report['rows']:,} in {report['episodes']:,} episodes, lengths "
        f"{length['min']:.0f} to {length['max']:.0f} (median {length['median']:.0f})",
        f"  observation     {report['observation_dim']} dimensions",
        f"  action          {report['action_dim']} dimensions within {some(ranges)}"
        + (f" (bounds: {report['bounds_origin']})" if report["bounds_origin"] else "")
        + f", {report['saturated_share']:.0%} of components at a bound",
        f"  return          {number(returns['min'], '.1f')} to {number(returns['max'], '.1f')} an "
        f"episode, mean {number(returns['mean'], '.1f')}, middle half "
        f"{number(returns['q25'], '.1f')} to {number(returns['q75'], '.1f')}",
    ]
    if score:
        lines.append(
            f"  score           {score['mean']:.1f} on average, worst {score['worst']:.1f}, best "
            f"{score['best']:.1f}: normalized, of {score['of']}"
        )
    belongs = {
        "current": "this observation",
        "next": "the next observation",
        "previous": "the row before",
    }
    lines += [
        f"  reward          {number(reward['min'], '.4g')} to {number(reward['max'], '.4g')}, "
        f"{reward['nonzero_share']:.1%} not zero; belongs to "
        f"{belongs.get(timing['verdict'], 'this or the next observation: cannot tell')} "
        f"({timing['why']})",
        f"  terminals       {report['terminals']:,}; {ends['cut']:,} episodes are cut",
    ]
    lines += [f"  reading         {text}" for text in report["reader_notes"]]
    labels = {"refused": "REFUSED", "warning": "warning", "note": "note"}
    lines += [f"  {labels[f['level']]:<16}{f['text']}" for f in report["findings"]]
    return "\n".join(lines)
