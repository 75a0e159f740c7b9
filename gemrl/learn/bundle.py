"""A trained policy as a folder: `manifest.json` and `weights.safetensors`.

The manifest carries the SHA-256 of the weights and of itself, so a file that was cut short, swapped
or edited by hand is noticed. Nothing in a bundle can run.
"""

import dataclasses
import hashlib
import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

import gemrl
from gemrl.data.dataset import Dataset
from gemrl.data.readers import is_log, load_dataset
from gemrl.data.storage import write_text
from gemrl.errors import BundleError, ConfigError, DataError
from gemrl.learn.divergence import divergence_of
from gemrl.learn.spec import Spec
from gemrl.learn.tensors import load_tree, save_tree
from gemrl.methods import method_named
from gemrl.methods.protocol import MethodConfig, Models

FORMAT = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
REQUIRED = {"method": str, "config": dict, "spec": dict, "dataset": dict, "files": dict}


@dataclass(frozen=True, eq=False)
class Bundle:
    """A policy's models, how they see the world, and where they come from."""

    models: Models
    spec: Spec
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest, which holds that of the weights: names this policy."""
        return self.manifest["digest"]

    def read_data(self, source: str | None = None) -> Dataset:
        """The dataset that it was trained on, read as it was then; `source` is its place now."""
        return data_of(self.manifest, source)

    def split(self, data: Dataset) -> tuple[np.ndarray, np.ndarray]:
        """Rows of its dataset that it was trained on, and rows that were held out."""
        trained_on = self.manifest["dataset"]["fingerprint"]
        if data.fingerprint != trained_on:
            raise DataError(
                f"{data.source} is not the dataset that this policy was trained on: fingerprint "
                f"{data.fingerprint[:16]} where the bundle has {trained_on[:16]}"
            )
        config = self.manifest["config"]
        return data.split_episodes(config["holdout"], config["seed"])


def data_of(manifest: dict[str, Any], source: str | None = None) -> Dataset:
    """The dataset of a training, read as it was then; `source` is its place now."""
    about = manifest["dataset"]
    place = source or about["source"]
    reading = dict(about.get("reading", {}))
    if not is_log(place):
        reading.pop("columns", None)  # The same data may be given as another kind of file.
    return load_dataset(place, task=manifest["task"], **reading)


def config_to_json(config: MethodConfig) -> dict[str, Any]:
    """The configuration's fields as JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def config_from_json(method: str, values: dict[str, Any]) -> MethodConfig:
    """The reverse of `config_to_json`; an unknown or missing field is an error."""
    kind = method_named(method).config
    names = {field.name for field in dataclasses.fields(kind)}
    if set(values) != names:
        odd = ", ".join(sorted(set(values) ^ names))
        raise ConfigError(f"the configuration of {method} has missing or unknown fields: {odd}")
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return kind(**fields)


def save_bundle(
    folder: Path, method: str, config: MethodConfig, models: Models, spec: Spec, **about: Any
) -> Bundle:
    """Write a bundle. The manifest comes last: without it there is no bundle."""
    folder.mkdir(parents=True, exist_ok=True)
    weights_digest = save_tree(folder / WEIGHTS, models)
    manifest = {
        "format": FORMAT,
        "method": method,
        "config": config_to_json(config),
        "spec": spec.to_json(),
        **about,
        "software": {
            "gemrl": gemrl.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("jax", "jaxlib", "equinox", "optax", "numpy")},
        },
        "files": {WEIGHTS: weights_digest},
    }
    manifest["digest"] = manifest_digest(manifest)
    write_text(folder / MANIFEST, json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    return Bundle(models, spec, manifest)


def manifest_digest(manifest: dict[str, Any]) -> str:
    """SHA-256 over everything in the manifest but the digest itself."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def load_manifest(folder: Path) -> dict[str, Any]:
    """Read and check a manifest."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        seeds = sorted(folder.glob(f"seed-*/{MANIFEST}"))
        if seeds:
            hint = f"it holds several seeds: name one, such as {seeds[0].parent}"
        elif (why := divergence_of(folder)) is not None:
            hint = f"its training diverged: {why}"
        elif folder.is_dir():
            hint = "training has not finished there, or it is not a run folder"
        else:
            hint = "there is no such folder"
        raise BundleError(f"no policy in {folder}: {hint}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise BundleError(f"{path}: not a policy's manifest")
    if manifest["format"] != FORMAT:
        relation = "newer" if manifest["format"] > FORMAT else "older"
        raise BundleError(
            f"{path}: format {manifest['format']} is {relation} than {FORMAT}, which this version "
            f"of gemrl ({gemrl.__version__}) reads; use the gemrl that wrote it, or train anew"
        )
    if manifest.get("digest") != manifest_digest(manifest):
        raise BundleError(
            f"{path}: the contents do not match their digest; the file was edited or damaged"
        )
    for name, kind in REQUIRED.items():
        if not isinstance(manifest.get(name), kind):
            raise BundleError(f"{path}: {name} is missing or not a {kind.__name__}")
    return manifest


def load_bundle(folder: str | Path) -> Bundle:
    """Read a bundle, refusing one that is damaged, edited or of another format."""
    folder = Path(folder)
    manifest = load_manifest(folder)
    path = folder / WEIGHTS
    try:
        data_digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from error
    if data_digest != manifest["files"].get(WEIGHTS):
        raise BundleError(
            f"{path}: SHA-256 differs from the manifest's; the file is damaged or of another run"
        )
    try:
        config = config_from_json(manifest["method"], manifest["config"])
    except ConfigError as error:
        raise BundleError(f"{folder / MANIFEST}: {error}") from error
    spec = Spec.from_json(manifest["spec"])
    models = load_tree(path, _skeleton(manifest["method"], config, spec))
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(models)):
        raise BundleError(f"{path}: holds weights that are not finite")
    return Bundle(models, spec, manifest)


def _skeleton(name: str, config: MethodConfig, spec: Spec) -> Models:
    """Shapes and types of a method's models, without computing any."""
    method = method_named(name)
    return eqx.filter_eval_shape(
        lambda key: method.models(method.init(config, spec.obs_dim, spec.action_dim, key)),
        jax.random.key(0),
    )
