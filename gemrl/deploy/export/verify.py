"""Check a copy of an exported policy against the golden decisions in the JSON beside it.

Needs NumPy and ONNX Runtime and nothing else, gemrl neither: copy this file to the machine that
will run the policy and call `python verify.py policy.onnx` there.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "gemrl-export-1"
"""It says what the JSON is as well: other files of gemrl have digests too."""


class VerifyError(Exception):
    """The file, or the JSON beside it, is not what was exported."""


def sidecar_of(model: Path) -> Path:
    """Where the JSON of a model lies."""
    return model.with_suffix(".json")


def sidecar_digest(sidecar: dict[str, Any]) -> str:
    """SHA-256 over everything in the JSON but the digest itself."""
    rest = {key: value for key, value in sidecar.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def verify(model: Path, sidecar: Path | None = None) -> dict[str, Any]:
    """Check a model against its JSON; gives what was found, or raises `VerifyError`."""
    try:
        data = model.read_bytes()
    except OSError as error:
        raise VerifyError(f"{model}: cannot be read ({error.strerror})") from error
    place = sidecar or sidecar_of(model)
    about = read_sidecar(place)
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise VerifyError(
            f"{model}: SHA-256 differs from the one in {place}: the file is damaged, or of another "
            "export; copy both files anew"
        )
    session = open_session(model, data)
    try:
        worst = _compare(session, about, model)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise VerifyError(f"{place}: not the JSON of an exported policy ({error!r})") from error
    rows = len(about["golden"]["observation"])
    return {
        "file": str(model),
        "policy": about["policy"],
        "method": about["method"],
        "task": about["task"],
        "decisions": rows * len(about["golden"]["cases"]),
        "worst_deviation": worst,
    }


def read_sidecar(place: Path) -> dict[str, Any]:
    """The JSON of a model, refused where it is missing, edited or of another format."""
    try:
        about = json.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise VerifyError(
            f"{place}: cannot be read ({error.strerror}); the model needs the JSON it was exported "
            "with beside it"
        ) from error
    except (ValueError, RecursionError) as error:
        raise VerifyError(f"{place}: not readable as JSON ({error})") from error
    if not isinstance(about, dict) or "digest" not in about:
        raise VerifyError(f"{place}: not the JSON of an exported policy")
    if about["digest"] != sidecar_digest(about):
        raise VerifyError(f"{place}: does not match its digest: it was edited or damaged")
    if about.get("format") != FORMAT:
        raise VerifyError(
            f"{place}: format {about.get('format')!r}, and this version reads {FORMAT}: not the "
            "JSON of an export, or one to be verified with the gemrl that wrote it"
        )
    return about


def open_session(model: Path, data: bytes) -> Any:
    """ONNX Runtime with the model loaded."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # It warns of every input that has a default.
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise VerifyError(f"{model}: ONNX Runtime cannot load it ({_line(error)})") from error


def golden_inputs(about: dict[str, Any], case: dict[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """What is fed to the graph for some rows of a golden case."""
    golden = about["golden"]
    named = {port["name"]: port["dtype"] for port in about["inputs"]}
    feeds = {"observation": np.array(golden["observation"], np.float32)[rows]}
    for name in ("gate_noise", "normal_noise"):
        if name in named:
            # A smaller set of candidates is a prefix of a larger one.
            feeds[name] = np.array(golden[name], np.float32)[rows, : case["n"]]
    if "draw_noise" in named:
        feeds["draw_noise"] = np.array(golden["draw_noise"], np.float32)[rows, : case["n"] + 1]
    for name, values in case["given"].items():
        given = np.array(values, named[name])
        feeds[name] = given if name == "k_smooth" else given[rows]
    return feeds


def _compare(session: Any, about: dict[str, Any], model: Path) -> float:
    """The largest deviation from the golden decisions, as a share of what is allowed."""
    if session.get_modelmeta().custom_metadata_map.get("policy") != about["policy"]:
        raise VerifyError(f"{model}: holds another policy than its JSON says")
    total, worst = len(about["golden"]["observation"]), 0.0
    fixed = about["fixed"]
    batch = total if fixed is None else fixed["batch"]
    for case in about["golden"]["cases"]:
        names = list(case["expected"])
        for start in range(0, total, batch):
            # A batch that is larger than what is left is filled up with rows from the beginning.
            rows = np.arange(start, start + batch) % total
            feeds = golden_inputs(about, case, rows)
            try:
                found = session.run(names, feeds)
            except Exception as error:
                raise VerifyError(
                    f"{model}: ONNX Runtime cannot run it ({_line(error)})"
                ) from error
            for name, got in zip(names, found, strict=True):
                expected = np.array(case["expected"][name])[rows]
                where = f"{model}: {name} at N = {case['n']}"
                worst = max(worst, _deviation(got, expected, about["tolerance"].get(name), where))
    return worst


def _deviation(got: np.ndarray, expected: np.ndarray, allowed: float | None, where: str) -> float:
    """How far an output is off, as a share of what is allowed; indices and flags must be equal."""
    if got.shape != expected.shape:
        raise VerifyError(f"{where} has shape {got.shape}, and {expected.shape} was exported")
    if allowed is None:
        if not np.array_equal(got, expected):
            raise VerifyError(f"{where} is {got.tolist()}, and {expected.tolist()} was exported")
        return 0.0
    off = np.abs(got - expected).max()
    if not off <= allowed:
        raise VerifyError(
            f"{where} is off by {off:.3g}, and {allowed:.3g} is allowed: this copy or this runtime "
            "decides otherwise than the policy that was exported"
        )
    return float(off / allowed)


def _line(error: Exception) -> str:
    """An error on one line, and not a long one."""
    return " ".join(str(error).split())[:300]


def describe(found: dict[str, Any]) -> str:
    """What was found, as a sentence."""
    about = ", ".join(str(x) for x in (found["method"], found["task"]) if x)
    return (
        f"{found['file']}: as exported ({about}, policy {found['policy'][:16]}); "
        f"{found['decisions']} golden decisions agree, the worst to "
        f"{100 * found['worst_deviation']:.2g} % of the tolerance"
    )


def main(words: list[str] | None = None) -> int:
    """Check the file that the command line names: 0 if it is right, else 2 and one line."""
    parser = argparse.ArgumentParser(prog="verify.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, help="the .onnx file, with its .json beside it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(words)
    try:
        found = verify(args.model)
    except (VerifyError, ImportError) as error:
        print(f"verify: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found) if args.json else describe(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
