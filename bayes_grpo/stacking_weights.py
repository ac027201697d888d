"""Weights of a mixture of models, from what each predicted: Bayesian stacking."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from numpyro import distributions as dist

from bayes_grpo.precision import float64
from bayes_grpo.timeline import bucket

DRAWS = 1000


def stacking_weights(log_density: np.ndarray, seed: int = 0) -> np.ndarray:
    """Posterior mean of the weights of a mixture under a uniform prior.

    Stacking (Yao et al. 2018) takes the weights that maximise the score of the mixture's
    predictions.  Where models predict alike that maximum lies at some corner, by chance; the mean
    over all weights in proportion to what they make of the data gives such models equal shares.

    Parameters
    ----------
    log_density
        Log predictive density of each row by each model, shape (rows, models).
    seed
        Of the sampler.

    Returns
    -------
    ndarray
        Weights that sum to 1, shape (models,).
    """
    rows, models = log_density.shape
    if models == 1:
        return np.ones(1)
    # A term that is the same for all models says nothing; it is taken out against overflow.
    relative = log_density - log_density.max(axis=1, keepdims=True)
    padded = np.zeros((bucket(rows), models))
    padded[:rows] = relative
    with float64():
        sampler = _sampler(models, len(padded))
        sampler.run(jax.random.key(seed), jnp.asarray(padded))
        weights = np.asarray(sampler.get_samples()["weights"]).mean(axis=0)
    return np.asarray(weights / weights.sum())


def _mixture(log_density: Array) -> None:
    """Uniform prior, and the density of all rows under the mixture; a padded row gives 0."""
    models = log_density.shape[1]
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(models)))
    terms = jax.nn.logsumexp(log_density + jnp.log(weights), axis=1)
    numpyro.factor("density", terms.sum())


@lru_cache(maxsize=32)
def _sampler(models: int, rows: int) -> Any:
    """NUTS over the weights, kept so that it is compiled once for each shape."""
    del models, rows
    kernel = numpyro.infer.NUTS(_mixture)
    return numpyro.infer.MCMC(
        kernel,
        num_warmup=300,
        num_samples=DRAWS,
        progress_bar=False,
        jit_model_args=True,
    )
