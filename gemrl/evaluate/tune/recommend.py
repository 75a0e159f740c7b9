"""Which setting to take, and why, in words."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from gemrl.decide.knobs import Cosine, Knobs
from gemrl.evaluate.tune.estimate import Interval

# Fewer held-out episodes or transitions than this say nothing about a policy's value.
FEWEST_EPISODES = 10
FEWEST_ROWS = 500


@dataclass(frozen=True)
class Recommendation:
    """A setting and the reason for it."""

    knobs: Knobs
    kept_default: bool
    reason: str

    def to_json(self, own: Knobs) -> dict[str, Any]:
        """Plain values, with the setting as flags and as code to copy. `own` are the policy's own
        knobs, which commands begin with.
        """
        return {
            "knobs": self.knobs.to_json(),
            "kept_default": self.kept_default,
            "reason": self.reason,
            "flags": flags(self.knobs, own),
            "code": code(self.knobs),
        }


def flags(knobs: Knobs, own: Knobs) -> str:
    """The setting as flags of a command that begins with the policy's own knobs."""
    others = _others(knobs, own)
    words = (f" --{name.replace('_', '-')} {value}" for name, value in others.items())
    return f"--n {knobs.n} --lam {_exactly(knobs.lam)} --wp {_exactly(knobs.wp)}" + "".join(words)


def code(knobs: Knobs) -> str:
    """The setting as code."""
    others = "".join(f", {name}={value!r}" for name, value in _others(knobs, Knobs()).items())
    return f"gemrl.Knobs(n={knobs.n}, lam={_exactly(knobs.lam)}, wp={knobs.wp!r}{others})"


def _exactly(weight: float | Cosine) -> str:
    """The number in as few digits as give it back; settings are compared at constant weights."""
    assert isinstance(weight, float)
    return f"{weight:g}" if float(f"{weight:g}") == weight else repr(weight)


def _others(knobs: Knobs, own: Knobs) -> dict[str, Any]:
    """The knobs beside N, λ and w_p in which one setting differs from another."""
    names = (f.name for f in fields(knobs) if f.name not in ("n", "lam", "wp"))
    return {n: getattr(knobs, n) for n in names if getattr(knobs, n) != getattr(own, n)}


def too_little(episodes: int, rows: int, default: Knobs) -> Recommendation | None:
    """The default, where the held-out part is too small to say anything."""
    if episodes >= FEWEST_EPISODES and rows >= FEWEST_ROWS:
        return None
    return Recommendation(
        default,
        True,
        f"{rows:,} held-out transitions of {episodes} episodes are too few to estimate values: "
        f"it takes {FEWEST_ROWS:,} of {FEWEST_EPISODES}; train with a larger --holdout",
    )


def recommend(
    settings: Sequence[Knobs], default_at: int, differences: Sequence[Interval], confidence: float
) -> Recommendation:
    """The setting whose gain over the default has the highest lower bound, if that is above 0."""
    default = settings[default_at]
    others = [i for i in range(len(settings)) if i != default_at]
    if not others:
        return Recommendation(default, True, "there is no other setting to compare it with")
    best = max(others, key=lambda i: differences[i].low)
    gain = differences[best]
    told = f"{gain.mean:+.3g}, at least {gain.low:+.3g} with {confidence:.0%} confidence"
    if gain.low > 0:
        reason = f"it is worth more than the suite's default: {told}"
        return Recommendation(settings[best], False, reason)
    if all(differences[i].high < 0 for i in others):
        reason = "every other setting is worth less than the suite's default"
    elif all(d == Interval(0.0, 0.0, 0.0) for d in differences):
        reason = "all settings choose alike"
    else:
        reason = (
            "no other can be told apart from it for the better; the nearest, "
            f"{settings[best].describe()}, is worth {told}"
        )
    return Recommendation(default, True, reason)
