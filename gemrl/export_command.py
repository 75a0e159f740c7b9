"""The command `gemrl export`: its words, and what it calls."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from gemrl.arguments import KnobArgs, RuleArgs
from gemrl.errors import BundleError, ConfigError, MissingExtraError


@dataclass
class ExportArgs(RuleArgs):
    """Write a policy's whole decision as one ONNX file with a JSON beside it, or check a copy of
    such a file. Knobs given here are the file's defaults.
    """

    knobs: OmitArgPrefixes[KnobArgs]
    run: Annotated[Positional[Path | None], arg(metavar="RUN")] = None
    """Folder of a trained run."""
    out: Annotated[Positional[Path | None], arg(metavar="FILE")] = None
    """File to write, such as policy.onnx; policy.json comes beside it."""
    fixed_n: int | None = None
    """Make all shapes constant, with this many candidates, for runtimes that need it."""
    batch: int | None = None
    """States in a call of a file with constant shapes; by default 1."""
    verify: Path | None = None
    """Check this .onnx file against its JSON instead."""
    json: bool = False
    """Print JSON."""


def export(args: ExportArgs) -> None:
    """Write a file, or check one."""
    _require_sense(args)
    if args.verify is not None:
        _verify(args.verify, args.json)
        return
    if args.run is None or args.out is None:
        raise ConfigError(
            "export needs a run and a file to write (gemrl export RUN policy.onnx), or a file to "
            "check (gemrl export --verify policy.onnx)"
        )
    _write(args.run, args.out, args)


def _verify(model: Path, as_json: bool) -> None:
    from gemrl.deploy.export.verify import VerifyError, describe, verify

    try:
        found = verify(model)
    except VerifyError as error:
        raise BundleError(str(error)) from error
    except ImportError as error:
        raise MissingExtraError(
            f"--verify needs onnxruntime, which cannot be imported ({error}); install it with "
            "pip install 'gemrl[export]'"
        ) from error
    print(json.dumps(found) if as_json else describe(found))


def _write(run: Path, out: Path, args: ExportArgs) -> None:
    from gemrl.cli import knobs_from
    from gemrl.decide.policy import load
    from gemrl.deploy.export.contract import Fixed
    from gemrl.deploy.export.verify import describe
    from gemrl.deploy.export.write import export_policy, golden_states
    from gemrl.learn.compiled import kept_programs
    from gemrl.progress import said_on_success, say

    policy = load(run, backend="jax", behavior=args.behavior)
    knobs = knobs_from(args.knobs, policy, policy.bundle.manifest["task"], args.decide)
    fixed = None if args.fixed_n is None else Fixed(args.fixed_n, args.batch or 1)
    with said_on_success(), kept_programs():
        states = golden_states(policy)
        if states is None:
            say("the dataset is not at hand: golden states are drawn around the scaler's mean")
        found = export_policy(policy, out, knobs, fixed=fixed, states=states)
    print(json.dumps(found) if args.json else f"{describe(found)}\n{_sizes(found, fixed)}")


def _sizes(found: dict[str, Any], fixed: Any) -> str:
    shapes = "N and batch follow from the inputs"
    if fixed is not None:
        shapes = f"N = {fixed.n} and batch {fixed.batch} are constant"
    return f"  {found['bytes'] / 1e6:.1f} MB; {shapes}; inputs and outputs in {found['sidecar']}"


def _require_sense(args: ExportArgs) -> None:
    """Refuse words that contradict each other or would be ignored."""
    own = [f for f in fields(args) if f.name != "knobs"]
    given = [f.name for f in own if getattr(args, f.name) != f.default]
    knobs = [name for name, value in vars(args.knobs).items() if value is not None]
    if args.verify is not None:
        idle = [name for name in (*knobs, *given) if name not in ("verify", "json")]
        if idle:
            word = idle[0] if idle[0] in ("run", "out") else f"--{idle[0].replace('_', '-')}"
            raise ConfigError(f"{word} does not go with --verify, which only checks a file")
        return
    if args.batch is not None and args.fixed_n is None:
        raise ConfigError("--batch needs --fixed-n: without it any batch can be given")
    if args.batch == 0:
        raise ConfigError("--batch = 0: must be at least 1")
    if args.fixed_n is not None and args.knobs.n is not None:
        raise ConfigError("--n does not go with --fixed-n, which says how many candidates")
