"""A whole fit: effective draws a second, ours and the same model as one writes it in NumPyro.

    python benchmarks/nuts.py

The rival states the priors of ``models/oscillator.toml`` as sample sites, plateau and first reward
among them, and a Kalman filter over matrices with `jax.lax.scan`; it runs ``MCMC(NUTS(model))``
with default settings, chains in sequence or on four host devices (NumPyro wants one for each
chain), of which the better counts.  Both get 4 chains of 1,000 + 1,000 iterations in float64, each
in a process of its own.  Effective draws are the bulk ESS of the worst of the parameters that both
sample; they are divided by the seconds of a first run, compilation included, and of a second run
with another seed, for which everything was compiled before: ours because it keeps its programs,
NumPyro's because JAX's persistent cache is on (its ``MCMC``
compiles anew at every run otherwise; it still traces and loads, which counts).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from reporting import RESULTS, circumstances, table, write_csv, write_text

CHAINS, TUNE, DRAWS = 4, 1000, 1000
COMMON = ("relaxation_time", "damping_ratio", "fluctuation_sd", "drift_sd", "sampling_sd")
ROWS = 300
TRUTH = {
    "slow rise": {"relaxation_time": 60.0, "damping_ratio": 2.0},
    "overshoot": {"relaxation_time": 25.0, "damping_ratio": 0.5},
}
"""Simulated runs; the other parameters are those of `simulated`."""
LOGGED = Path(__file__).resolve().parent.parent / "data" / "gsm8k_like.json"
CONTENDERS = ("bayes_grpo", "NumPyro parallel", "NumPyro sequential")


def simulated(name: str) -> Any:
    """A run drawn from the model with known parameters, the same at every call."""
    import jax
    import numpy as np
    import pandas as pd

    from bayes_grpo.fluctuation import shock_sd
    from bayes_grpo.model import bind, load_model
    from bayes_grpo.precision import float64
    from bayes_grpo.run import Run
    from bayes_grpo.statespace import draw_noise, simulate

    frame = pd.DataFrame({"step": np.arange(1, ROWS + 1), "reward": np.linspace(0, 1, ROWS)})
    settings = {"group_size": 8, "prompts_per_step": 16, "max_steps": 2 * ROWS}
    program, timeline, _ = bind(load_model("oscillator"), Run.from_table(frame, **settings))
    with float64():
        params = {
            **TRUTH[name],
            "initial_reward": 0.25,
            "initial_reward_sd": 0.0,
            "plateau": 0.7,
            "plateau_sd": 0.0,
            "fluctuation_sd": 0.03,
            "drift_sd": 0.05,
            "sampling_sd": 0.05,
            "updates_per_tick": float(timeline.updates_per_tick),
        }
        params = program.parts.derive({k: np.float64(v) for k, v in params.items()})
        params["shock_sd"] = shock_sd(params)
        noise = draw_noise(program.system, params, timeline.ticks, jax.random.key(1))
        rewards = simulate(program.system, params, timeline.ticks, noise)[1]
        frame["reward"] = np.asarray(rewards)
    return Run.from_table(frame, name=name, **settings)


def load(name: str) -> Any:
    if name in TRUTH:
        return simulated(name)
    from bayes_grpo import read_run

    return read_run(LOGGED)


def run_ours(run: Any, settings: dict[str, int]) -> list[tuple[float, Any, dict[str, Any]]]:
    from bayes_grpo.model import bind, load_model
    from bayes_grpo.sampler import Sampling, sample

    results = []
    for seed in range(2):
        begin = time.perf_counter()
        program, _, data = bind(load_model("oscillator"), run)
        draws = sample(program, data, Sampling(**settings), seed)
        results.append((time.perf_counter() - begin, draws.values, draws.stats))
    return results


def run_numpyro(run: Any, settings: dict[str, int], method: str) -> list[tuple[float, Any, Any]]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from jax import lax
    from numpyro.infer import MCMC, NUTS

    from bayes_grpo.model import bind, load_model

    # Only the run's numbers are taken from us.
    _, timeline, _ = bind(load_model("oscillator"), run)
    ticks, scale = timeline.ticks, timeline.scale
    if timeline.windowed:
        raise SystemExit("the rival's filter has one tick a row")
    per_tick = float(timeline.updates_per_tick)
    priors = load_model("oscillator").priors  # the same numbers, whatever they are today

    def normal(name: str) -> Any:
        prior = priors[name].arguments
        mean = scale.location + prior["mean"] * scale.scale
        return numpyro.sample(name, dist.Normal(mean, prior["sd"] * scale.scale))

    def log_normal(name: str, unit: float) -> Any:
        prior = priors[name].arguments
        return numpyro.sample(name, dist.LogNormal(np.log(prior["median"] * unit), prior["sd_log"]))

    def model(
        rewards: Any, observed: Any, learning_rate: Any, root_time: Any, row_variance: Any
    ) -> None:
        plateau, first = normal("plateau"), normal("initial_reward")
        above = log_normal("relaxation_time", scale.planned_updates)
        damping = log_normal("damping_ratio", 1.0)
        fluctuation = log_normal("fluctuation_sd", scale.scale)
        drift = log_normal("drift_sd", scale.scale)
        sampling = log_normal("sampling_sd", scale.scale)

        bound, _ = priors["relaxation_time"].above
        time_constant = (above + bound * scale.row_updates) / per_tick
        momentum = (time_constant / (time_constant + 2 * damping**2)) ** 2
        pull = (1 - momentum) / time_constant
        stationary = (1 + momentum) / ((1 - momentum) * pull * (2 * (1 + momentum) - pull))
        shock = fluctuation / jnp.sqrt(stationary)
        reading = jnp.array([1.0, 0.0, 0.0])
        still = jnp.array([[1.0, momentum, 0.0], [0.0, momentum, 0.0], [0.0, 0.0, 1.0]])
        force = pull * jnp.array([[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        push = shock**2 * jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        wander = jnp.diag(jnp.array([0.0, 0.0, drift**2]))

        def step(carry: Any, row: Any) -> Any:
            mean, covariance = carry
            reward, seen, rate, root, relative = row
            spread = reading @ covariance @ reading + sampling**2 * relative
            gain = seen * covariance @ reading / spread
            residual = reward - reading @ mean
            mean = mean + gain * residual
            covariance = covariance - jnp.outer(gain, reading @ covariance)
            transition = still + rate * force
            noise = rate**2 * push + root**2 * wander
            moved = (transition @ mean, transition @ covariance @ transition.T + noise)
            return moved, -0.5 * seen * (jnp.log(2 * jnp.pi * spread) + residual**2 / spread)

        start = (jnp.array([first, 0.0, plateau]), jnp.zeros((3, 3)))
        rows = (rewards, observed, learning_rate, root_time, row_variance)
        numpyro.factor("likelihood", lax.scan(step, start, rows)[1].sum())

    begin = time.perf_counter()
    mcmc = MCMC(
        NUTS(model),
        num_warmup=settings["tune"],
        num_samples=settings["draws"],
        num_chains=settings["chains"],
        chain_method=method,
        progress_bar=False,
    )
    rows = (ticks.reward, ticks.observed, ticks.learning_rate, ticks.root_time, ticks.row_variance)
    results = []
    for seed in range(2):
        if seed:
            begin = time.perf_counter()
        mcmc.run(jax.random.key(seed), *rows, extra_fields=("num_steps", "diverging"))
        values = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
        extra = jax.tree.map(np.asarray, mcmc.get_extra_fields(group_by_chain=True))
        stats = {"n_steps": extra["num_steps"], "diverging": extra["diverging"]}
        results.append((time.perf_counter() - begin, values, stats))
    return results


def contend(
    contender: str, name: str, settings: dict[str, int], cache: str
) -> list[dict[str, float]]:
    """Both runs of one contender, in this process."""
    import arviz_base
    import arviz_stats
    import jax
    import numpyro

    # NumPyro's MCMC traces and compiles anew at every run; this lets it find the compiled program.
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if contender == "bayes_grpo":
        results = run_ours(load(name), settings)
    else:
        jax.config.update("jax_enable_x64", True)
        numpyro.set_host_device_count(settings["chains"] if contender.endswith("parallel") else 1)
        results = run_numpyro(load(name), settings, contender.split()[-1])
    summaries = []
    for seconds, values, stats in results:
        tree = arviz_base.from_dict({"posterior": {k: values[k] for k in COMMON}})
        ess, r_hat = arviz_stats.ess(tree), arviz_stats.rhat(tree)
        least = min(float(ess[k]) for k in COMMON)
        summaries.append(
            {
                "seconds": seconds,
                "ess": least,
                "ess_per_second": least / seconds,
                "r_hat": max(float(r_hat[k]) for k in COMMON),
                "leapfrogs": float(stats["n_steps"].mean()),
                "divergences": int(stats["diverging"].sum()),
            }
        )
    return summaries


def in_own_process(contender: str, name: str, quick: bool) -> list[dict[str, float]]:
    command = [sys.executable, __file__, "--contender", contender, "--run", name]
    done = subprocess.run(
        command + ["--quick"] * quick, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def compare(name: str, quick: bool, repeats: int) -> list[dict[str, Any]]:
    """Table rows of one run: every contender, and its rate relative to the better rival."""
    found: dict[str, list[list[dict[str, float]]]] = {c: [] for c in CONTENDERS}
    for _ in range(repeats):
        for contender in CONTENDERS:
            found[contender].append(in_own_process(contender, name, quick))
            first, second = found[contender][-1]
            print(
                f"{name}: {contender}: {first['seconds']:.1f} s, then {second['seconds']:.1f} s",
                file=sys.stderr,
            )
    rows = []
    for number, when in enumerate(("first", "warm")):
        # The fastest repeat: what else the machine does can only slow a run down.
        best = {
            c: min((r[number] for r in runs), key=lambda r: r["seconds"])
            for c, runs in found.items()
        }
        ours = best["bayes_grpo"]["ess_per_second"]
        for contender, result in best.items():
            rows.append(
                {
                    "data": name,
                    "when": when,
                    "implementation": contender,
                    "seconds": f"{result['seconds']:.2f}",
                    "min_ess": f"{result['ess']:.0f}",
                    "ess_per_second": f"{result['ess_per_second']:.1f}",
                    "ours_over_this": f"{ours / result['ess_per_second']:.2f}",
                    "max_r_hat": f"{result['r_hat']:.3f}",
                    "leapfrogs": f"{result['leapfrogs']:.1f}",
                    "divergences": result["divergences"],
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short chains, no files written")
    parser.add_argument("--repeats", type=int, default=2, help="processes of each contender")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        settings = {"chains": CHAINS, "tune": TUNE, "draws": DRAWS}
        if arguments.quick:
            settings |= {"tune": 100, "draws": 100}
        with tempfile.TemporaryDirectory() as cache:
            found = contend(arguments.contender, arguments.run, settings, cache)
        print(json.dumps(found))
        return
    names = [*TRUTH, *(["gsm8k_like"] if LOGGED.exists() else [])]
    repeats = 1 if arguments.quick else arguments.repeats
    rows = [row for name in names for row in compare(name, arguments.quick, repeats)]
    text = table(rows)
    print(text)
    if not arguments.quick:
        write_csv(RESULTS / "nuts.csv", rows)
        write_text(
            RESULTS / "nuts.md",
            f"Effective draws a second of a whole fit, {CHAINS} chains of {TUNE} + {DRAWS}, "
            "float64.\n`python benchmarks/nuts.py` makes this table and says what is "
            f"compared.\n\n{circumstances()}\n\n{text}\n",
        )


if __name__ == "__main__":
    main()
