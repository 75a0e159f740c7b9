"""Write a policy as `policy.onnx` with `policy.json` beside it, checked before they get there."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

import gemrl
from gemrl.data.dataset import Dataset
from gemrl.data.storage import atomic_path
from gemrl.decide.history import logged_inputs, seeing_contexts
from gemrl.decide.knobs import MAX_CANDIDATES, Cosine, Knobs, whole_number
from gemrl.decide.policy import Policy
from gemrl.deploy.export.builder import OPSET, Builder
from gemrl.deploy.export.contract import Contract, Fixed, contract_of
from gemrl.deploy.export.golden import POOL, golden, states_near_data
from gemrl.deploy.export.graph import decision
from gemrl.deploy.export.verify import (
    FORMAT,
    VerifyError,
    read_sidecar,
    sidecar_digest,
    sidecar_of,
    verify,
)
from gemrl.errors import BundleError, ConfigError, GemrlError, KnobError
from gemrl.methods.context import Context

UNITS = "environment units"
MAX_BATCH = 2**16


def export_policy(
    policy: Policy,
    out: str | Path,
    knobs: Knobs | None = None,
    *,
    fixed: Fixed | None = None,
    states: np.ndarray | None = None,
) -> dict[str, Any]:
    """Write the whole decision as an ONNX file; gives what `verify` says of it.

    `knobs` are the defaults of the file: λ, w_p, k_smooth and a temperature above 0 can be given
    anew at each call, n follows from the noise, and source, anchor, support, value and a
    temperature of 0 are fixed. With `fixed` all shapes and k_smooth are constant. `states` [R, S]
    are where golden decisions are made; without them they are drawn around the scaler's mean. The
    file of a policy that looks back takes packed contexts for observations, and the JSON says under
    "history" how one is made.
    """
    out = Path(out)
    if out.suffix != ".onnx":
        raise ConfigError(f"{out}: the name of an exported policy must end with .onnx")
    _require_own(sidecar_of(out))
    knobs = _checked(policy.default_knobs if knobs is None else knobs, fixed)
    # First: the policy itself refuses what its models cannot serve.
    policy.require_models(knobs)
    data = build(policy, knobs, fixed)
    contract = contract_of(policy.models, policy.input_spec, knobs, fixed)
    at = states_near_data(policy) if states is None else states
    decisions, tolerance = golden(seeing_contexts(policy), knobs, contract, fixed, at)
    sidecar = {
        **_about(policy, knobs),
        "file": out.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "opset": OPSET,
        "fixed": None if fixed is None else fixed._asdict(),
        **_ports(contract),
        "golden": {"states": "scaler" if states is None else "dataset", **decisions},
        "tolerance": tolerance,
    }
    sidecar["digest"] = sidecar_digest(sidecar)
    with atomic_path(sidecar_of(out)) as new_sidecar, atomic_path(out) as new_model:
        new_model.write_bytes(data)
        new_sidecar.write_text(json.dumps(sidecar, sort_keys=True) + "\n", encoding="utf-8")
        try:
            found = verify(new_model, new_sidecar)
        except VerifyError as error:
            raise BundleError(f"{out} was not written: it fails its own check: {error}") from error
    return found | {"file": str(out), "sidecar": str(sidecar_of(out)), "bytes": len(data)}


def golden_data(policy: Policy) -> Dataset | None:
    """The policy's own dataset, or None where it is not at hand any more."""
    try:
        data = policy.bundle.read_data()
        policy.bundle.split(data)  # Refuses another dataset.
    except (GemrlError, OSError):
        return None
    return data


def golden_states(policy: Policy) -> np.ndarray | None:
    """Some states of the policy's own dataset, or None where it is not at hand any more."""
    data = golden_data(policy)
    if data is None:
        return None
    return logged_inputs(policy, data, np.linspace(0, len(data) - 1, POOL, dtype=int))


def build(policy: Policy, knobs: Knobs, fixed: Fixed | None = None) -> bytes:
    """The contents of the ONNX file."""
    builder = Builder()
    made = decision(builder, policy.models, policy.input_spec, knobs, fixed)
    about = _about(policy, knobs)
    text = {key: x if isinstance(x, str) else json.dumps(x) for key, x in about.items()}
    contract = contract_of(policy.models, policy.input_spec, knobs, fixed)
    return builder.model(contract, made, text).SerializeToString(deterministic=True)


def _require_own(sidecar: Path) -> None:
    """Never write over a JSON that is something else, such as a run's manifest."""
    try:
        if sidecar.exists():
            read_sidecar(sidecar)
    except VerifyError as error:
        raise ConfigError(
            f"{sidecar} is in the way: not the JSON of an earlier export; choose another name, or "
            "remove it"
        ) from error


def _checked(knobs: Knobs, fixed: Fixed | None) -> Knobs:
    """The knobs of the file; refused where a graph cannot hold them."""
    if isinstance(knobs.wp, Cosine):
        raise KnobError(
            "wp is a schedule, and a file knows no step of an episode: export with a number, and "
            "give each step's weight as the input wp"
        )
    if fixed is None:
        return knobs
    n = whole_number("fixed n", fixed.n, 0, MAX_CANDIDATES)
    whole_number("batch", fixed.batch, 1, MAX_BATCH)
    return dataclasses.replace(knobs, n=n)


def _about(policy: Policy, knobs: Knobs) -> dict[str, Any]:
    """What both files say of the policy."""
    spec, manifest = policy.input_spec, policy.bundle.manifest
    return {
        "format": FORMAT,
        "gemrl": gemrl.__version__,
        "policy": policy.digest,
        "method": policy.method,
        "density": manifest.get("density"),
        "task": manifest["task"],
        "knobs": knobs.to_json(),
        "observation": {
            "size": spec.obs_dim,
            "units": UNITS,
            "names": _names(manifest, "observations", spec.obs_dim),
            "mean": spec.obs_mean.tolist(),
            "std": spec.obs_std.tolist(),
        },
        "history": None if policy.context is None else _history(policy, policy.context),
        "action": {
            "size": spec.action_dim,
            "units": UNITS,
            "names": _names(manifest, "actions", spec.action_dim),
            "low": spec.action_low.tolist(),
            "high": spec.action_high.tolist(),
        },
    }


def _history(policy: Policy, context: Context) -> dict[str, Any]:
    """How the context of a policy that looks back is made; all in environment units."""
    spec, names = policy.spec, _names(policy.bundle.manifest, "observations", policy.spec.obs_dim)
    return {
        "steps": context.length,
        "step": [
            {"name": "to_go", "size": 1, "meaning": "what is asked for from the step on"},
            {"name": "observation", "size": spec.obs_dim, "names": names},
            {
                "name": "action",
                "size": spec.action_dim,
                "meaning": "in the last step any within bounds",
            },
            {"name": "number", "size": 1, "meaning": "the step's place in its episode, from 0"},
            {"name": "present", "size": 1, "meaning": "1"},
        ],
        "order": "oldest step first, the present one last",
        "before_the_first_step": "the values of observation.mean, whose `present` is 0",
        "target_return": context.target_return,
    }


def _names(manifest: dict[str, Any], field: str, size: int) -> list[str] | None:
    """The columns of the log it was trained on, where they are named one by one."""
    columns = manifest.get("dataset", {}).get("reading", {}).get("columns") or {}
    names = list(columns.get(field, ()))
    single = len(names) == size and not any("*" in name for name in names)
    return names if single else None


def _ports(contract: Contract) -> dict[str, Any]:
    return {
        "inputs": [port.to_json() for port in contract.inputs],
        "outputs": [port.to_json() for port in contract.outputs],
        "left_out": list(contract.left_out),
    }
