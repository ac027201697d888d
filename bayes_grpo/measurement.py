"""How a logged reward differs from the expected reward of the policy: sampling noise of a row.

``white``
    Independent Gaussian noise; ``sampling_sd`` is the standard deviation of a row that averages one
    rollout batch, and a row of n batches has variance ``sampling_sd**2 / n``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bayes_grpo.statespace import Params, Scalar, Ticks


@dataclass(frozen=True)
class Measurement:
    """Sampling noise of a logged row.

    Parameters
    ----------
    name
        Name in model files.
    parameters
        Parameters that need a prior.
    variance
        ``variance(params, tick)`` of the row that ends with the tick, in reward squared.
    """

    name: str
    parameters: tuple[str, ...]
    variance: Callable[[Params, Ticks], Scalar]


def _white(params: Params, tick: Ticks) -> Scalar:
    return params["sampling_sd"] ** 2 * tick.row_variance


MEASUREMENTS: Mapping[str, Measurement] = {"white": Measurement("white", ("sampling_sd",), _white)}
"""Kinds of sampling noise by their names in model files."""
