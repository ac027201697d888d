"""Where does staleness make GRPO unstable, and does an independently measured curvature tell?

    nice python benchmarks/policy_threshold.py

The small neural policy of bayes_grpo.simulate, for five tasks and references. No curve is fitted:

1.  Curvatures. Exact on-policy training (every answer of every training prompt summed, infinite
    groups) to near rest; then, from the exact drift: the largest curvature of its Jacobian
    (Lanczos), at the start and at rest; the mean curvature seen by the reward (Rayleigh quotient
    along its gradient); the K that the reward shows after a small change of the KL weight; and the
    rate 1 / t63 at which the reward covers 63 % of its rise. Five candidates for the one K.
2.  Local thresholds. A small displacement from rest along the top mode, exact drift: the learning
    rate at which it grows instead of shrinking, and at which it overshoots by 1 %, by bisection,
    for each momentum and refresh interval (and for a constant lag).
3.  Training thresholds. From the reference, exact drift and sampled (G = 8): the learning rate at
    which the expected reward falls by 0.1 from its running maximum, and (exact drift) by 0.005.
4.  Which surrogates are concerned: the same with importance ratios, clipping, a fresh KL penalty.

Predictions: leading order, eta K K_ref = 1 (the ema convention), and exact, from the eigenvalues of
the block map. Overshoot is predicted by the scalar recursion under the criterion of the measurement.

Written to benchmarks/results: policy_threshold.csv, .md, .png. Results so far are kept in a partial
file; --resume goes on with them. About 25 minutes on two cores.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from reporting import RESULTS, circumstances, table, write_csv, write_text
from resumable import Partial, Progress

from bayes_grpo.precision import float64
from bayes_grpo.simulate.curvature import (
    Problem,
    response_curvature,
    reward_spectrum,
    top_curvature,
)
from bayes_grpo.simulate.grpo import Loss
from bayes_grpo.simulate.network import expected_reward, pretrain
from bayes_grpo.simulate.task import arithmetic_task
from bayes_grpo.simulate.training import Design, Hyper, initial_state, train

KL_WEIGHT = 0.8
TASKS = (0, 1, 2, 3, 4)
MOMENTA = (0.0, 0.5, 0.9)
INTERVALS = (1, 2, 4, 8, 16, 32)
REST = 2000
"""Updates of exact training (learning rate 1, momentum 0.9) taken for rest."""

LOCAL_UPDATES, TRAINING_UPDATES = 480, 640
DISPLACEMENT, OVERSHOOT = 0.01, 0.01
COLLAPSE, WAVE = 0.1, 0.005
HALVINGS = 8
RANGE = 6.0
"""Bisection looks from prediction / RANGE to prediction * RANGE."""

SEEDS = 5
VARIANTS = {
    "none, KL stale": Loss(),
    "none, KL fresh": Loss(stale_force="reward"),
    "clipped, KL fresh": Loss(ratio="clipped", stale_force="reward"),
    "unclipped, KL fresh": Loss(ratio="unclipped", stale_force="reward"),
    "unclipped, KL fresh, mean": Loss(
        ratio="unclipped", stale_force="reward", normalisation="mean"
    ),
}


# Predictions of the theory, in Lambda = eta K K_ref (ema).


def block_radius(staleness: float, momentum: float, interval: int, lag: str) -> float:
    """Spectral radius of the linear map; above 1 the mean diverges."""
    a = (1 - momentum) * staleness / interval
    if lag == "constant":
        # The sampler is K_ref updates behind: z^(K_ref - 1) (z - 1) (z - mu) + a = 0.
        polynomial = np.zeros(interval + 2)
        polynomial[:3] = 1, -(1 + momentum), momentum
        polynomial[-1] += a
        return float(np.abs(np.roots(polynomial)).max())
    b = momentum * _geometric(momentum, interval)
    c = _geometric(momentum, interval)
    d = (interval - b) / (1 - momentum)
    block = np.array([[1 - a * d, b], [-a * c, momentum**interval]])
    return float(np.abs(np.linalg.eigvals(block)).max())


def _geometric(momentum: float, interval: int) -> float:
    return (1 - momentum**interval) / (1 - momentum)


def divergence_staleness(momentum: float, interval: int, lag: str = "hold") -> float:
    """Lambda at which the mean diverges, exactly."""
    grid = np.geomspace(0.05, 100, 2000)
    above = [block_radius(x, momentum, interval, lag) > 1 + 1e-9 for x in grid]
    at = int(np.argmax(above))
    return _bisect(
        lambda x: block_radius(x, momentum, interval, lag) > 1 + 1e-9, grid[at - 1], grid[at]
    )


def overshoot_staleness(momentum: float, interval: int, updates: int) -> float:
    """Lambda at which the scalar recursion, released at 1, passes -OVERSHOOT at a refresh."""

    def passes(staleness: float) -> bool:
        a = (1 - momentum) * staleness / interval
        x, v, held = 1.0, 0.0, 1.0
        for t in range(updates):
            if t % interval == 0:
                held = x
                if x < -OVERSHOOT:
                    return True
            v = momentum * v - a * held
            x += v
        return False

    return _bisect(passes, 1e-3, 5.0)


def _bisect(test: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(40):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if test(middle) else (middle, high)
    return float(np.sqrt(low * high))


# Measurements.


def bisect_rates(
    exceeds: Callable[[np.ndarray], np.ndarray], guess: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Learning rates above which a criterion holds, many at once; and whether they were in range."""
    low, high = guess / RANGE, guess * RANGE
    inside = ~exceeds(low) & exceeds(high)
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        over = exceeds(middle)
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return np.sqrt(low * high), inside


@partial(jax.jit, static_argnums=(0, 2))
def _displaced(design: Design, task: Any, network: Any, arrays: Any, rest: Any, u: Any, hyper: Any):
    """Displacement along u after every update, in units of the first, for many runs."""
    from bayes_grpo.simulate.network import Reference
    from bayes_grpo.simulate.training import update

    reference = Reference(network, *arrays)

    def one(h: Hyper) -> jax.Array:
        def step(state, _):
            after, _ = update(design, task, reference, h, state)
            return after, jnp.vdot(after.parameters - rest, u) / DISPLACEMENT

        begin = initial_state(design, rest + DISPLACEMENT * u)
        return jax.lax.scan(step, begin, length=LOCAL_UPDATES)[1]

    return jax.vmap(one)(hyper)


def _hyper(rate: np.ndarray, momentum: np.ndarray, interval: np.ndarray, lag: np.ndarray, seed=0):
    n = len(rate)
    return Hyper(
        jnp.asarray(rate, float),
        jnp.asarray(momentum, float),
        jnp.full(n, KL_WEIGHT),
        jnp.asarray(interval, jnp.int32),
        jnp.asarray(lag, jnp.int32),
        jnp.broadcast_to(jnp.asarray(seed, jnp.uint32), (n,)),
    )


@partial(jax.jit, static_argnums=(0, 2))
def _rewards(design: Design, task: Any, network: Any, arrays: Any, hyper: Any) -> jax.Array:
    from bayes_grpo.simulate.network import Reference

    reference = Reference(network, *arrays)
    return jax.vmap(lambda h: train(design, task, reference, h)[0].expected_reward)(hyper)


def drawdown(rewards: np.ndarray) -> np.ndarray:
    """Largest fall from the running maximum; infinite where training left the numbers."""
    fall = (np.maximum.accumulate(rewards, axis=-1) - rewards).max(axis=-1)
    return np.where(np.isfinite(rewards).all(axis=-1), fall, np.inf)


def curvatures(problem: Problem) -> tuple[dict[str, float], jax.Array, np.ndarray]:
    """The candidates for K, the parameters at rest, and the top mode there."""
    task, reference = problem.task, problem.reference
    design = Design(group_size=None, loss=problem.loss, rows=REST, exact=True)
    run = jax.jit(lambda h: train(design, task, reference, h))
    history, state = run(Hyper(1.0, 0.9, KL_WEIGHT))
    rest = state.parameters
    rewards = np.asarray(history.expected_reward)
    begin = float(expected_reward(reference, task, reference.parameters, task.trained))
    covered = (rewards - begin) / (rewards[-1] - begin)
    t63 = float(1 + np.argmax(covered > 1 - np.exp(-1)))
    top, mode = top_curvature(problem, rest)
    spectrum = reward_spectrum(problem, rest)
    found = {
        "initial_reward": begin,
        "plateau": float(rewards[-1]),
        "grad_norm_at_rest": float(history.grad_norm[-1]),
        "K_top": top,
        "K_top_start": top_curvature(problem, reference.parameters)[0],
        "K_mean": float(spectrum.weight @ spectrum.curvature),
        "K_response": response_curvature(problem, rest, time=300.0),
        "K_rise": 1 / t63,
    }
    return found, rest, mode


def study(seed: int) -> list[dict[str, Any]]:
    """All measurements of one task."""
    rows: list[dict[str, Any]] = []

    def add(kind: str, momentum: float, interval: int, value: float, **more: Any) -> None:
        rows.append(
            {"task": seed, "kind": kind, "momentum": momentum, "refresh_interval": interval,
             "value": value, **more}
        )  # fmt: skip

    with float64():
        task = arithmetic_task(seed, modulus=11, spread=1.0)
        reference = pretrain(task, seed, accuracy=0.35, embedding=24, hidden=64)
        found, rest, mode = curvatures(Problem(task, reference, KL_WEIGHT))
        # Thresholds need no double precision: the numbers are carried over, the tasks made anew.
        rest, mode = np.asarray(rest, np.float32), np.asarray(mode, np.float32)
        log_reference = np.asarray(reference.log_probabilities, np.float32)
        start = np.asarray(reference.parameters, np.float32)
    for name, value in found.items():
        add(name, float("nan"), 0, value)
    task = arithmetic_task(seed, modulus=11, spread=1.0)
    network, arrays = reference.network, (jnp.asarray(start), jnp.asarray(log_reference))
    top, top_start = found["K_top"], found["K_top_start"]

    pairs = [(m, k) for m in MOMENTA for k in INTERVALS]
    momentum, interval = (np.array(x) for x in zip(*pairs, strict=True))
    for lag in ("hold", "constant"):
        design = Design(
            group_size=None, exact=True, lag_pattern=lag, longest_lag=max(INTERVALS)
        )
        exact = np.array([divergence_staleness(m, k, lag) for m, k in pairs])
        steps = np.arange(1, LOCAL_UPDATES + 1)
        lags = interval if lag == "constant" else np.zeros_like(interval)

        def displaced(rate: np.ndarray, design=design, lags=lags) -> np.ndarray:
            hyper = _hyper(rate, momentum, interval, lags)
            x = _displaced(
                design, task, network, arrays, jnp.asarray(rest), jnp.asarray(mode), hyper
            )
            return np.asarray(x, dtype=float)

        def grows(rate: np.ndarray, displaced=displaced) -> np.ndarray:
            # Late against middle: the beginning may grow for a while without being unstable.
            x = np.abs(displaced(rate))
            third = LOCAL_UPDATES // 3
            late, middle = x[:, 2 * third :].max(axis=1), x[:, third : 2 * third].max(axis=1)
            return ~np.isfinite(late) | ((late > middle) & (late > 1e-2))

        def overshoots(rate: np.ndarray, displaced=displaced) -> np.ndarray:
            at_refresh = steps[None, :] % interval[:, None] == 0
            x = displaced(rate)
            return (~np.isfinite(x) | ((x < -OVERSHOOT) & at_refresh)).any(axis=1)

        rate, inside = bisect_rates(grows, exact / top / interval)
        for i, (m, k) in enumerate(pairs):
            add(f"local divergence, {lag}", m, k, rate[i], predicted=exact[i], inside=inside[i])
        if lag == "hold":
            onset = np.array([overshoot_staleness(m, k, LOCAL_UPDATES) for m, k in pairs])
            rate, inside = bisect_rates(overshoots, onset / top / interval)
            for i, (m, k) in enumerate(pairs):
                add("local overshoot, hold", m, k, rate[i], predicted=onset[i], inside=inside[i])

    # From the reference, with the exact drift.
    exact = np.array([divergence_staleness(m, k) for m, k in pairs])
    design = Design(group_size=None, exact=True, rows=TRAINING_UPDATES)
    zero = np.zeros_like(interval)
    for kind, fall in (("training collapse, exact", COLLAPSE), ("training wave, exact", WAVE)):

        def falls(rate: np.ndarray, fall=fall) -> np.ndarray:
            hyper = _hyper(rate, momentum, interval, zero)
            rewards = np.asarray(_rewards(design, task, network, arrays, hyper), float)
            return drawdown(rewards) > fall

        rate, inside = bisect_rates(falls, exact / top_start / interval)
        for i, (m, k) in enumerate(pairs):
            add(kind, m, k, rate[i], predicted=exact[i], inside=inside[i])

    # Sampled: several seeds each.
    m5, k5 = np.repeat(momentum, SEEDS), np.repeat(interval, SEEDS)
    seeds = np.tile(np.arange(SEEDS), len(pairs)) + 100 * seed
    sampled = Design(group_size=8, rows=TRAINING_UPDATES // 4, updates_per_row=4)

    def sampled_falls(rate: np.ndarray) -> np.ndarray:
        hyper = _hyper(rate, m5, k5, np.zeros_like(k5), seeds)
        return drawdown(np.asarray(_rewards(sampled, task, network, arrays, hyper))) > COLLAPSE

    rate, inside = bisect_rates(sampled_falls, np.repeat(exact, SEEDS) / top_start / k5)
    for i in range(len(rate)):
        add("training collapse, G = 8", m5[i], int(k5[i]), rate[i],
            predicted=exact[i // SEEDS], inside=inside[i])  # fmt: skip

    # Which surrogates are concerned.
    few = [(m, k) for m, k in pairs if k in (1, 8, 32) and m in (0.0, 0.9)]
    fm, fk = (np.array(x) for x in zip(*few, strict=True))
    exact = np.array([divergence_staleness(m, k) for m, k in few])
    for name, loss in VARIANTS.items():
        design = Design(group_size=None, exact=True, rows=TRAINING_UPDATES, loss=loss)

        def variant_falls(rate: np.ndarray, design=design) -> np.ndarray:
            hyper = _hyper(rate, fm, fk, np.zeros_like(fk))
            rewards = np.asarray(_rewards(design, task, network, arrays, hyper), float)
            return drawdown(rewards) > COLLAPSE

        rate, inside = bisect_rates(variant_falls, exact / top_start / fk)
        for i, (m, k) in enumerate(few):
            add(f"variant: {name}", m, k, rate[i], predicted=exact[i], inside=inside[i])
    return [{**row, "inside": bool(row.get("inside", True))} for row in rows]


def main() -> None:
    import sys
    import time
    t=time.time()
    rows=study(0)
    d=pd.DataFrame(rows)
    print(time.time()-t)
    d.to_csv("/tmp/study0.csv",index=False)
if __name__=="__main__":
    main()
