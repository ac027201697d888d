"""Simulation-based calibration: do the posteriors of a model mean what they say?

    python benchmarks/sbc.py --model oscillator

If parameters come from the priors and rewards from the model, the true value of every quantity is
one more draw from its posterior, so its rank among posterior draws is uniform (Talts et al. 2018).
That holds only if likelihood, gradient, NUTS, the exact draws of the states, and the quantities
derived from them are all right: an error of any of them bends a histogram of ranks.

Each simulation draws parameters from the model file's priors, simulates one run (60 logged steps
of 100 planned, three rewards missing, learning rate warmed up and then falling), fits it as
`bayes_grpo.fit` does, and ranks the truth among 99 nearly independent posterior draws.  The scale
of the priors is fixed, where a real fit takes it from the data: what is checked is the computation
under given priors.  Where fewer than 100 effective draws came out, the run is sampled again for
longer; no simulation is dropped.

Ranked besides the reported quantities: the distance of the first, the last and the plateau level
from the rewards near them (``..._gap``), and the density of the rewards given the states
(``state_fit``) or the parameters (``log_likelihood``).  They depend on the data, and so see a
posterior that forgets it.

Written to benchmarks/results: ``sbc_MODEL.csv`` (ranks), ``.md`` (tests of uniformity), ``.png``.
Exit status 1 if the ranks of plateau, relaxation time or temperature are not uniform.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from arviz_stats import ess, rhat
from rank_statistics import VALUES, bins_for, draw_figure, judge
from reporting import RESULTS, table, write_csv, write_text
from resumable import Partial, Progress

from bayes_grpo.model import Data, Model, Program, bind, load_model
from bayes_grpo.posterior import levels_and_paths, levels_of_path
from bayes_grpo.precision import float64
from bayes_grpo.priors import RunScale
from bayes_grpo.results import quantities as reported_quantities
from bayes_grpo.run import Run
from bayes_grpo.sampler import Sampling, sample
from bayes_grpo.statespace import Ticks, draw_noise, row_means, simulate

ROWS, PLANNED, MISSING = 60, 100, (20, 21, 22)
LEVEL, SCALE = 0.4, 0.1
"""Location and scale of the rewards that the priors are measured in."""

SAMPLING = Sampling(chains=2, tune=400, draws=500)
LONGEST = 8
"""How many times as many draws a badly mixing simulation gets at most."""

DECISIVE = ("plateau", "relaxation_time", "temperature")
SIGNIFICANCE = 0.01
QUANTITIES = (
    "plateau",
    "relaxation_time",
    "temperature",
    "damping_ratio",
    "initial_success",
    "kl_weight",
    "decay_exponent",
    "steepness",
    "true_positive_rate",
    "false_positive_rate",
    "initial_reward",
    "reward_now",
    "fluctuation_sd",
    "drift_sd",
    "sampling_sd",
    "plateau_change",
    "initial_gap",
    "now_gap",
    "plateau_gap",
    "state_fit",
    "log_likelihood",
)
GAPS = {"initial_gap": "initial_reward", "now_gap": "reward_now", "plateau_gap": "plateau"}
NEAR = 5
"""Rows whose mean reward a gap is measured from."""


class Case(NamedTuple):
    """The one run whose rewards every simulation replaces: all share its compiled programs."""

    run: Run
    program: Program
    data: Data


def make_case(model: Model, window: int = 1) -> Case:
    """A run of the model.

    Parameters
    ----------
    model
        The model.
    window
        Updates between two rows; from 2 on, a row is the mean of so many rollout batches.
    """
    step = np.arange(1, ROWS + 1) * window
    rate = np.minimum(step / (5 * window), 1 - step / (PLANNED * window)) * 1e-6
    reward = np.sin(step)
    reward[list(MISSING)] = np.nan
    run = Run.from_table(
        pd.DataFrame({"step": step, "reward": reward, "learning_rate": rate}),
        name="simulated",
        group_size=8,
        prompts_per_step=16,
        max_steps=PLANNED * window,
        row_average="window" if window > 1 else "single",
    )
    program, _, data = bind(model, run)
    scale = RunScale(LEVEL, SCALE, float(PLANNED * window), float(window))
    return Case(run, program, data._replace(scale=scale))


@partial(jax.jit, static_argnums=0)
def _simulate(program: Program, data: Data, key: jax.Array) -> tuple[Any, ...]:
    """Parameters from the priors, the levels they lead to, and every tick's row with and without
    sampling noise."""
    draws = {
        name: program.model.priors[name].in_unit().sample(jax.random.fold_in(key, number))
        for number, name in enumerate(program.sampled)
    }
    params = program.params(draws, data)
    key_noise = jax.random.fold_in(key, len(draws))
    noise = draw_noise(program.system, params, data.ticks, key_noise)
    ticks = program.timed(params, data.ticks)
    states, rewards, end = simulate(program.system, params, ticks, noise)
    levels = levels_of_path(program, ticks, params, states, end)
    latent = row_means(program.system, params, ticks, states)
    return draws, levels, latent, rewards * data.ticks.observed


@partial(jax.jit, static_argnums=0)
def _log_likelihood(program: Program, data: Data, draws: Mapping[str, jax.Array]) -> jax.Array:
    return program.log_likelihood(draws, data)


def with_data(
    found: Mapping[str, np.ndarray], states: np.ndarray, likelihood: np.ndarray, ticks: Ticks
) -> dict[str, np.ndarray]:
    """Add the quantities that compare a draw with the rewards.

    Without them a posterior that forgets the data passes: draws from the prior are calibrated, too
    (Modrák et al. 2023, arXiv 2211.02383).

    Parameters
    ----------
    found
        Reported quantities, shape (draws,) each.
    states
        Reward without sampling noise of the row that each tick ends, shape (draws, ticks).
    likelihood
        Log density of the rewards given the parameters, shape (draws,).
    ticks
        The run.
    """
    seen = ticks.observed > 0
    reward = ticks.reward[seen]
    near = {name: reward[:NEAR] if name == "initial_gap" else reward[-NEAR:] for name in GAPS}
    gaps = {name: np.abs(found[GAPS[name]] - near[name].mean()) for name in GAPS}
    variance = found["sampling_sd"][..., None] ** 2 * ticks.row_variance[seen]
    misfit = (reward - states[..., seen]) ** 2 / variance + np.log(variance)
    return {
        **found,
        **gaps,
        "plateau_change": found["plateau"] - found["initial_plateau"],
        "state_fit": -0.5 * misfit.sum(axis=-1),
        "log_likelihood": likelihood,
    }


def simulation(case: Case, source: Case, number: int, seed: int) -> dict[str, float]:
    """One simulation.

    Parameters
    ----------
    case
        What is fitted.
    source
        Where parameters and rewards come from: the same, unless a fault is planted.
    number
        Of the simulation; with ``seed`` it decides everything random.
    seed
        Of the whole study.

    Returns
    -------
    dict
        Rank of each of `QUANTITIES` that the model has, and how the sampling went.
    """
    begin = time.perf_counter()
    seeds = [int(s) for s in np.random.SeedSequence((seed, number)).generate_state(3) >> 1]
    with float64():
        true_draws, true_levels, latent, rewards = jax.tree.map(
            np.asarray, _simulate(source.program, source.data, jax.random.key(seeds[0]))
        )
        data = case.data._replace(ticks=case.data.ticks._replace(reward=rewards))
        factor = 1
        while True:
            plan = replace(SAMPLING, draws=SAMPLING.draws * factor)
            drawn = sample(case.program, data, plan, seeds[1])
            effective = min(float(ess(values)) for values in drawn.values.values())
            if effective >= VALUES or factor >= LONGEST:
                break
            factor *= 2
        total = plan.chains * plan.draws
        chosen = np.linspace(0, total - 1, VALUES - 1).round().astype(int)
        draws = {name: values.reshape(1, -1)[:, chosen] for name, values in drawn.values.items()}
        levels, paths = levels_and_paths(case.program, data, draws, seeds[2])
        likelihood = np.asarray(_log_likelihood(source.program, data, true_draws))
    truth = with_data(
        reported_quantities(case.run, source.program, true_levels), latent, likelihood, data.ticks
    )
    found = with_data(
        reported_quantities(case.run, case.program, levels),
        paths.latent,
        paths.log_likelihood.sum(axis=-1),
        data.ticks,
    )
    ranks = {name: int(np.sum(found[name] < truth[name])) for name in QUANTITIES if name in truth}
    return {
        "simulation": number,
        **ranks,
        "ess_min": effective,
        "r_hat_max": max(float(rhat(values)) for values in drawn.values.values()),
        "divergences": int(drawn.stats["diverging"].sum()),
        "draws": total,
        "leapfrog_steps": float(drawn.stats["n_steps"].mean()),
        "seconds": time.perf_counter() - begin,
    }


def ranks_of(results: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.array([r[name] for r in results]) for name in QUANTITIES if name in results[0]}


def failures(
    ranks: Mapping[str, np.ndarray],
    quantities: Sequence[str] = DECISIVE,
    level: float = SIGNIFICANCE,
) -> list[str]:
    """Quantities that fail any test at a level that is shared among all tests of all of them."""
    tested = [name for name in quantities if name in ranks]
    threshold = level / (3 * len(tested))
    return [name for name in tested if judge(ranks[name]).smallest < threshold]


def report(model: str, results: list[dict[str, Any]], seed: int) -> str:
    """The tests as a Markdown page."""
    ranks = ranks_of(results)
    failed = failures(ranks)
    rows = []
    for name, found in ranks.items():
        verdict = judge(found)
        rows.append(
            {
                "quantity": name,
                "mean rank / draws": f"{(found.mean() + 0.5) / VALUES:.3f}",
                "chi-square p": f"{verdict.chi_square:.3g}",
                "KS p": f"{verdict.ks:.3g}",
                "ECDF p": f"{verdict.ecdf:.3g}",
                "in the 95 % band": "yes" if verdict.ecdf > 0.05 else "no",
                "decides": "" if name not in DECISIVE else "FAIL" if name in failed else "pass",
            }
        )
    frame = pd.DataFrame(results)
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "numpyro", "numpy"))
    decisive = [name for name in DECISIVE if name in ranks]
    return "\n".join(
        [
            f"# Simulation-based calibration of `{model}`",
            "",
            f"{len(frame)} simulations (seed {seed}), {ROWS} rows each, ranks among {VALUES - 1} "
            f"draws; chi-square with {bins_for(len(frame))} bins.",
            "",
            table(rows),
            "",
            f"**{'FAIL: ' + ', '.join(failed) if failed else 'Pass'}**: each of the three tests of "
            f"{', '.join(decisive)} at level {SIGNIFICANCE} / {3 * len(decisive)}. Of the "
            f"{len(rows)} ECDFs, one in twenty leaves its 95 % band by chance.",
            "",
            f"Effective draws of the worst parameter: median {frame['ess_min'].median():.0f}, "
            f"smallest {frame['ess_min'].min():.0f}; sampled again for longer: "
            f"{(frame['draws'] > SAMPLING.chains * SAMPLING.draws).sum()}; r_hat above 1.05: "
            f"{(frame['r_hat_max'] > 1.05).sum()}; divergent draws: "
            f"{frame['divergences'].sum() / frame['draws'].sum():.2%}; median "
            f"{frame['seconds'].median():.2f} s a simulation.",
            "",
            f"{packages}",
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="oscillator", help="name or file of a model")
    parser.add_argument("--simulations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--window", type=int, default=1, help="rollout batches that a row averages")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted study")
    chosen = parser.parse_args()
    if chosen.simulations < 20:
        parser.error("--simulations: fewer than 20 say nothing")

    model = load_model(chosen.model)
    name = f"sbc_{model.name}" + (f"_window{chosen.window}" if chosen.window > 1 else "")
    settings = {"model": model.text, "seed": chosen.seed, "window": chosen.window, "rows": ROWS}
    done = Partial(RESULTS / f"{name}.partial.jsonl", settings, chosen.resume)
    case = make_case(model, chosen.window)
    known = {item["simulation"] for item in done.items}
    todo = [number for number in range(chosen.simulations) if number not in known]
    progress = Progress(len(todo), name)
    for number in todo:
        item = simulation(case, case, number, chosen.seed)
        done.add(item)
        progress.step(f"ess {item['ess_min']:.0f}, {item['seconds']:.1f} s")

    results = sorted(done.items, key=lambda item: item["simulation"])
    ranks = ranks_of(results)
    page = report(name.removeprefix("sbc_"), results, chosen.seed)
    rounded = [
        {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in item.items()}
        for item in results
    ]
    write_csv(RESULTS / f"{name}.csv", rounded)
    figure = RESULTS / f"{name}.tmp.png"
    draw_figure(ranks, f"Calibration of {model.name}, {len(results)} simulations", figure)
    figure.replace(RESULTS / f"{name}.png")
    write_text(RESULTS / f"{name}.md", page)
    done.done()
    print(page)
    return 1 if failures(ranks) else 0


if __name__ == "__main__":
    sys.exit(main())
