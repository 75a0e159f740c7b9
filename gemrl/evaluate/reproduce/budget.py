"""What a reproduction is to spend: tasks, methods, updates, seeds and episodes."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from gemrl.data.tasks import task_named
from gemrl.errors import ConfigError
from gemrl.methods import gem, method_named

BASELINES = ("iql", "bc")
"""Methods that are trained with GEM."""
WITHOUT_CRITICS = ("bc", "dt")
"""Methods that GEM's rule cannot execute, and that need no density."""


@dataclass(frozen=True)
class Budget:
    """How much a reproduction may spend."""

    tasks: tuple[str, ...]
    """Tasks, by name."""
    steps: int = 100_000
    """Updates of each training."""
    seeds: int = 3
    """How many training seeds."""
    first_seed: int = 0
    """The first of them: later ones join rows that are there already."""
    episodes: int | None = None
    """Test episodes a cell; by default as many as the task has. Half as many choose knobs."""
    n: int = 1024
    """Candidates of the tables that hold N fixed."""
    sweep_n: int = 64
    """Candidates of the sweeps on validation seeds."""
    knobs: str = "chosen"
    """Knobs of the tables on test seeds: `chosen` on validation seeds by task, or `paper` for the
    paper's own by suite."""
    data_steps: int | None = None
    """Transitions of a regenerated dataset; by default as many as the published one has."""
    methods: tuple[str, ...] = ()
    """Methods that are trained and compared beside GEM, IQL and BC."""
    method_steps: int | None = None
    """Updates of each training of these; by default as many as GEM's."""
    gem: bool = True
    """Whether GEM, IQL and BC are trained and evaluated; without, of GEM its behaviour density
    alone is trained, for methods that join rows which are there already."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of GEM's training."""
    method_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of other methods, by name, that are not their own."""

    def __post_init__(self) -> None:
        for task in self.tasks:
            task_named(task)
        if not self.tasks:
            raise ConfigError("tasks: there must be at least one")
        for name in self.methods:
            method_named(name)
        together = [name for name in self.methods if name in (gem.METHOD.name, *BASELINES)]
        if not self.gem and (together or not self.methods):
            raise ConfigError(
                f"methods = {self.methods}: without GEM there must be at least one, and none of "
                f"{', '.join((gem.METHOD.name, *BASELINES))}, which are trained together"
            )
        if not self.gem and not self.settings.get("freeze_behavior", True):
            raise ConfigError("freeze_behavior = False: then there is no density without GEM")
        if self.method_steps is not None and self.method_steps < 1:
            raise ConfigError(f"method_steps = {self.method_steps}: must be at least 1")
        self._check_method_settings()
        least_of = {"steps": 1, "seeds": 1, "first_seed": 0, "n": 1, "sweep_n": 1}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be at least {least}")
        if self.episodes is not None and self.episodes < 1:
            raise ConfigError(f"episodes = {self.episodes}: must be at least 1")
        if self.data_steps is not None and self.data_steps < 1:
            raise ConfigError(f"data_steps = {self.data_steps}: must be at least 1")
        if self.knobs not in ("chosen", "paper"):
            raise ConfigError(f"knobs = {self.knobs!r}: must be chosen or paper")

    def _check_method_settings(self) -> None:
        for method, given in self.method_settings.items():
            if method not in self.methods or method in (gem.METHOD.name, *BASELINES):
                raise ConfigError(
                    f"method_settings has {method!r}, which is not among the methods that are "
                    f"trained by themselves: {', '.join(self.methods) or 'there is none'}"
                )
            kind = method_named(method).config
            known = [f.name for f in fields(kind) if f.name not in ("steps", "seed")]
            for name in given:
                if name not in known:
                    raise ConfigError(
                        f"method_settings: {method} has no {name!r} to set; it has "
                        f"{', '.join(known)}"
                    )
            for task in self.tasks:
                kind.for_task(task, **given)

    @property
    def training_seeds(self) -> range:
        """The seeds that policies are trained with."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def test_episodes(self, task: str) -> int:
        """Episodes of a cell on test seeds."""
        return task_named(task).episodes if self.episodes is None else self.episodes

    def validation_episodes(self, task: str) -> int:
        """Episodes of a cell on validation seeds."""
        return max(1, self.test_episodes(task) // 2)


def shown(budget: Budget) -> dict[str, Any]:
    """A budget as its record has it."""
    return asdict(budget) | {"tasks": list(budget.tasks), "methods": list(budget.methods)}
