"""Where a bandit settles and how stiffly: plateau and curvature in closed form.

The mean force on the logits is a gradient,

    force = ∇p gain(p) - kl_weight ∇KL(π‖π_ref)

with ``gain = 1`` for mean-only advantages and ``1 / sqrt(p (1 - p))`` for std-normalised ones;
groups of ``G`` rollouts change it to ``(G - 1) / G`` and ``E sqrt(f (1 - f)) / (p (1 - p))``, ``f ~
Bin(G, p) / G`` (the identity of arXiv 2607.00152).

*Fixed point.*  It is the exponential tilt ``π_a ∝ π_ref(a) exp(s success_a)`` with ``kl_weight s
= gain(p(s))``, one equation in ``s``.  Mean-only, infinite groups: ``s = 1 / kl_weight``.
Std-normalised with two arms rewarded 1 and 0 this is ``logit p* = logit p_ref + 1 / (kl_weight
sqrt(p* q*))``; it has no solution at small KL weights (from ``p_ref = 1/2``: below 1.51), since
``s sqrt(p q)`` is bounded: the reward then goes to 1, algebraically.  Of two solutions the lower
one is stable and reached from the reference.

*Curvature.*  With ``H`` the Hessian of the objective, a small deviation of the logits obeys ``v =
momentum v + learning_rate H δ``; the eigenvalues of ``-H``, which is symmetric, are the
stiffnesses of its modes.  A rate is the same in every smooth coordinate, so the reward near its
plateau relaxes with the curvature ``K`` of the softest mode that moves it.  With two arms
rewarded 1 and 0:

    std-normalised:  K = 2 [kl_weight p q - sqrt(p q) (2 p - 1) / 2]
    mean-only:       K = 2 kl_weight p q

The 2 is the softmax with one logit an arm: both move, so that the log-odds move twice as fast as a
policy ``p = σ(z)`` with one logit would.

*Staleness.*  ``-H`` is split into what is evaluated at the sampler and what at the current
policy: of the first alone the lag makes a delayed force.  The whole is stale with ``ratio =
"none"``, ``stale_force = "all"``.  With ``stale_force = "reward"`` the KL term is current.  With
importance ratios only the standard deviation of std-normalised advantages is stale, and nothing
of mean-only ones.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln, xlog1py, xlogy

from bayes_grpo.errors import InputError
from bayes_grpo.precision import float64
from bayes_grpo.simulate.bandit import Bandit

_TILTS = np.concatenate([[0.0], np.geomspace(1e-6, 700.0, 6000)])
"""Where the equation of the fixed point is looked at for its first change of sign."""

_MOVES_REWARD = 1e-9
"""Share of the reward's gradient, squared, from which on a mode counts as moving the reward."""


class FixedPoint(NamedTuple):
    """Where a bandit settles, and how it gets there.

    Parameters
    ----------
    plateau
        Expected reward.
    policy
        Probabilities of the arms, shape (arms,).
    curvature
        Stiffness ``K`` of the softest mode that moves the reward, per unit learning rate.
    stale_curvature
        The part of it that the sampler's policy, not the current one, exerts.
    modes
        Stiffness of every mode, rising, shape (arms - 1,); the stiffest one decides on divergence.
    """

    plateau: float
    policy: np.ndarray
    curvature: float
    stale_curvature: float
    modes: np.ndarray


def reward_gain(p: Any, normalisation: str, group_size: int | None) -> Any:
    """Mean force on the logits over the gradient of the expected reward.

    Parameters
    ----------
    p
        Expected reward, in (0, 1), any shape.
    normalisation
        ``"std"`` or ``"mean"``.
    group_size
        Rollouts of a group; None: infinitely many.

    Returns
    -------
    Any
        Same shape.  Over its value for infinite groups: how much slower a small group learns.
    """
    p = jnp.asarray(p)
    if group_size is None:
        return 1 / jnp.sqrt(p * (1 - p)) if normalisation == "std" else jnp.ones_like(p)
    if normalisation == "mean":
        return jnp.full_like(p, (group_size - 1) / group_size)
    solved = jnp.arange(1, group_size).astype(p.dtype)
    log_ways = gammaln(group_size + 1.0) - gammaln(solved + 1) - gammaln(group_size - solved + 1)
    at = p[..., None]
    chance = jnp.exp(log_ways + xlogy(solved, at) + xlog1py(group_size - solved, -at))
    fraction = solved / group_size
    return (chance * jnp.sqrt(fraction * (1 - fraction))).sum(axis=-1) / (p * (1 - p))


_gains = jax.jit(
    lambda normalisation, group_size, p: reward_gain(p, normalisation, group_size),
    static_argnums=(0, 1),
)


def curvature(bandit: Bandit) -> FixedPoint:
    """Plateau and curvature of a bandit that is trained with SGD.

    Parameters
    ----------
    bandit
        A single bandit.  With a finite ``group_size`` the mean force is that of its groups, exactly
        so on-policy or with ``ratio = "none"``.

    Returns
    -------
    FixedPoint

    Raises
    ------
    InputError
        If the bandit is a batch, is trained with Adam (whose step does not shrink with the force,
        so that the dynamics about the fixed point are not linear), has arms that all pay the
        same, or has no stable interior fixed point.
    """
    if bandit.shape:
        raise InputError(f"a batch of shape {bandit.shape}: curvature takes one bandit at a time")
    if bandit.optimizer == "adam":
        raise InputError(
            "bandit optimizer is 'adam': its step does not shrink with the force, so that there is "
            "no curvature; expected 'sgd'"
        )
    numbers = {name: values[0] for name, values in bandit.arrays().items()}
    success, reference = numbers["success"], numbers["reference"]
    if np.ptp(success) == 0:
        raise InputError("bandit success is the same for all arms: nothing can be learned")
    with float64():
        logits = _fixed_point(bandit, success, reference, float(numbers["kl_weight"]))
        return _linearised(bandit, success, reference, float(numbers["kl_weight"]), logits)


def _fixed_point(
    bandit: Bandit, success: np.ndarray, reference: np.ndarray, kl_weight: float
) -> np.ndarray:
    def excess(tilt: np.ndarray) -> np.ndarray:
        """Pull of the reference over push of the reward, minus one: rises through 0."""
        logits = reference + tilt[:, None] * success
        policy = np.exp(logits - logits.max(axis=1, keepdims=True))
        p = policy @ success / policy.sum(axis=1)
        gain = _gains(bandit.normalisation, bandit.group_size, p)
        return kl_weight * tilt / np.asarray(gain) - 1

    found = excess(_TILTS)
    above = np.flatnonzero(found > 0)
    if above.size == 0:
        raise InputError(
            f"bandit kl_weight is {kl_weight:g}: too small for an interior fixed point, the reward "
            f"goes to {success.max():g}; raise kl_weight"
        )
    low, high = _TILTS[above[0] - 1], _TILTS[above[0]]
    # Every round looks at as many points as the first, so that one program does for all.
    for _ in range(5):
        closer = np.linspace(low, high, len(_TILTS))
        # The last one is above already, whatever rounding makes of it now.
        first = int(np.argmax(np.append(excess(closer)[:-1] > 0, True)))
        low, high = closer[max(first - 1, 0)], closer[first]
    return reference + (low + high) / 2 * success


@partial(jax.jit, static_argnums=(0, 1))
def _stiffness(
    normalisation: str,
    group_size: int | None,
    success: Array,
    reference: Array,
    kl_weight: Array,
    theta: Array,
) -> tuple[Array, Array, Array, Array, Array]:
    """Expected reward, its gradient, and the three parts of the stiffness ``-H``.

    They are what the changing gain does, the curvature of the reward itself, and that of the KL
    term.
    """
    log_reference = jax.nn.log_softmax(reference)

    def reward(theta: Array) -> Array:
        return (jax.nn.softmax(theta) * success).sum()

    def divergence(theta: Array) -> Array:
        log_policy = jax.nn.log_softmax(theta)
        return (jnp.exp(log_policy) * (log_policy - log_reference)).sum()

    def gain(p: Array) -> Array:
        return reward_gain(p, normalisation, group_size)

    p, slope = reward(theta), jax.grad(reward)(theta)
    by_gain = -jax.grad(gain)(p) * jnp.outer(slope, slope)
    by_reward = -gain(p) * jax.hessian(reward)(theta)
    return p, slope, by_gain, by_reward, kl_weight * jax.hessian(divergence)(theta)


def _linearised(
    bandit: Bandit,
    success: np.ndarray,
    reference: np.ndarray,
    kl_weight: float,
    logits: np.ndarray,
) -> FixedPoint:
    p, slope, by_gain, by_reward, by_kl = map(
        np.asarray,
        _stiffness(bandit.normalisation, bandit.group_size, success, reference, kl_weight, logits),
    )
    stale = by_gain
    if bandit.ratio == "none":
        stale = stale + by_reward
    if bandit.stale_force == "all":
        stale = stale + by_kl
    # The logits' common level moves nothing: modes are those of the logits that add to 0.
    centred, _ = np.linalg.qr(np.eye(bandit.arms)[:, 1:] - 1 / bandit.arms)
    inside = lambda matrix: centred.T @ matrix @ centred  # noqa: E731
    modes, vectors = np.linalg.eigh(inside(by_gain + by_reward + by_kl))
    if not modes[0] > 0:
        raise InputError(
            f"bandit kl_weight is {kl_weight:g}: its fixed point at reward {float(p):.4g} is not "
            "stable; raise kl_weight"
        )
    along = (slope @ centred @ vectors) ** 2 / float(slope @ slope)
    softest = int(np.flatnonzero(along > _MOVES_REWARD)[0])
    vector = vectors[:, softest]
    return FixedPoint(
        float(p),
        np.asarray(jax.nn.softmax(logits)),
        float(modes[softest]),
        float(vector @ inside(stale) @ vector),
        modes,
    )
