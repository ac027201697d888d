"""The table of a posterior: one row a quantity that users ask for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo.convergence import effective_draws, r_hat
from bayes_grpo.forecasting import check_quantiles
from bayes_grpo.results import SUMMARY


def summarise(posterior: Any, quantiles: Sequence[float]) -> pd.DataFrame:
    """Summarise the quantities of `bayes_grpo.results.SUMMARY` that a posterior has.

    Parameters
    ----------
    posterior
        Group of a data tree, variables of dimensions (chain, draw).
    quantiles
        Of the posterior, each in [0, 1].

    Returns
    -------
    pandas.DataFrame
        One row a quantity, columns mean, sd, the quantiles (``5%`` ...), ess, r_hat, unit.
    """
    check_quantiles(quantiles, "summary")
    rows = {}
    for name, unit in SUMMARY.items():
        if name not in posterior:
            continue
        values = posterior[name].to_numpy()
        rows[name] = {
            "mean": values.mean(),
            "sd": values.std(),
            **{f"{100 * q:g}%": np.quantile(values, q) for q in quantiles},
            "ess": effective_draws(values),
            "r_hat": r_hat(values),
            "unit": unit,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = "quantity"
    return table
