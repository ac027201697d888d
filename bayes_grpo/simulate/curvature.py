"""Curvatures of the small policy, measured without fitting a curve: from the exact drift.

On-policy, the exact drift is the gradient of a potential (std-normalised: the mean of ``2 arcsin
sqrt(rho)`` less the KL penalty), so its Jacobian is symmetric. A network has many curvatures where
the theory has one K: `reward_spectrum` says how the reward is made of them, `top_curvature` is the
largest. All functions want double precision (`bayes_grpo.precision.float64`).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayes_grpo.simulate.design import Design
from bayes_grpo.simulate.grpo import Loss, gradient
from bayes_grpo.simulate.network import Reference, expected_reward, log_policy
from bayes_grpo.simulate.task import Task
from bayes_grpo.simulate.training import exact_batch


class Problem(NamedTuple):
    """A training problem whose exact drift is looked at.

    Parameters
    ----------
    task, reference
        What is trained, from where.
    kl_weight
        beta.
    loss
        The surrogate.
    group_size
        G, or None for infinite groups.
    """

    task: Task
    reference: Reference
    kl_weight: float
    loss: Loss = Loss()
    group_size: int | None = None

    @property
    def design(self) -> Design:
        """Design of exact updates."""
        return Design(group_size=self.group_size, loss=self.loss, exact=True)


def drift(
    problem: Problem, parameters: jax.Array, sampler: jax.Array, kl_weight: jax.Array | float
) -> jax.Array:
    """Exact mean gradient, with what is stale evaluated at the sampler.

    Parameters
    ----------
    problem
        The problem.
    parameters, sampler
        Shape (parameters,).
    kl_weight
        beta.

    Returns
    -------
    jax.Array
        Shape (parameters,): direction of ascent.
    """
    task, reference = problem.task, problem.reference
    chosen, batch, _ = exact_batch(problem.design, task, reference, sampler)
    policy = partial(log_policy, reference.network, prompts=task.prompts[chosen])
    return gradient(policy, parameters, batch, kl_weight, problem.loss)[0]


def on_policy_drift(problem: Problem, parameters: jax.Array) -> jax.Array:
    """Exact mean gradient with a sampler that is up to date; shape (parameters,)."""
    return drift(problem, parameters, parameters, problem.kl_weight)


class Jacobians(NamedTuple):
    """Minus the Jacobian of the drift as linear maps, by forward-mode differentiation.

    Parameters
    ----------
    whole
        On-policy: sum of the two others.
    stale
        With respect to the sampler.
    fresh
        With respect to the current parameters.
    """

    whole: Callable[[jax.Array], jax.Array]
    stale: Callable[[jax.Array], jax.Array]
    fresh: Callable[[jax.Array], jax.Array]


def jacobians(problem: Problem, parameters: jax.Array) -> Jacobians:
    """Linearise the drift.

    Parameters
    ----------
    problem
        The problem.
    parameters
        Shape (parameters,): where.

    Returns
    -------
    Jacobians
    """
    beta = problem.kl_weight

    def product(drift_of: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        return jax.jit(lambda v: -jax.jvp(drift_of, (parameters,), (v,))[1])

    return Jacobians(
        whole=product(lambda p: drift(problem, p, p, beta)),
        stale=product(lambda p: drift(problem, parameters, p, beta)),
        fresh=product(lambda p: drift(problem, p, parameters, beta)),
    )


class Spectrum(NamedTuple):
    """Curvatures seen from one direction u, with unit weight in all.

    Parameters
    ----------
    curvature
        Shape (n,), rising.
    weight
        Shape (n,): squared components of u, so that ``u f(J) u = sum weight f(curvature)``.
    top
        Shape (parameters,): unit vector of the largest curvature.
    """

    curvature: np.ndarray
    weight: np.ndarray
    top: np.ndarray


def lanczos(
    product: Callable[[jax.Array], jax.Array], start: jax.Array, steps: int = 120
) -> Spectrum:
    """Lanczos iteration, orthogonalised in full, for a symmetric map.

    Parameters
    ----------
    product
        The map.
    start
        Shape (parameters,): the direction u.
    steps
        Dimension of the Krylov space.

    Returns
    -------
    Spectrum
    """
    basis = np.zeros((steps, start.size))
    diagonal, beside = np.zeros(steps), np.zeros(steps)
    vector, count = np.asarray(start, dtype=float), steps
    vector = vector / np.linalg.norm(vector)
    for k in range(steps):
        basis[k] = vector
        image = np.asarray(product(jnp.asarray(vector)), dtype=float)
        diagonal[k] = vector @ image
        for _ in range(2):  # once is not enough in floating point
            image = image - basis[: k + 1].T @ (basis[: k + 1] @ image)
        beside[k] = np.linalg.norm(image)
        if beside[k] < 1e-10 * max(1.0, abs(diagonal[0])):
            count = k + 1
            break
        vector = image / beside[k]
    tridiagonal = np.diag(diagonal[:count])
    tridiagonal += np.diag(beside[: count - 1], 1) + np.diag(beside[: count - 1], -1)
    values, vectors = np.linalg.eigh(tridiagonal)
    return Spectrum(values, vectors[0] ** 2, vectors[:, -1] @ basis[:count])


def top_curvature(
    problem: Problem, parameters: jax.Array, steps: int = 80
) -> tuple[float, np.ndarray]:
    """Largest curvature and its direction.

    Parameters
    ----------
    problem, parameters
        Where.
    steps
        Lanczos steps from a random direction.

    Returns
    -------
    curvature : float
    direction : numpy.ndarray
        Shape (parameters,), of unit length.
    """
    start = jax.random.normal(jax.random.key(0), parameters.shape, parameters.dtype)
    spectrum = lanczos(jacobians(problem, parameters).whole, start, steps)
    return float(spectrum.curvature[-1]), spectrum.top


def reward_gradient(problem: Problem, parameters: jax.Array) -> jax.Array:
    """Gradient of the expected reward over the training prompts; shape (parameters,)."""
    reward = partial(expected_reward, problem.reference, problem.task)
    return jax.grad(lambda p: reward(p, problem.task.trained))(parameters)


def reward_spectrum(problem: Problem, parameters: jax.Array, steps: int = 120) -> Spectrum:
    """How the reward is made of modes: the spectrum seen from its gradient.

    The mean curvature is the rate at which the reward returns at first after a kick along its
    gradient; modes of small curvature hold it up later.

    Parameters
    ----------
    problem, parameters
        Where.
    steps
        Lanczos steps.

    Returns
    -------
    Spectrum
    """
    start = reward_gradient(problem, parameters)
    return lanczos(jacobians(problem, parameters).whole, start, steps)


def response_curvature(
    problem: Problem,
    parameters: jax.Array,
    *,
    change: float = -0.02,
    time: float = 2000.0,
    learning_rate: float = 0.5,
    momentum: float = 0.9,
) -> float:
    """K from the response of the reward to a small perturbation of the objective.

    The KL weight is changed by a small fraction (the std-normalised reward force knows no scale),
    and exact on-policy training goes on: K is the initial velocity of the reward over its shift,
    ``R(t) = shift (1 - exp(-K t))``, both against training that goes on unperturbed.

    Parameters
    ----------
    problem, parameters
        Where; best at rest.
    change
        Relative change of the KL weight.
    time
        How long, in learning rate times updates.
    learning_rate, momentum
        Of the exact updates (``ema``).

    Returns
    -------
    float
        Per unit learning rate.
    """
    task, reference = problem.task, problem.reference
    weights = problem.kl_weight * jnp.array([1.0, 1.0 + change])

    def reward(p: jax.Array) -> jax.Array:
        return expected_reward(reference, task, p, task.trained)

    @jax.jit
    def follow(kl_weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(
            carry: tuple[jax.Array, jax.Array], _: None
        ) -> tuple[tuple[jax.Array, jax.Array], None]:
            p, v = carry
            v = momentum * v + (1 - momentum) * drift(problem, p, p, kl_weight)
            return (p + learning_rate * v, v), None

        start = (parameters, jnp.zeros_like(parameters))
        (end, _), _ = jax.lax.scan(step, start, length=round(time / learning_rate))
        force = drift(problem, parameters, parameters, kl_weight)
        return reward(end), jax.jvp(reward, (parameters,), (force,))[1]

    ends, velocities = jax.vmap(follow)(weights)
    return float((velocities[1] - velocities[0]) / (ends[1] - ends[0]))
