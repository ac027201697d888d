"""Value and gradient of the marginal likelihood: how long one call takes, ours and the others'.

    python benchmarks/likelihood.py

Two problems, one observed row a tick, float64, jitted, every contender in one process and in turn:

``oscillator``
    A stochastically driven, damped harmonic oscillator (two states, stationary start) plus white
    noise; four parameters (frequency, quality, standard deviation, noise).  All contenders compute
    the same number, and the script stops if they do not.
``model``
    The whole model of ``models/oscillator.toml`` (three states: reward, velocity, plateau), as a
    fit evaluates it: padded, five sampled parameters, plateau and first reward integrated out.
    The plain filter beside it has the same three states, without padding.

``plain scan`` is the Kalman filter as one writes it: matrices, `jax.lax.scan`, `jax.grad`.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import lax
from reporting import (
    RESULTS,
    interleaved,
    median_and_min,
    table,
    versions,
    write_csv,
    write_text,
)

from bayes_grpo.model import Data, Program, bind, load_model
from bayes_grpo.precision import float64
from bayes_grpo.run import Run
from bayes_grpo.statespace import System, Ticks, log_likelihood

ROWS = (300, 1_000, 10_000)
OURS = "bayes_grpo"
PLAIN = "plain scan"

type Likelihood = Callable[[Any], Any]


def kalman(
    transition: Any, noise: Any, reading: Any, variance: Any, mean: Any, covariance: Any, rewards: Any
) -> Any:
    """Log likelihood by a plain Kalman filter; ``transition`` and ``noise`` are constant matrices."""

    def step(carry: Any, reward: Any) -> Any:
        mean, covariance = carry
        predicted = reading @ mean
        spread = reading @ covariance @ reading + variance
        gain = covariance @ reading / spread
        residual = reward - predicted
        mean = mean + gain * residual
        covariance = covariance - jnp.outer(gain, reading @ covariance)
        moved = (transition @ mean, transition @ covariance @ transition.T + noise)
        return moved, -0.5 * (jnp.log(2 * jnp.pi * spread) + residual**2 / spread)

    return lax.scan(step, (mean, covariance), rewards)[1].sum()


# --- oscillator -----------------------------------------------------------------------------------


def oscillator_matrices(theta: Any) -> tuple[Any, Any, Any, Any]:
    """Transition over one tick, noise, stationary covariance, sampling variance (quality > 1/2)."""
    omega, quality, sd, noise_sd = jnp.exp(theta)
    root = jnp.sqrt(4 * quality**2 - 1)
    angle = 0.5 * root * omega / quality
    sin, cos, decay = jnp.sin(angle), jnp.cos(angle), jnp.exp(-0.5 * omega / quality)
    transition = decay * jnp.array(
        [
            [cos + sin / root, 2 * quality * sin / (omega * root)],
            [-2 * quality * omega * sin / root, cos - sin / root],
        ]
    )
    stationary = sd**2 * jnp.diag(jnp.array([1.0, omega**2]))
    return transition, stationary - transition @ stationary @ transition.T, stationary, noise_sd**2


def oscillator_ours(rewards: Any) -> Likelihood:
    count = len(rewards)
    one, zero = jnp.ones(count), jnp.zeros(count)
    ticks = Ticks(one, zero, rewards, observed=one, share=one, keep=zero, row_variance=one)
    system = System(
        start=lambda p: ((0.0, 0.0), p["start"]),
        advance=lambda p, tick, x: (
            p["a"][0] * x[0] + p["a"][1] * x[1],
            p["a"][2] * x[0] + p["a"][3] * x[1],
        ),
        observe=lambda p, tick, x: x[0],
        noise=lambda p, tick: p["noise"],
        sampling_variance=lambda p, tick: p["variance"],
    )

    def density(theta: Any) -> Any:
        transition, noise, stationary, variance = oscillator_matrices(theta)
        first = jnp.sqrt(noise[0, 0])
        second = noise[0, 1] / first
        params = {
            "a": tuple(transition.ravel()),
            "noise": ((first, second), (0.0, jnp.sqrt(noise[1, 1] - second**2))),
            "start": (jnp.sqrt(stationary[0, 0]), jnp.sqrt(stationary[1, 1])),
            "variance": variance,
        }
        return log_likelihood(system, params, ticks, windowed=False)

    return density


def oscillator_plain(rewards: Any) -> Likelihood:
    def density(theta: Any) -> Any:
        transition, noise, stationary, variance = oscillator_matrices(theta)
        reading = jnp.array([1.0, 0.0])
        return kalman(transition, noise, reading, variance, jnp.zeros(2), stationary, rewards)

    return density


def oscillator_tinygp(rewards: Any) -> Likelihood:
    from tinygp import GaussianProcess, kernels

    times = jnp.arange(float(len(rewards)))

    def density(theta: Any) -> Any:
        omega, quality, sd, noise_sd = jnp.exp(theta)
        kernel = kernels.quasisep.SHO(omega=omega, quality=quality, sigma=sd)
        return GaussianProcess(kernel, times, diag=noise_sd**2).log_probability(rewards)

    return density


def oscillator_dynamax(rewards: Any) -> Likelihood:
    from dynamax.linear_gaussian_ssm import lgssm_filter
    from dynamax.linear_gaussian_ssm.inference import (
        ParamsLGSSM,
        ParamsLGSSMDynamics,
        ParamsLGSSMEmissions,
        ParamsLGSSMInitial,
    )

    emissions = rewards[:, None]

    def density(theta: Any) -> Any:
        transition, noise, stationary, variance = oscillator_matrices(theta)
        params = ParamsLGSSM(
            initial=ParamsLGSSMInitial(mean=jnp.zeros(2), cov=stationary),
            dynamics=ParamsLGSSMDynamics(
                weights=transition, bias=jnp.zeros(2), input_weights=jnp.zeros((2, 0)), cov=noise
            ),
            emissions=ParamsLGSSMEmissions(
                weights=jnp.array([[1.0, 0.0]]),
                bias=jnp.zeros(1),
                input_weights=jnp.zeros((1, 0)),
                cov=variance.reshape(1, 1),
            ),
        )
        return lgssm_filter(params, emissions).marginal_loglik

    return density


OSCILLATOR: Mapping[str, Callable[[Any], Likelihood]] = {
    OURS: oscillator_ours,
    PLAIN: oscillator_plain,
    "tinygp": oscillator_tinygp,
    "dynamax": oscillator_dynamax,
}


# --- whole model ----------------------------------------------------------------------------------


def model_data(rewards: Any) -> tuple[Program, Data]:
    frame = pd.DataFrame({"step": np.arange(1, len(rewards) + 1), "reward": np.asarray(rewards)})
    run = Run.from_table(frame, max_steps=2 * len(rewards), group_size=8, prompts_per_step=16)
    program, _, data = bind(load_model("oscillator"), run)
    return program, data


def model_ours(program: Program, data: Data) -> Likelihood:
    data = jax.tree.map(jnp.asarray, data)

    def density(theta: Any) -> Any:
        draws = dict(zip(program.sampled, jnp.exp(theta), strict=True))
        params = program.params(draws, data)
        return log_likelihood(program.system, params, data.ticks, windowed=program.windowed)

    return density


def model_plain(program: Program, data: Data, rewards: Any) -> Likelihood:
    root_time = float(data.ticks.root_time[-1])

    def density(theta: Any) -> Any:
        draws = dict(zip(program.sampled, jnp.exp(theta), strict=True))
        p = program.params(draws, data)
        momentum, pull = p["momentum"], p["pull"]
        transition = jnp.array(
            [[1 - pull, momentum, pull], [-pull, momentum, pull], [0.0, 0.0, 1.0]]
        )
        push = jnp.array([p["shock_sd"], p["shock_sd"], 0.0])
        drift = jnp.array([0.0, 0.0, p["drift_sd"] * root_time])
        noise = jnp.outer(push, push) + jnp.outer(drift, drift)
        mean = jnp.array([p["initial_reward"], 0.0, p["plateau"]])
        deviation = jnp.array([p["initial_reward_sd"], 0.0, p["plateau_sd"]])
        reading, variance = jnp.array([1.0, 0.0, 0.0]), p["sampling_sd"] ** 2
        return kalman(transition, noise, reading, variance, mean, jnp.diag(deviation**2), rewards)

    return density


# --- all ------------------------------------------------------------------------------------------


def draw_rewards(count: int) -> Any:
    """A noisy saturating curve, the same at every call."""
    rng = np.random.default_rng(count)
    ticks = np.arange(count)
    return jnp.asarray(0.7 - 0.5 * np.exp(-ticks / (count / 4)) + rng.normal(0, 0.05, count))


def prepared(densities: Mapping[str, Likelihood], theta: Any) -> dict[str, Callable[[], Any]]:
    """Compile, check that all agree in value and gradient, and leave calls to time."""
    calls = {}
    answers = {}
    for name, density in densities.items():
        compiled = jax.jit(jax.value_and_grad(density)).lower(theta).compile()
        calls[name] = lambda compiled=compiled: jax.block_until_ready(compiled(theta))
        answers[name] = calls[name]()
    expected, slope = answers[OURS]
    for name, (value, gradient) in answers.items():  # dynamax adds 1e-9 to a variance it divides by
        np.testing.assert_allclose(value, expected, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(
            gradient, slope, rtol=0, atol=1e-5 * float(jnp.abs(slope).max()), err_msg=name
        )
    return calls


def measure(count: int, rounds: int) -> list[dict[str, Any]]:
    """One table row for each contender and problem at this number of rows."""
    rewards = draw_rewards(count)
    centred = rewards - rewards.mean()
    program, data = model_data(rewards)
    problems = {
        "oscillator": prepared(
            {name: make(centred) for name, make in OSCILLATOR.items()},
            jnp.log(jnp.array([0.3, 0.8, 0.1, 0.05])),
        ),
        "model": prepared(
            {OURS: model_ours(program, data), PLAIN: model_plain(program, data, rewards)},
            jnp.log(jnp.array([0.3, 2.0, 0.2, 0.3, 0.7])),
        ),
    }
    calls = {(p, n): call for p, named in problems.items() for n, call in named.items()}
    seconds = interleaved(calls, rounds)
    rows = []
    for (problem, name), times in seconds.items():
        median, least = median_and_min(times)
        ours_median, ours_least = median_and_min(seconds[problem, OURS])
        rows.append(
            {
                "problem": problem,
                "rows": count,
                "implementation": name,
                "median_us": f"{1e6 * median:.1f}",
                "min_us": f"{1e6 * least:.1f}",
                "median_ratio": f"{median / ours_median:.2f}",
                "min_ratio": f"{least / ours_least:.2f}",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats, no files written")
    quick = parser.parse_args().quick
    with float64():
        rows = [
            row
            for count in ROWS[: 2 if quick else 3]
            for row in measure(count, 20 if quick else 60 if count > 5_000 else 800)
        ]
    text = table(rows)
    print(text)
    if not quick:
        write_csv(RESULTS / "likelihood.csv", rows)
        write_text(
            RESULTS / "likelihood.md",
            "Value and gradient of the marginal likelihood, float64, two CPU cores; ratios are to "
            f"{OURS}.\n`python benchmarks/likelihood.py` makes this table.\n\n"
            f"{versions()}\n\n{text}\n",
        )


if __name__ == "__main__":
    main()
