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

Two ways to call: ``call`` is one call of the compiled function from Python, ``loop`` one of LOOP
gradients inside a compiled loop, which is how NUTS spends its time; a call adds the cost of getting
into and out of the compiled program, tens to hundreds of microseconds for everyone.

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
    circumstances,
    interleaved,
    median_and_min,
    table,
    write_csv,
    write_text,
)

from bayes_grpo.model import Data, Program, bind, load_model
from bayes_grpo.precision import float64
from bayes_grpo.run import Run
from bayes_grpo.statespace import System, Ticks, independent, log_likelihood

ROWS = (300, 1_000, 10_000)
LOOP = 10
OURS = "bayes_grpo"
PLAIN = "plain scan"

type Likelihood = Callable[[Any], Any]


def kalman(
    transition: Any, noise: Any, reading: Any, variance: Any, start: tuple[Any, Any], rewards: Any
) -> Any:
    """Log likelihood by a plain Kalman filter with constant matrices."""

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

    return lax.scan(step, start, rewards)[1].sum()


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
    ticks = Ticks(one, zero, rewards, one, one, zero, one, zero)
    system = System(
        start=lambda p: ((0.0, 0.0), independent(p["start"])),
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
        return kalman(transition, noise, reading, variance, (jnp.zeros(2), stationary), rewards)

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
        return program.log_likelihood(draws, data)

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
        start = (mean, jnp.diag(deviation**2))
        return kalman(transition, noise, reading, variance, start, rewards)

    return density


# --- all ------------------------------------------------------------------------------------------


def draw_rewards(count: int) -> Any:
    """A noisy saturating curve, the same at every call."""
    rng = np.random.default_rng(count)
    ticks = np.arange(count)
    return jnp.asarray(0.7 - 0.5 * np.exp(-ticks / (count / 4)) + rng.normal(0, 0.05, count))


def prepared(densities: Mapping[str, Likelihood], theta: Any) -> dict[tuple[str, str], Any]:
    """Compile, check that all agree in value and gradient, and leave calls to time."""
    calls = {}
    answers = {}
    for name, density in densities.items():
        gradient = jax.value_and_grad(density)

        def repeated(theta: Any, gradient: Any = gradient) -> Any:
            def again(_: Any, carry: Any) -> Any:
                total, theta = carry  # the next point depends on this gradient, as in NUTS
                value, slope = gradient(theta)
                return total + value, theta + 1e-12 * slope

            return lax.fori_loop(0, LOOP, again, (jnp.zeros(()), theta))

        one = jax.jit(gradient).lower(theta).compile()
        many = jax.jit(repeated).lower(theta).compile()
        calls[name, "call"] = lambda one=one: jax.block_until_ready(one(theta))
        calls[name, "loop"] = lambda many=many: jax.block_until_ready(many(theta))
        answers[name] = one(theta)
    expected, slope = answers[OURS]
    for name, (value, gradient) in answers.items():  # dynamax adds 1e-9 to a variance it divides by
        np.testing.assert_allclose(value, expected, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(
            gradient, slope, rtol=0, atol=1e-5 * float(jnp.abs(slope).max()), err_msg=name
        )
    return calls


def measure(count: int, rounds: int) -> list[dict[str, Any]]:
    """One table row for each contender, problem and way to call at this number of rows."""
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
    calls = {(p, *key): call for p, keyed in problems.items() for key, call in keyed.items()}
    seconds = {
        key: median_and_min([t / (LOOP if key[2] == "loop" else 1) for t in times])
        for key, times in interleaved(calls, rounds).items()
    }
    rows = []
    for (problem, name, way), (median, least) in sorted(
        seconds.items(), key=lambda item: (item[0][0] == "model", item[0][2])
    ):
        ours_median, ours_least = seconds[problem, OURS, way]
        rows.append(
            {
                "problem": problem,
                "rows": count,
                "way": way,
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
            for row in measure(count, 20 if quick else 15 if count > 5_000 else 300)
        ]
    text = table(rows)
    print(text)
    if not quick:
        write_csv(RESULTS / "likelihood.csv", rows)
        write_text(
            RESULTS / "likelihood.md",
            "Value and gradient of the marginal likelihood, float64; ratios are to "
            f"{OURS}.\n`python benchmarks/likelihood.py` makes this table.\n\n"
            f"{circumstances()}\n\n{text}\n",
        )


if __name__ == "__main__":
    main()
