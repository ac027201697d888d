"""Where a penalised policy comes to rest: the fixed point of the alignment objective.

With rewards of 0 or 1 and advantages normalised within a group of G, the success ``p`` of a policy
that is held to a reference by a KL penalty of weight ``beta`` solves

    E sqrt((K / G) (1 - K / G)) = beta (p - p_ref),      K ~ Binomial(G, p)

(arXiv 2502.18548): ``p (1 - p) = beta (p - p_ref)`` for G = 2, and
``p = p_ref + sqrt(p (1 - p)) / beta`` as G grows.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from scipy.special import gammaln

from bayes_grpo.statespace import Scalar

MANY = 256
"""Group size from which on the limit of large groups is taken: the fixed point is off by less than
1 / G, the force by a few times that where the success is within 1 / G of 0 or 1."""

HALVINGS = 60


def group_force(success: Scalar, group_size: int) -> Array:
    """Expected standard deviation of the rewards within a group: what pushes the success up.

    Parameters
    ----------
    success
        Probability of a reward of 1, in (0, 1).
    group_size
        G, at least 2.

    Returns
    -------
    Array
        Of the shape of ``success``; ``sqrt(p (1 - p))`` from `MANY` on.
    """
    p = jnp.asarray(success)[..., None]
    if group_size >= MANY:
        return jnp.sqrt(p * (1 - p))[..., 0]
    k = np.arange(1, group_size)
    ways = gammaln(group_size + 1) - gammaln(k + 1) - gammaln(group_size - k + 1)
    spread = 0.5 * np.log(k / group_size * (1 - k / group_size))
    return jnp.exp(ways + spread + k * jnp.log(p) + (group_size - k) * jnp.log1p(-p)).sum(axis=-1)


def aligned_success(reference: Scalar, kl_weight: Scalar, group_size: int) -> Array:
    """Success at which the push of the rewards and the pull of the reference balance.

    Parameters
    ----------
    reference
        Success of the reference policy, in (0, 1).
    kl_weight
        Weight of the penalty, > 0.
    group_size
        G, at least 2.

    Returns
    -------
    Array
        A scalar in [reference, 1); differentiable in both numbers.
    """

    def excess(p: Scalar, reference: Scalar, kl_weight: Scalar) -> Array:
        return group_force(p, group_size) - kl_weight * (p - reference)

    still = (lax.stop_gradient(jnp.asarray(reference)), lax.stop_gradient(jnp.asarray(kl_weight)))

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        rising = excess(middle, *still) > 0
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    low, high = lax.fori_loop(0, HALVINGS, halve, (still[0], jnp.ones_like(still[0])))
    root = jnp.clip(0.5 * (low + high), 1e-9, 1 - 1e-9)
    # One step of Newton's method at the root: it stays there and gets its derivatives (the implicit
    # function theorem), which halving does not have.
    step = 1e-6 * jnp.minimum(root, 1 - root)
    slope = (excess(root + step, *still) - excess(root - step, *still)) / (2 * step)
    return root - excess(root, reference, kl_weight) / lax.stop_gradient(slope)
