"""The curvature measured twice: from the bandit's closed form, and by a fit to its log.

    nice -n 15 python benchmarks/curvature_coverage.py

Every run trains a two-arm bandit (SGD, momentum 0.5 or 0.9, hold and refresh every 1 to 4
updates, groups of 8 rollouts, 300 updates), fits the logged reward with the model `closed_form`,
which knows momentum and refresh interval, and asks where among the posterior draws the curvature
lies that `bayes_grpo.simulate.curvature` computes from the bandit's settings alone.  If the
posterior is right, its 50 % and 90 % intervals cover it in 50 % and 90 % of the runs, and its ranks
are uniform.

The model is linear about the plateau and the bandit is not, so this is done in three regimes:

``linear``
    Plateaus of 0.46 to 0.54, starts 0.2 to 0.4 logits below, 64 groups an update.  The second
    derivative of the reward's drift at its fixed point is proportional to ``1 - 2 p*`` (mean-only
    advantages): small here.
``bent``
    Plateau 0.75, starts 0.75 logits below, 16 groups an update.
``far``
    Plateau 0.75, starts 1.5 logits below, 16 groups an update.

``best_line`` is what the linear model finds in the bandit's own noise-free curve (the mean of a
very large batch) by least squares, over the closed form's ``K``: the part of an error that is the
bandit's bend and not the posterior's.

The whole force is stale, as the theory assumes (``ratio="none"``, ``stale_force="all"``).
Mean-only and std-normalised advantages alternate; the closed form includes the slowing by groups of
8.  Relaxation times are drawn from the model's own prior, between 3 % and 50 % of the run.  Every
run is fitted three times: with `closed_form` as it ships; without the slow drift of the plateau,
which no bandit has; and without process noise, too, of which these bandits have next to none: their
force is a function of the group's success rate that is flat at 1/2.  What a model allows for and a
run does not have widens the posterior.  A fit that did not converge is run again with four times
the draws, and kept.

Written to benchmarks/results: ``curvature_coverage.csv``, ``.md``, ``.png``.  Can be interrupted
and go on with ``--resume``.  Exit status 1 if the regime ``linear`` misses the nominal coverage by
more than three standard errors, or its ranks are not uniform, with sampling noise only.
"""

import argparse
import sys
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rank_statistics import VALUES, draw_figure, judge
from reporting import RESULTS, circumstances, table, write_csv, write_text
from resumable import Partial, Progress
from scipy.optimize import least_squares

import bayes_grpo as bg
from bayes_grpo.convergence import ConvergenceWarning
from bayes_grpo.model import Model, load_model, parse_model
from bayes_grpo.precision import float64
from bayes_grpo.simulate import Bandit, curvature, simulate_bandit
from bayes_grpo.simulate.equilibrium import reward_gain

UPDATES, GROUP_SIZE = 300, 8
PROMPTS = {"linear": 64, "bent": 16, "far": 16}
MANY_PROMPTS = 4_000
"""Groups of an update whose mean is taken for the noise-free curve."""

RUNS = {"linear": 100, "bent": 20, "far": 20}
SHIPPED, NO_DRIFT, SAMPLING_ONLY = "closed_form", "without drift", "sampling noise only"
SHORTEST, LONGEST = 0.03, 0.5
"""Relaxation times over the run's length."""

SIGNIFICANCE = 0.01
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


class Case(NamedTuple):
    regime: str
    bandit: Bandit
    plateau: float
    curvature: float


def make_case(regime: str, number: int, seed: int) -> Case:
    rng = np.random.default_rng([seed, list(RUNS).index(regime), number])
    plateau = rng.uniform(0.46, 0.54) if regime == "linear" else 0.75
    below = {"linear": rng.uniform(0.2, 0.4), "bent": 0.75, "far": 1.5}[regime]
    normalisation = ("mean", "std")[number % 2]
    kl_weight = {"mean": rng.uniform(0.7, 1.4), "std": rng.uniform(2.0, 3.0)}[normalisation]
    logit = np.log(plateau / (1 - plateau))
    with float64():
        tilt = float(reward_gain(plateau, normalisation, GROUP_SIZE)) / kl_weight
    common = {
        "momentum": (0.5, 0.9)[number // 2 % 2],
        "refresh_interval": 1 + number // 4 % 4,
        "kl_weight": kl_weight,
        "reference_logits": (logit - tilt, 0.0),
        "initial_logits": (logit - below, 0.0),
        "normalisation": normalisation,
        "ratio": "none",
        "stale_force": "all",
        "group_size": GROUP_SIZE,
        "prompts_per_step": PROMPTS[regime],
    }
    end = curvature(Bandit(**common))
    if abs(end.plateau - plateau) > 1e-6:
        raise RuntimeError(f"{regime} {number}: fixed point {end.plateau}, wanted {plateau}")
    relaxation_time = 0.0
    while not SHORTEST * UPDATES < relaxation_time < LONGEST * UPDATES:
        relaxation_time = 1 + 0.2 * UPDATES * np.exp(rng.standard_normal())  # as closed_form.toml
    rate = (1 - common["momentum"]) / (relaxation_time * end.curvature)
    return Case(regime, Bandit(**common, learning_rate=rate), plateau, end.curvature)


def linear_curve(
    start: float, plateau: float, stiffness: float, momentum: float, held: int
) -> np.ndarray:
    """Reward of every update's sampler in the linear recursion with hold and refresh."""
    rewards = np.empty(UPDATES)
    reward, velocity, stale = start, 0.0, start
    for update in range(UPDATES):
        stale = reward if update % held == 0 else stale
        rewards[update] = stale
        velocity = momentum * velocity - stiffness * (stale - plateau)
        reward += velocity
    return rewards


def best_line(case: Case) -> float:
    """Curvature of the linear curve nearest to the noise-free one, over the closed form's."""
    many = {**vars(case.bandit), "prompts_per_step": MANY_PROMPTS}
    with_noise_gone = simulate_bandit(Bandit(**many), UPDATES, 0, record=("reward",))["reward"]
    momentum = float(case.bandit.momentum)
    held = int(case.bandit.refresh_interval)
    unit = float(case.bandit.learning_rate) * case.curvature

    def residual(at: np.ndarray) -> np.ndarray:
        return linear_curve(at[0], at[1], unit * np.exp(at[2]), momentum, held) - with_noise_gone

    found = least_squares(residual, [with_noise_gone[0], case.plateau, 0.0])
    return float(np.exp(found.x[2]))


def models() -> dict[str, Model]:
    """The shipped model, and variants of it made as a user would."""
    shipped = load_model("closed_form")

    def variant(name: str, fluctuation: str, *unused: str) -> Model:
        text = shipped.text.replace('["process", "drift"]', fluctuation)
        lines = (line for line in text.splitlines() if not line.startswith(unused))
        return parse_model("\n".join(lines), name, "benchmark")

    return {
        SHIPPED: shipped,
        NO_DRIFT: variant(NO_DRIFT, '["process"]', "drift_sd"),
        SAMPLING_ONLY: variant(SAMPLING_ONLY, "[]", "drift_sd", "fluctuation_sd"),
    }


def measure(case: Case, model: Model, seed: int) -> dict[str, Any]:
    bandit = case.bandit
    rows = simulate_bandit(bandit, UPDATES, seed).table()
    run = bg.Run.from_table(rows, case.regime, max_steps=UPDATES, **bandit.settings())
    return {
        "normalisation": bandit.normalisation,
        "momentum": float(bandit.momentum),
        "refresh_interval": int(bandit.refresh_interval),
        "plateau": case.plateau,
        "curvature": case.curvature,
        "relaxation_time": (1 - bandit.momentum) / (bandit.learning_rate * case.curvature),
        "best_line": best_line(case),
        **posterior(run, model, case, seed),
    }


def posterior(run: bg.Run, model: Model, case: Case, seed: int) -> dict[str, Any]:
    begin = time.perf_counter()
    for draws in (600, 2400):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fit = bg.fit(run, model, chains=2, draws=draws, tune=400, progress=False, seed=seed)
        if fit.convergence.converged:
            break
    found = fit.idata["posterior"]["curvature"].to_numpy().ravel()
    chosen = found[np.linspace(0, len(found) - 1, VALUES - 1).round().astype(int)]
    quantiles = map(float, np.quantile(found, LEVELS))
    return {
        **dict(zip(("q05", "q25", "median", "q75", "q95"), quantiles, strict=True)),
        "rank": int((chosen < case.curvature).sum()),
        "converged": bool(fit.convergence.converged),
        "draws": len(found),
        "seconds": round(time.perf_counter() - begin, 2),
    }


def covers(frame: pd.DataFrame, truth: pd.Series, level: int) -> str:
    low, high = {50: ("q25", "q75"), 90: ("q05", "q95")}[level]
    share = ((frame[low] <= truth) & (truth <= frame[high])).mean()
    return f"{share:.3f} ± {binomial_error(level, len(frame)):.3f}"


def binomial_error(level: int, runs: int) -> float:
    nominal = level / 100
    return float(np.sqrt(nominal * (1 - nominal) / runs))


def summary(frame: pd.DataFrame) -> list[dict[str, str]]:
    frame = frame.sort_values("run", kind="stable")
    groups: list[tuple[str, str, pd.DataFrame]] = []
    for (model, regime), part in frame.groupby(["model", "regime"], sort=False):
        groups.append((model, regime, part))
        if regime == "linear" and model != NO_DRIFT:
            groups += [(model, f"{regime}, {n}", p) for n, p in part.groupby("normalisation")]
            groups += [(model, f"{regime}, momentum {n}", p) for n, p in part.groupby("momentum")]
    return [
        {
            "model": model,
            "runs": f"{name}: {len(part)}",
            "50 % covers": covers(part, part["curvature"], 50),
            "90 % covers": covers(part, part["curvature"], 90),
            "ranks uniform, p": f"{judge(part['rank'].to_numpy()).smallest:.3g}",
            "fitted / closed form": ratio(part["median"] / part["curvature"]),
            "best line / closed form": ratio(part["best_line"]),
            "90 % covers best line": covers(part, part["curvature"] * part["best_line"], 90),
            "width": f"{((part['q95'] - part['q05']) / part['median']).median():.2f}",
        }
        for model, name, part in groups
    ]


def ratio(values: pd.Series) -> str:
    return f"{np.exp(np.log(values).mean()):.3f}"


def report(frame: pd.DataFrame) -> bool:
    """Write the results; whether the regime that the model is right for is calibrated."""
    lines = [
        "Curvature of two-arm bandits: closed form against the posterior of the model",
        "`closed_form`. `python benchmarks/curvature_coverage.py` makes this table; its head",
        "explains regimes and columns. Coverage is given with the binomial standard error at the",
        "nominal rate; of the tests of uniform ranks the smallest of three p values; of ratios the",
        "geometric mean; the width is that of the 90 % interval over the posterior median.",
        "",
        table(summary(frame)),
        "",
        f"Not converged after the second try: {(~frame['converged']).sum()} of {len(frame)}. "
        f"Median {frame['seconds'].median():.1f} s a run.",
        "",
        circumstances(),
        "",
    ]
    write_csv(RESULTS / "curvature_coverage.csv", frame.to_dict("records"))
    write_text(RESULTS / "curvature_coverage.md", "\n".join(lines))
    ranks = {
        f"{regime},\n{'as shipped' if model == SHIPPED else model}": part["rank"].to_numpy()
        for (model, regime), part in frame.groupby(["model", "regime"], sort=False)
    }
    draw_figure(
        ranks,
        "Rank of the bandit's closed-form curvature among posterior draws",
        RESULTS / "curvature_coverage.png",
    )
    good = frame[(frame["regime"] == "linear") & (frame["model"] == SAMPLING_ONLY)]
    off = [
        abs(float(covers(good, good["curvature"], level).split()[0]) - level / 100)
        / binomial_error(level, len(good))
        for level in (50, 90)
    ]
    return max(off) < 3 and judge(good["rank"].to_numpy()).smallest > SIGNIFICANCE


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted study")
    parser.add_argument(
        "--report", action="store_true", help="write the tables of an unfinished study, and keep it"
    )
    chosen = parser.parse_args()
    settings = {"seed": chosen.seed, "updates": UPDATES, "model": load_model(SHIPPED).text}
    done = Partial(
        RESULTS / "curvature_coverage.partial.jsonl", settings, chosen.resume or chosen.report
    )
    known = {(item["regime"], item["run"], item["model"]) for item in done.items}
    # Regimes in turn, so that an early stop leaves some of each.
    order = sorted((n / count, r, n) for r, count in RUNS.items() for n in range(count))
    todo = [(r, n, m) for _, r, n in order for m in models() if (r, n, m) not in known]
    progress = Progress(len(todo), "curvature_coverage")
    for regime, number, name in [] if chosen.report else todo:
        case = make_case(regime, number, chosen.seed)
        found = measure(case, models()[name], 1000 * chosen.seed + number)
        done.add({"regime": regime, "run": number, "model": name, **found})
        progress.step(f"{regime} {found['median'] / found['curvature']:.2f}")
    calibrated = report(pd.DataFrame(done.items))
    if not chosen.report:
        done.done()
    print((RESULTS / "curvature_coverage.md").read_text(encoding="utf-8"))
    return 0 if calibrated else 1


if __name__ == "__main__":
    sys.exit(main())
