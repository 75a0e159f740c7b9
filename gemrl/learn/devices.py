"""Training on several devices and hosts: each minibatch is split among them.

JAX does the work: arrays carry their sharding, and the compiled loop adds the gradients up. Every
process runs the same program; process 0, the lead, writes the files.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float32

from gemrl.errors import ConfigError, GemrlError, TrainingError

# Seconds after which a process that does not answer, or does not end with the others, is given up.
_SILENCE = 30
_PARTING = 60

T = TypeVar("T")


@dataclass(frozen=True)
class Devices:
    """One device, which is the default, or a mesh over all devices of all processes."""

    mesh: Mesh | None = None

    @property
    def count(self) -> int:
        """Devices that a minibatch is split among."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def lead(self) -> bool:
        """Whether this process writes the run's files."""
        return jax.process_index() == 0

    def share(self, batch_size: int) -> slice:
        """This process's part of a minibatch."""
        if self.mesh is None:
            return slice(None)
        if batch_size % self.count:
            raise ConfigError(
                f"batch_size = {batch_size}: must be a multiple of the {self.count} devices that "
                "share it"
            )
        part = batch_size // jax.process_count()
        return slice(part * jax.process_index(), part * (jax.process_index() + 1))

    def spread(self, minibatches: Float32[np.ndarray, "n b w"]) -> Array:
        """This process's part of a window of minibatches, as part of the whole on all devices."""
        if self.mesh is None:
            return jax.device_put(minibatches)
        sharding = NamedSharding(self.mesh, PartitionSpec(None, "batch", None))
        return jax.make_array_from_process_local_data(sharding, minibatches)

    def replicate(self, tree: Any) -> Any:
        """The lead's arrays, whole on each device."""
        if self.mesh is None:
            return tree
        tree = multihost_utils.broadcast_one_to_all(tree) if jax.process_count() > 1 else tree
        sharding = NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(
            lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), tree
        )

    def agree(self, number: int) -> int:
        """The lead's number, on every process."""
        if jax.process_count() == 1:
            return number
        return int(multihost_utils.broadcast_one_to_all(np.int64(number)))

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        if jax.process_count() == 1:
            return flag
        return bool(multihost_utils.process_allgather(np.array(flag)).any())

    def together(self, work: Callable[[], T]) -> T:
        """Do something that can fail on one process alone: then all stop, and none waits for it."""
        if jax.process_count() == 1:
            return work()
        result, failure = None, None
        try:
            result = work()
        except (GemrlError, OSError) as error:
            failure = error
        if self.any(failure is not None):
            raise failure or TrainingError("another process of this run has stopped and says why")
        return cast(T, result)


def join(coordinator: str, processes: int | None, process: int | None) -> Devices:
    """Meet the other processes of a run at `coordinator`, HOST:PORT of process 0.

    With `auto` JAX asks the scheduler (Slurm, Open MPI, Kubernetes and others) for all of it.
    """
    given: dict[str, Any] = {}
    if coordinator != "auto":
        if processes is None or process is None:
            raise ConfigError("--coordinator needs --processes and --process as well, or is auto")
        if processes < 1:
            raise ConfigError(f"processes = {processes}: must be at least 1")
        if not 0 <= process < processes:
            raise ConfigError(f"process = {process}: must be from 0 to {processes - 1}")
        if not re.fullmatch(r".+:\d+", coordinator):
            raise ConfigError(f"coordinator = {coordinator}: must be HOST:PORT, or auto")
        given = {"num_processes": processes, "process_id": process}
        given["coordinator_address"] = coordinator
    try:
        jax.distributed.initialize(
            **given, heartbeat_timeout_seconds=_SILENCE, shutdown_timeout_seconds=_PARTING
        )
    except (ValueError, RuntimeError) as error:
        hint = "; no scheduler that JAX knows tells it" if coordinator == "auto" else ""
        raise ConfigError(f"coordinator = {coordinator}: {error}{hint}") from error
    return all_devices()


def all_devices() -> Devices:
    """A mesh over every device there is."""
    return Devices(Mesh(np.array(jax.devices()), ("batch",)))
