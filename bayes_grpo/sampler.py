"""NUTS for one run at a time: compiled once per kind of run, chains side by side in threads.

NumPyro's ``MCMC`` compiles anew for each run and can spread chains over CPU cores only where JAX
was told so before it started.  Here the run is an argument of the compiled functions, so runs of
one padded length share them, and chains run in threads, which share the one CPU device: JAX lets
go of the interpreter while it computes.  Sampling advances in pieces, so that progress shows and
Ctrl-C is heard.
"""

import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from threading import Event
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpyro.distributions import biject_to
from numpyro.infer.hmc import hmc
from numpyro.infer.util import constrain_fn, potential_energy

from bayes_grpo.model import Data, Program
from bayes_grpo.precision import float64

PIECE = 100
"""Iterations between two looks at the outside world."""

CANDIDATES = 64
"""Prior draws of which a chain starts at the most probable one."""


@dataclass(frozen=True)
class Sampling:
    """How NUTS runs.

    Parameters
    ----------
    chains, tune, draws
        Number of chains, and of warm-up and kept iterations of each.
    target_accept
        Acceptance probability that the step size is tuned to.
    max_tree_depth
        Largest number of doublings of a trajectory.
    """

    chains: int = 4
    tune: int = 1000
    draws: int = 1000
    target_accept: float = 0.85
    max_tree_depth: int = 8

    @classmethod
    def from_text(cls, text: str) -> "Sampling":
        """Read back what ``str`` wrote, as kept with a saved fit."""
        found = dict(re.findall(r"(\w+)=([\d.e+-]+)", text))
        known: dict[str, Any] = vars(cls())
        return cls(**{name: type(known[name])(value) for name, value in found.items()})


class Draws(NamedTuple):
    """What NUTS returns.

    Parameters
    ----------
    values
        Draws in the priors' own units by parameter, shape (chains, draws) each.
    stats
        ``diverging``, ``n_steps``, ``acceptance_rate``, ``energy``, ``step_size`` of each draw,
        shape (chains, draws) each.
    """

    values: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]


class _Machine(NamedTuple):
    start: Callable[..., Any]
    advance: Callable[..., Any]
    constrain: Callable[..., Any]


@lru_cache(maxsize=32)
def _machine(
    program: Program, sampling: Sampling, structure: Any, shapes: tuple[tuple[int, ...], ...]
) -> _Machine:
    """Compile start, piece and back-transform of NUTS for one program and length of run."""

    # Jitted, so that the many places where NUTS evaluates it trace it once.
    @jax.jit
    def energy(z: Mapping[str, Array], data: Data) -> Array:
        return potential_energy(program.numpyro_model, (data,), {}, z)

    def potential(data: Data) -> Callable[[Mapping[str, Array]], Array]:
        return lambda z: energy(z, data)

    def kernel(z: Mapping[str, Array], key: Array, data: Data) -> tuple[Any, Any]:
        init, sample = hmc(potential_fn_gen=potential, algo="NUTS")
        state = init(
            z,
            sampling.tune,
            target_accept_prob=sampling.target_accept,
            max_tree_depth=sampling.max_tree_depth,
            dense_mass=True,
            model_args=(data,),
            rng_key=key,
        )
        return state, sample

    def start(key: Array, data: Data) -> Any:
        key_candidates, key_chain = jax.random.split(key)
        z = first_point(program, energy, key_candidates, data)
        return kernel(z, key_chain, data)[0]

    def advance(state: Any, data: Data) -> tuple[Any, Any]:
        # The kernel keeps its tuning plan in a closure that only its own init fills.
        _, sample = kernel(state.z, state.rng_key, data)

        def step(state: Any, _: None) -> tuple[Any, Any]:
            state = sample(state, (data,))
            kept = {
                "diverging": state.diverging,
                "n_steps": state.num_steps,
                "acceptance_rate": state.accept_prob,
                "energy": state.energy,
                "step_size": state.adapt_state.step_size,
            }
            return state, (state.z, kept)

        return lax.scan(step, state, None, length=PIECE)

    def constrain(z: Mapping[str, Array], data: Data) -> dict[str, Array]:
        one = lambda point: constrain_fn(program.numpyro_model, (data,), {}, point)  # noqa: E731
        return jax.vmap(one)(z)

    data = jax.tree.unflatten(
        structure, [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes]
    )
    key = jax.random.key(0)
    first = jax.jit(start).trace(key, data)
    piece = jax.jit(advance).trace(first.out_info, data)
    z = piece.out_info[1][0]
    kept = jax.tree.map(lambda a: jax.ShapeDtypeStruct((sampling.draws, *a.shape[1:]), a.dtype), z)
    traced = (first, piece, jax.jit(constrain).trace(kept, data))

    def compiled(program: Any) -> Any:
        with float64():
            return program.lower().compile()

    # The compiler leaves the interpreter free: two programs are ready in the time of the longer.
    with ThreadPoolExecutor(len(traced)) as pool:
        return _Machine(*pool.map(compiled, traced))


def first_point(
    program: Program, energy: Callable[..., Array], key: Array, data: Data
) -> dict[str, Array]:
    """Most probable of some prior draws, on the unconstrained scale."""
    points = {}
    for number, name in enumerate(program.sampled):
        prior = program.model.priors[name].in_unit()
        draws = prior.sample(jax.random.fold_in(key, number), (CANDIDATES,))
        points[name] = biject_to(prior.support).inv(draws)
    energies = lax.map(lambda z: energy(z, data), points)
    best = jnp.argmin(jnp.where(jnp.isnan(energies), jnp.inf, energies))
    return {name: values[best] for name, values in points.items()}


def sample(
    program: Program,
    data: Data,
    sampling: Sampling,
    seed: int,
    report: Callable[[int], None] = lambda iterations: None,
) -> Draws:
    """Draw from the posterior of one run.

    Parameters
    ----------
    program, data
        From `bayes_grpo.model.bind`.
    sampling
        How NUTS runs.
    seed
        Seed of everything random.
    report
        Called with the number of iterations done since the last call, from any chain's thread.

    Returns
    -------
    Draws

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C stops all chains after their current piece.
    """
    stop = Event()
    with float64():
        data = jax.tree.map(lambda a: np.asarray(a, dtype=np.float64), data)
        shapes = tuple(a.shape for a in jax.tree.leaves(data))
        machine = _machine(program, sampling, jax.tree.structure(data), shapes)
        keys = jax.random.split(jax.random.key(seed), sampling.chains)

    def run_chain(chain: int) -> Any:
        with float64():
            state = machine.start(keys[chain], data)
            pieces = []
            total = sampling.tune + sampling.draws
            for done in range(0, total, PIECE):
                if stop.is_set():
                    return None
                state, piece = machine.advance(state, data)
                jax.block_until_ready(state)
                pieces.append(jax.tree.map(np.asarray, piece))
                report(min(PIECE, total - done))
            z, stats = jax.tree.map(
                lambda *parts: np.concatenate(parts)[sampling.tune : total], *pieces
            )
            return jax.tree.map(np.asarray, machine.constrain(z, data)), stats

    workers = max(1, min(sampling.chains, os.cpu_count() or 1))
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run_chain, chain) for chain in range(sampling.chains)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            stop.set()
            raise
        finally:
            if any(f.done() and f.exception() for f in futures):
                stop.set()
        results = [f.result() for f in futures]
    values, stats = jax.tree.map(lambda *chains: np.stack(chains), *results)
    return Draws({name: values[name] for name in program.sampled}, stats)
