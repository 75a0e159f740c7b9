"""A section of the page: one task and data, with everything that its rows and bundles tell."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.data.inspect import inspect
from gemrl.data.readers import load_dataset
from gemrl.data.tasks import TASKS
from gemrl.decide.knobs import Knobs
from gemrl.errors import DataError, GemrlError
from gemrl.evaluate import pictures
from gemrl.evaluate.report import charts, tables
from gemrl.evaluate.report.decisions import decision_pictures
from gemrl.evaluate.report.gather import OURS, Source, Subject
from gemrl.evaluate.report.settings import (
    Headline,
    Setting,
    at_last_step,
    chosen_knobs,
    headlines,
    settings_of,
)
from gemrl.evaluate.rollouts import paths_file, read_paths
from gemrl.evaluate.rows import Row
from gemrl.learn.metrics import METRICS, read_metrics


def section(subject: Subject) -> dict[str, Any]:
    """Everything the page shows of a task."""
    task, rows, sources = TASKS.get(subject.task or ""), subject.rows, subject.sources
    heads = headlines(subject.task, rows)
    last = at_last_step(rows)
    test = settings_of([row for row in last if row.protocol == "test"])
    tried = settings_of([row for row in last if row.protocol == "validation"])
    every = settings_of([row for row in rows if row.protocol == "test"])
    ours = [s for s in test if s.method == OURS]
    knobs = heads[OURS].setting.knobs if OURS in heads else None
    chosen = chosen_knobs([row for row in last if row.method == OURS])
    guarded = knobs if knobs is not None and knobs.n > 0 and knobs.wp != 0 else chosen
    sweeps = charts.sweeps_of([s for s in tried if s.method == OURS])
    data, gone = _dataset(sources)
    report = None if data is None else inspect(data)
    paths = _paths(subject, test, guarded)
    states = _states(data, paths)
    maze = None if task is None else task.maze
    return {
        "name": subject.name,
        "labels": _labels(subject, heads),
        "notes": _notes(rows),
        "one_seed": len({row.train_seed for row in rows if row.protocol == "test"}) == 1,
        "scores": tables.score_table(test, "Scores on test seeds") if test else None,
        "audits": tables.audit_table(test, "Audits on test seeds") if test else None,
        "audit_legend": tables.AUDIT_LEGEND,
        "speed": tables.speed_table(test, "Where the time goes, on test seeds"),
        "earlier": _earlier(every, test),
        "choices": tables.choice_table(tried, chosen, "Scores on validation seeds")
        if tried
        else None,
        "budget": charts.by_candidates(ours, knobs) if knobs is not None else [],
        "sweep": [image for sweep in sweeps for image in charts.by_weight(sweep, "validation")],
        "frontiers": _frontiers(charts.sweeps_of(ours), "test") or _frontiers(sweeps, "validation"),
        "along": _along(list(heads.values()), every),
        "decision": None if states is None else decision_pictures(sources, states, guarded),
        "paths": pictures.paths(maze, paths) if maze is not None and paths else [],
        "data_facts": _data_facts(sources, report),
        "warnings": [] if report is None else report["warnings"],
        "gone": gone,
        "data_map": None
        if data is None or maze is None
        else pictures.data_map(maze, data.observations, data.rewards),
        "curves": _curves(sources),
        "policies": tables.policy_table(sources) if sources else None,
        "likelihood": tables.likelihood_table(sources),
        "configs": _configs(sources),
        "made_of": _made_of(sources, rows),
    }


def _labels(subject: Subject, heads: dict[str, Headline]) -> list[tuple[str, str]]:
    """What the numbers of the section are numbers of."""
    rows, sources = subject.rows, subject.sources
    origins = {row.data_origin for row in rows} | {s.dataset["origin"] for s in sources}
    seeds = {row.train_seed for row in rows} | {s.seed for s in sources}
    found = [
        ("data", f"{_join(origins)}, fingerprint {subject.fingerprint[:16]}"),
        ("training seeds", _join(seeds)),
    ]
    if not rows:
        return [*found, ("environment", "none was run: there are no rows yet")]
    episodes = []
    for protocol in ("test", "validation"):
        counts = [s.episodes for s in settings_of([r for r in rows if r.protocol == protocol])]
        if counts:
            episodes.append(f"{_range(counts)} on {protocol} seeds")
    last = {f"{h.setting.updates:,}" for h in heads.values()}
    searches = [(m.upper(), h) for m, h in heads.items() if h.setting.knobs.n > 0 or h.note]
    said = [f"{m}: {h.protocol}" + (f"; {h.note}" if h.note else "") for m, h in searches]
    return [
        *found,
        ("environment", f"{_join(r.env_id for r in rows)} on {_join(r.simulator for r in rows)}"),
        ("episodes", f"{', '.join(episodes)}, for each training seed and setting"),
        *([("last step", f"after {_join(last)} updates")] if last else []),
        ("knobs", ". ".join(said) or "no search"),
    ]


def _join(values: Any) -> str:
    return ", ".join(map(str, sorted(set(values))))


def _range(counts: Sequence[int]) -> str:
    return " to ".join(str(n) for n in sorted({min(counts), max(counts)}))


def _notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know before comparing."""
    policies: dict[tuple[str, int, int], set[str]] = {}
    for row in rows:
        policies.setdefault((row.method, row.train_seed, row.updates), set()).add(row.bundle)
    return [
        f"{len(bundles)} different policies of {method.upper()} share training seed {seed} and "
        f"{updates:,} updates; their rows are averaged as one run"
        for (method, seed, updates), bundles in sorted(policies.items())
        if len(bundles) > 1
    ]


def _earlier(every: Sequence[Setting], shown: Sequence[Setting]) -> tables.Table | None:
    """Test rows of policies on their way, which are never mixed with the last step."""
    seen = {(s.method, s.updates) for s in shown}
    others = [s for s in every if s.mass_scale == 1.0 and (s.method, s.updates) not in seen]
    title = "Earlier in training, on test seeds, of those training seeds that have such rows"
    return tables.score_table(others, title) if others else None


def _frontiers(sweeps: Sequence[charts.Sweep], seeds: str) -> list[pictures.Picture]:
    """Score against violation for each sweep that has at least three settings."""
    large = [sweep for sweep in sweeps if sum(map(len, sweep)) > 2]
    found = [charts.frontier(sweep, seeds) for sweep in large]
    return [picture for picture in found if picture is not None]


def _along(heads: Sequence[Headline], every: Sequence[Setting]) -> list[pictures.Picture]:
    found = [
        charts.along(heads, every, "updates", "normalized score", "updates"),
        charts.along(heads, every, "mass_scale", "normalized score", "mass scale"),
    ]
    return [picture for picture in found if picture is not None]


def _dataset(sources: Sequence[Source]) -> tuple[Dataset | None, str]:
    """The dataset where it can still be read and is still the same; else why not."""
    if not sources:
        return None, "There is no bundle here that names the dataset."
    about = sources[0].dataset
    try:
        reading = about.get("reading", {})
        data = load_dataset(about["source"], task=sources[0].task, **reading)
    except GemrlError as error:  # It may be gone, or its reader need an extra.
        return None, f"The dataset is not where it was at training: {error}."
    if data.fingerprint != about["fingerprint"]:
        return None, f"The dataset is not what it was at training: {about['source']} has changed."
    return data, ""


def _states(data: Dataset | None, paths: Sequence[tuple[str, np.ndarray]]) -> np.ndarray | None:
    """States to decide at: the data's, else those that episodes went through."""
    if data is not None:
        return data.observations
    return paths[0][1].reshape(-1, paths[0][1].shape[-1]) if paths else None


def _paths(
    subject: Subject, test: Sequence[Setting], guarded: Knobs | None
) -> list[tuple[str, np.ndarray]]:
    """Kept paths of one seed's policies: a baseline, the anchor, GEM and the unguarded search."""
    searches = [s for s in test if s.method == OURS and s.knobs.n > 1]
    wanted = [s for s in test if s.method == "iql"][:1]
    wanted += [s for s in test if s.method == OURS and s.knobs.n == 0][:1]
    wanted += [s for s in searches if s.knobs == guarded][:1]
    wanted += [s for s in searches if s.knobs.wp == 0][:1]
    found = []
    for setting in wanted:
        first = min(setting.rows, key=lambda row: row.train_seed)
        files = [paths_file(folder, first.cell) for folder in subject.row_folders]
        found += [(setting.label, read_paths(file)) for file in files if file.exists()][:1]
    return found


def _curves(sources: Sequence[Source]) -> list[pictures.Picture]:
    try:
        metrics = [(source.method, read_metrics(source.folder)) for source in sources]
    except ValueError as error:
        folders = ", ".join(str(source.folder) for source in sources)
        raise DataError(f"{METRICS} of one of {folders}: not readable ({error})") from error
    return pictures.training_curves([found for found in metrics if found[1]])


def _data_facts(sources: Sequence[Source], report: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What bundles say of their data, and what a look at it adds."""
    if not sources:
        return []
    about = sources[0].dataset
    found = [("source", about["source"]), ("origin", about["origin"])]
    counts = {"rows": "rows", "episodes": "episodes", "held_out_rows": "held out from training"}
    found += [(title, f"{about[key]:,}") for key, title in counts.items() if key in about]
    found.append(("fingerprint", about["fingerprint"][:16]))
    if report is None:
        return found
    low, mean, high = (report["episode_return"][name] for name in ("min", "mean", "max"))
    dimensions = f"{report['observation_dim']} observed, {report['action_dim']} of action"
    found += [
        ("dimensions", dimensions),
        ("episode return", f"{low:.4g} to {high:.4g}, mean {mean:.4g}"),
        ("rewarded", f"{report['reward']['nonzero_share']:.1%} of the rows"),
        ("at a bound", f"{report['saturated_share']:.0%} of the action components"),
    ]
    score = report["score"]
    if score is not None:
        found.append(("score of the data", f"mean {score['mean']:.1f} over {score['of']}"))
    return found


def _configs(sources: Sequence[Source]) -> list[tuple[str, str]]:
    """Each configuration once, with the policies that share it; seeds apart."""
    groups: dict[str, list[Source]] = {}
    for source in sources:
        rest = {k: v for k, v in source.manifest["config"].items() if k != "seed"}
        text = json.dumps(rest, indent=2, sort_keys=True)
        groups.setdefault(f"{source.method}\n{text}", []).append(source)
    return [
        (f"{found[0].method}, seeds {_join(s.seed for s in found)}", text.partition("\n")[2])
        for text, found in groups.items()
    ]


def _made_of(sources: Sequence[Source], rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The scales that numbers are in, and the versions that trained and evaluated."""
    found = []
    if sources:
        spec, reference = sources[0].manifest["spec"], sources[0].manifest.get("reference")
        if reference:
            low, high, origin = (reference[name] for name in ("low", "high", "origin"))
            found.append(("reference returns", f"{low} is 0, {high} is 100 ({origin})"))
        rewards = f"{spec['reward_scale']:g} × reward + {spec['reward_shift']:g}"
        found.append(("reward in training", f"{rewards}; w_p trades against values in this unit"))
    versions: dict[str, set[str]] = {}
    for source in sources:
        for name, version in source.manifest.get("software", {}).items():
            versions.setdefault(name, set()).add(version)
    found += [(name, _join(seen)) for name, seen in sorted(versions.items())]
    simulators = {row.simulator for row in rows}
    return found + ([("simulator", _join(simulators))] if simulators else [])
