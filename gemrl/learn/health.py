"""Whether training goes well: what is measured on rows it watches, and words where it does not."""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gemrl.maths.expectile import expectile_loss
from gemrl.maths.mixture import gate_entropy, log_prob
from gemrl.methods.networks import MixtureNet
from gemrl.methods.protocol import Batch, GaussianConfig, MethodConfig, Metrics, Models, floor_share

# A component is dead where its mean weight is below this share of an even one, 1/K. So few samples
# come from it that it takes no part in a search.
DEAD_WEIGHT = 0.01

# From here on a person is told. Short runs of GEM on five regenerated tasks of all suites stayed
# below: at most half of the components were dead, the heaviest had 0.92, held-out actions were 0.04
# nats less likely than training's, and critics were apart by 0.3 of the values' spread. On 4,000
# rows of another task they reached 3 nats, and a third of the weights were clipped.
MOST_DEAD = 0.5
"""Share of dead components; the network has more than twice the components that it uses."""
COLLAPSED = 0.99
"""Mean weight of the heaviest component: what is left to the others is no second mode."""
MOST_AT_BOUND = 0.5
"""Share of log-stds at a bound, which then decides the density more than the data do."""
OFTEN_CLIPPED = 0.1
"""Share of advantage weights at their cap: better actions are no longer told from good ones."""
OVERFIT_NATS = 1.0
"""How much less likely held-out actions are than training's: by a factor of e."""
DISAGREEMENT = 1.0
"""Critics' standard deviation about an action over that of the values of different rows."""

# Looks without a finding before it counts as gone: one that hovers at its limit is not told anew
# each time.
CALM_LOOKS = 5


def mixture_health(net: MixtureNet, obs: Float[Array, "b s"], config: MethodConfig) -> Metrics:
    """How a mixture uses its components on scaled observations.

    `gate_entropy` is that of a state's gates, in the mean over states. `heaviest` and `dead` look
    at the mean weights over all states, since a component may well serve a few of them only.
    """
    log_weights = net(obs).log_weights
    weights = jnp.mean(jnp.exp(log_weights), axis=0)
    found = {
        "gate_entropy": jnp.mean(gate_entropy(log_weights)),
        "heaviest": jnp.max(weights),
        "dead": jnp.mean(weights < DEAD_WEIGHT / len(weights)),
    }
    if not isinstance(config, GaussianConfig):  # A density that another method's policy borrowed.
        return found
    return found | {
        "log_std_at_floor": floor_share(net, config),
        "log_std_at_ceiling": jnp.mean(net.log_std >= config.log_std_max),
    }


def held_out_metrics(
    models: Models, batch: Batch, config: MethodConfig, prefix: str = "held_out"
) -> Metrics:
    """What a method's models make of some rows, named `prefix/...`: held out, or of training."""
    found = _metrics(models, batch, config)
    return {f"{prefix}/{name}": value for name, value in found.items()}


@partial(jax.jit, static_argnames="config")
def _metrics(models: Models, batch: Batch, config: MethodConfig) -> Metrics:
    found: Metrics = {}
    for name, net in (("actor", models.actor), ("behavior", models.behavior)):
        if isinstance(net, MixtureNet):
            found[f"{name}_nll"] = -jnp.mean(log_prob(net(batch.obs), batch.action))
            health = mixture_health(net, batch.obs, config)
            found |= {f"{name}_{key}": value for key, value in health.items()}
    if models.critics:
        found |= _critic_metrics(models, batch, config)
    return found


def _critic_metrics(models: Models, batch: Batch, config: Any) -> Metrics:
    """Values of the data's actions, and how much the critics disagree and err about them.

    The bootstrap and the expectile loss are those of training, with critics instead of targets.
    """
    q = jnp.stack([critic(batch.obs, batch.action) for critic in models.critics])
    found = {
        "critic_mean": jnp.mean(q),
        "critic_std": jnp.mean(jnp.std(q, axis=0)),
        "critic_spread": jnp.std(jnp.mean(q, axis=0)),
    }
    if models.value is None:
        return found
    value = models.value(batch.obs)
    found["value_mean"] = jnp.mean(value)
    if hasattr(config, "discount"):
        bootstrap = batch.reward + config.discount * batch.mask * models.value(batch.next_obs)
        found["critic_td"] = jnp.mean((q - bootstrap) ** 2)
    if hasattr(config, "expectile"):
        delta = jnp.min(q, axis=0) - value
        found["value_loss"] = jnp.mean(expectile_loss(delta, config.expectile))
    return found


Finding = tuple[str, str]
"""A topic, such as `actor/dead`, and a sentence about it."""

_TITLES = {"actor": "the actor", "behavior": "the behaviour density"}


def warnings(metrics: Mapping[str, float], components: int) -> list[Finding]:
    """What goes wrong according to a line of metrics, and what to do about it.

    Where the line has metrics of training itself, such as `actor/nll`, only networks that are in
    training are judged: GEM's actor and critics are untouched while the behaviour density is
    fitted.
    """
    known = {"actor", "behavior", "critic"}
    judged = known & {name.partition("/")[0] for name in metrics} or known
    found: list[Finding] = []
    for net in ("actor", "behavior"):
        if net in judged:
            found += _component_warnings(metrics, net, components)
            found += _spread_warnings(metrics, net)
            found += _fit_warnings(metrics, net)
    found += _weight_warnings(metrics)
    if "critic" in judged:
        found += _critic_warnings(metrics)
    return found


def _value(metrics: Mapping[str, float], net: str, name: str, missing: float = 0.0) -> float:
    """A network's metric on held-out rows, or else on others."""
    for key in (f"held_out/{net}_{name}", f"training/{net}_{name}", f"{net}/{name}"):
        if key in metrics:
            return metrics[key]
    return missing


def _component_warnings(
    metrics: Mapping[str, float], net: str, components: int
) -> Iterator[Finding]:
    heaviest, dead = (_value(metrics, net, name) for name in ("heaviest", "dead"))
    raise_entropy = " raise --gate-entropy," if f"{net}/weight" in metrics else ""
    if components > 1 and heaviest >= COLLAPSED:
        entropy = _value(metrics, net, "gate_entropy")
        yield (
            f"{net}/collapsed",
            f"{_TITLES[net]} has collapsed: one of its {components} components has {heaviest:.1%} "
            f"of the weight (gate entropy {entropy:.2g}). If the data act in more than one way,"
            f"{raise_entropy} lower --learning-rate or try another --seed; if not, --components 1 "
            "does as well",
        )
    elif components > 1 and dead > MOST_DEAD:
        yield (
            f"{net}/dead",
            f"{_TITLES[net]} hardly uses {round(dead * components)} of its {components} "
            f"components:{raise_entropy} lower --components or try another --seed",
        )


def _spread_warnings(metrics: Mapping[str, float], net: str) -> Iterator[Finding]:
    floor, ceiling = (_value(metrics, net, f"log_std_at_{end}") for end in ("floor", "ceiling"))
    if floor > MOST_AT_BOUND:
        yield (
            f"{net}/floor",
            f"{floor:.0%} of the log-stds of {_TITLES[net]} are at their floor. Actions that "
            "saturate at a bound or repeat do this (see `gemrl data inspect`), and then "
            "--log-std-min decides how sharp support is; for other data lower it",
        )
    if ceiling > MOST_AT_BOUND:
        yield (
            f"{net}/ceiling",
            f"{ceiling:.0%} of the log-stds of {_TITLES[net]} are at their ceiling: it spreads "
            "over all actions and tells little about any. Use more --components or raise "
            "--log-std-max, and see `gemrl data inspect`",
        )


def _fit_warnings(metrics: Mapping[str, float], net: str) -> Iterator[Finding]:
    held_out = metrics.get(f"held_out/{net}_nll")
    training = metrics.get(f"training/{net}_nll", metrics.get(f"{net}/nll"))
    if held_out is not None and training is not None and held_out - training > OVERFIT_NATS:
        steps = "--pretrain-steps" if net == "behavior" else "--steps"
        yield (
            f"{net}/overfit",
            f"{_TITLES[net]} overfits: held-out actions are {held_out - training:.2g} nats less "
            f"likely than those it trains on. Use fewer {steps}, smaller --hidden or more data",
        )


def _weight_warnings(metrics: Mapping[str, float]) -> Iterator[Finding]:
    clipped = metrics.get("actor/weight_clipped", 0.0)
    if clipped > OFTEN_CLIPPED:
        yield (
            "actor/weights",
            f"{clipped:.0%} of the advantage weights are at their cap, where better actions count "
            "no more than good ones: lower --beta, or raise --weight-cap",
        )


def _critic_warnings(metrics: Mapping[str, float]) -> Iterator[Finding]:
    apart = _value(metrics, "critic", "std")
    spread = _value(metrics, "critic", "spread", missing=math.inf)
    if apart > DISAGREEMENT * spread:
        yield (
            "critic/disagreement",
            f"the critics differ by {apart:.3g} about one action, and the values of different rows "
            f"by {spread:.3g}: pessimism will drown value. Lower --learning-rate or --discount, "
            "and look at the rewards with `gemrl data inspect`",
        )


class Watch:
    """Tells a finding when it appears, and again only after it was gone for some looks."""

    def __init__(self) -> None:
        # Looks since a finding was last there, of those that are not news.
        self._calm: dict[str, int] = {}

    def new(self, found: Iterable[Finding]) -> list[str]:
        """The sentences among those of one look that are news."""
        now = dict(found)
        news = [sentence for topic, sentence in now.items() if topic not in self._calm]
        calmer = {topic: looks + 1 for topic, looks in self._calm.items()}
        kept = {topic: looks for topic, looks in calmer.items() if looks < CALM_LOOKS}
        self._calm = kept | dict.fromkeys(now, 0)
        return news
