"""Trees of arrays to and from safetensors files, by name. Such a file cannot hold code."""

import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from gemrl.data.storage import atomic_path
from gemrl.errors import BundleError


def tree_names(tree: Any) -> list[str]:
    """A name for each leaf, such as `actor/net/layers/0/weight`."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return ["/".join(str(getattr(k, "name", getattr(k, "idx", k))) for k in p) for p, _ in paths]


def save_tree(path: Path, tree: Any, metadata: dict[str, str] | None = None) -> str:
    """Write a tree atomically; returns the SHA-256 of the file."""
    arrays = {
        name: np.asarray(leaf, order="C")  # Not ascontiguousarray, which makes [1] of a scalar.
        for name, leaf in zip(tree_names(tree), jax.tree.leaves(tree), strict=True)
    }
    metadata = metadata or {}
    data = save(arrays, metadata={**metadata, "sha256": _digest(arrays, metadata)})
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of a file by name, and its text fields, refused where they are damaged."""
    with _opened(path) as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata() or {})
    recorded = metadata.pop("sha256", None)
    if recorded is not None and recorded != _digest(arrays, metadata):
        raise BundleError(f"{path}: the contents do not match their digest; the file is damaged")
    return arrays, metadata


def load_tree(path: Path, like: Any) -> Any:
    """Read a tree of the structure, shapes and types of `like`."""
    return as_tree(load_arrays(path)[0], like, path)


def as_tree(arrays: dict[str, np.ndarray], like: Any, path: Path) -> Any:
    """Arrays by name as a tree of the structure, shapes and types of `like`."""
    leaves, structure = jax.tree.flatten(like)
    names = tree_names(like)
    if set(arrays) != set(names):
        odd = sorted(set(arrays) ^ set(names))
        raise BundleError(
            f"{path}: the weights do not fit the configuration; missing or unknown: "
            f"{', '.join(odd[:4])}{' ...' if len(odd) > 4 else ''}"
        )
    for name, leaf in zip(names, leaves, strict=True):
        array = arrays[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise BundleError(
                f"{path}: {name} is {array.dtype}{array.shape} where the configuration needs "
                f"{leaf.dtype}{leaf.shape}"
            )
    return jax.tree.unflatten(structure, [jax.numpy.asarray(arrays[name]) for name in names])


def _digest(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
    """SHA-256 over text fields, names, types, shapes and contents."""
    digest = hashlib.sha256()
    for name in sorted(metadata):
        digest.update(f"{name}={metadata[name]};".encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path}: not a readable safetensors file ({error})") from error
