"""What a trained policy knows about its own fit, kept in the bundle's manifest."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import numpy as np

from gemrl.data.dataset import Dataset
from gemrl.learn.spec import Spec, scale
from gemrl.maths.audits import nll_gap
from gemrl.methods.networks import MixtureNet
from gemrl.methods.protocol import Models

ROWS = 20_000
QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95)


def calibrate(models: Models, spec: Spec, parts: Mapping[str, Dataset]) -> dict[str, Any]:
    """Likelihoods of the mixtures on `training` and `held_out` rows, in environment units."""
    nets = {"actor": models.actor, "behavior": models.behavior}
    return {
        net_name: {part: likelihood_summary(net, spec, rows) for part, rows in parts.items()}
        for net_name, net in nets.items()
        if isinstance(net, MixtureNet)
    }


def likelihood_summary(net: MixtureNet, spec: Spec, data: Dataset) -> dict[str, Any]:
    """NLL and NLL gap (mean and median) and quantiles of log density over at most `ROWS` rows."""
    rows = np.linspace(0, len(data) - 1, min(len(data), ROWS)).astype(int)
    batch = scale(data.select(rows), spec)
    nll, gap = (np.asarray(x, np.float64) for x in _nll_gap(net, batch.obs, batch.action))
    # From actions in [-1, 1] to the environment's units.
    nll = nll + float(np.log(spec.action_half.astype(np.float64)).sum())
    return {
        "rows": len(rows),
        "nll": float(nll.mean()),
        "gap": float(gap.mean()),
        "gap_median": float(np.median(gap)),
        "log_density_quantiles": {str(q): float(np.quantile(-nll, q)) for q in QUANTILES},
        "lowest_log_std": float(np.asarray(net.log_std).min()),
    }


@eqx.filter_jit
def _nll_gap(net: MixtureNet, obs: Any, action: Any) -> Any:
    return nll_gap(net(obs), action)
