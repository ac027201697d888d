"""Every variant and their stack on public runs: which forecasts best, and is it inertia?

    python benchmarks/variants.py

Each public log of ``../shared/runs/tidy`` (elsewhere: ``--runs`` or BAYES_GRPO_RUNS; the logs are
not part of this repository) with at least 40 rewarded rows is cut at 25, 50 and 75 % of them.
Every variant is fitted to the part before the cut with one and the same setting, the fits are
stacked by what they predicted inside that part, and the rows after the cut are scored as in
``forecast.py``: CRPS relative to that of "last value" (a normal distribution of the last fifth of
the part), share of rows in the 50 % and 90 % bands, and the error of the final level (mean of the
last tenth of the rows against the mean forecast of these rows), in sd of the run.

The whole logs answer whether inertia is there: leave-future-out scores of the oscillator, of its
limit without inertia (exponential), of a rival whose slow start needs none (rate_or_fate), and of a
random walk.  A preference counts as clear where the difference exceeds two standard errors.

Standard errors come from resampling families of runs (names that begin alike are repetitions of
one experiment).  ``alignment`` cannot fall, and its bounds are guessed where a log does not tell.

Written to benchmarks/results: ``variants.csv`` (numbers of every run, cut and model),
``variants_weights.csv``, ``variants_whole.csv`` and ``variants.md`` (tables).
"""

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from forecast import LEAST_ROWS, ROOT, SCORE_FLOOR, crps_normal, family
from reporting import RESULTS, table, write_csv, write_text
from resumable import Partial, Progress

MODELS = (
    "oscillator",
    "closed_form",
    "exponential",
    "power_law",
    "scalerl",
    "logistic",
    "rate_or_fate",
    "rate_or_fate_noisy",
    "success_amplification",
    "success_amplification_mirror",
    "alignment",
    "local_level",
)
WHOLE = ("oscillator", "exponential", "rate_or_fate", "local_level")
CUTS = (0.25, 0.5, 0.75)
DRAWS = {"chains": 2, "tune": 400, "draws": 500}
KEPT = 1000
"""Draws of each forecast that are scored."""

LONG_LOG = 500_000
"""Bytes of a log that takes as long as the others together."""

BATCH = 16
"""Tasks of a process before a new one takes its place: compiled programs add up."""

STACK, LAST = "stack", "last value"


def fit_all(run: Any, models: Sequence[str]) -> list[Any]:
    """Fits of a run without warnings of non-convergence, which is counted."""
    import bayes_grpo

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [bayes_grpo.fit(run, m, seed=0, progress=False, **DRAWS) for m in models]


def numbers(draws: np.ndarray, found: np.ndarray, sd: float) -> dict[str, float]:
    """Scores of one forecast, draws of shape (draws, rows)."""
    from bayes_grpo.scores import crps

    low, lower, upper, high = np.quantile(draws, (0.05, 0.25, 0.75, 0.95), axis=0)
    last = slice(-max(1, len(found) // 10), None)
    return {
        "crps": float(crps(draws, found).mean()),
        "inside50": float(((found >= lower) & (found <= upper)).mean()),
        "inside90": float(((found >= low) & (found <= high)).mean()),
        "final_error": float(abs(draws[:, last].mean() - found[last].mean()) / sd),
    }


def cut(full: Any, fraction: float) -> dict[str, Any]:
    """Forecast of the later rewarded rows of a run by every variant and by their stack."""
    from bayes_grpo import stack

    rewarded = full.table[full.table["reward"].notna()]
    steps, reward = rewarded["step"].to_numpy(), rewarded["reward"].to_numpy()
    count = int(len(rewarded) * fraction)
    found, sd = reward[count:], float(reward.std())
    fits = fit_all(full.until(int(steps[count - 1])), MODELS)
    mixture = stack(fits)
    pick = np.linspace(0, DRAWS["chains"] * DRAWS["draws"] - 1, KEPT).round().astype(int)
    # The fits before the stack: its draws are chosen among theirs.
    rows = [
        {
            "model": fit.model.name,
            **numbers(fit.forecast_draws(steps[count:])[1][pick], found, sd),
            "converged": bool(fit.convergence.converged),
        }
        for fit in fits
    ]
    rows.append(
        {
            "model": STACK,
            **numbers(mixture.forecast_draws(steps[count:])[1], found, sd),
            "converged": bool(mixture.convergence.converged),
        }
    )
    last = reward[count - max(2, count // 5) : count]
    width = float(max(last.std(ddof=1), 1e-9))
    level = float(last.mean())
    tail = found[-max(1, len(found) // 10) :]
    rows.append(
        {
            "model": LAST,
            "crps": float(crps_normal(level, width, found).mean()),
            "inside50": float((np.abs(found - level) <= 0.6745 * width).mean()),
            "inside90": float((np.abs(found - level) <= 1.6449 * width).mean()),
            "final_error": float(abs(level - tail.mean()) / sd),
            "converged": True,
        }
    )
    for row in rows:
        row["ratio"] = (row["crps"] + SCORE_FLOOR * sd) / (rows[-1]["crps"] + SCORE_FLOOR * sd)
    table = mixture.comparison
    kept = ("elpd", "weight", "refits", "pareto_k")
    return {"forecast": rows, "scores": table[list(kept)].reset_index().to_dict("records")}


def whole(full: Any) -> dict[str, Any]:
    """Leave-future-out scores of a whole run, and their paired differences to the oscillator."""
    from bayes_grpo.comparison import score_fits

    scored = score_fits(fit_all(full, WHOLE))
    densities = {n: s.log_density for n, s in zip(scored.names, scored.scores, strict=True)}
    found: dict[str, Any] = {"rows": len(densities[WHOLE[0]])}
    for name, terms in densities.items():
        gain = densities["oscillator"] - terms
        found[f"{name}_elpd"] = float(terms.sum())
        found[f"{name}_behind"] = float(gain.sum())
        found[f"{name}_se"] = float(math.sqrt(len(gain)) * gain.std(ddof=1))
    rival = densities["rate_or_fate"] - densities["exponential"]
    found["rival_ahead"] = float(rival.sum())
    found["rival_se"] = float(math.sqrt(len(rival)) * rival.std(ddof=1))
    for name, fit in zip(WHOLE, scored.fits, strict=True):
        found[f"{name}_converged"] = bool(fit.convergence.converged)
    damping = scored.fits[0].idata["posterior"]["damping_ratio"].to_numpy()
    found["damping_ratio"] = float(np.median(damping))
    found["oscillatory"] = float(np.mean(damping < 1))
    return found


def evaluate(task: tuple[Path, float]) -> dict[str, Any]:
    """One run at one cut (1: the whole log)."""
    import bayes_grpo
    from bayes_grpo.compilation import keep_compiled

    keep_compiled()
    path, fraction = task
    begin = time.perf_counter()
    item: dict[str, Any] = {"run": path.stem, "fraction": fraction, "status": "scored"}
    try:
        run = bayes_grpo.read_run(path)
        if run.table["reward"].notna().sum() < LEAST_ROWS:
            return item | {"status": "short"}
        item |= whole(run) if fraction == 1 else cut(run, fraction)
    except bayes_grpo.InputError as error:
        return item | {
            "status": "refused",
            "message": str(error).replace(str(path), path.name),
        }
    return item | {"seconds": time.perf_counter() - begin}


def geometric(values: pd.Series) -> float:
    return float(np.exp(np.log(values).mean()))


def standard_error(frame: pd.DataFrame, column: str) -> float:
    """Of the mean of a column, families of runs resampled with replacement."""
    sums = frame.groupby("family")[column].agg(["sum", "size"]).to_numpy()
    rng = np.random.default_rng(0)
    picked = sums[rng.integers(0, len(sums), (1000, len(sums)))].sum(axis=1)
    return float(np.std(picked[:, 0] / picked[:, 1]))


def forecast_rows(items: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row a run, cut and model."""
    return pd.DataFrame(
        [
            {"run": item["run"], "family": family(item["run"]), "fraction": item["fraction"], **row}
            for item in items
            for row in item.get("forecast", [])
        ]
    )


def forecast_page(frame: pd.DataFrame) -> list[str]:
    """Tables of each cut."""
    lines = []
    for fraction, part in frame.groupby("fraction"):
        rows = []
        for name, found in part.groupby("model"):
            logged = found.assign(log_ratio=np.log(found["ratio"]))
            error = standard_error(logged, "log_ratio")
            rows.append(
                {
                    "model": name,
                    "CRPS ratio, geometric mean": f"{geometric(found['ratio']):.3f}",
                    "standard error": f"{error * geometric(found['ratio']):.3f}",
                    "median": f"{found['ratio'].median():.3f}",
                    "inside 50 %": f"{found['inside50'].mean():.3f}",
                    "inside 90 %": f"{found['inside90'].mean():.3f}",
                    "final level off by (sd)": f"{found['final_error'].mean():.3f}",
                    "not converged": int((~found["converged"].astype(bool)).sum()),
                }
            )
        rows.sort(key=lambda row: str(row["CRPS ratio, geometric mean"]))
        lines += [
            f"## From the first {fraction:.0%}: {part['run'].nunique()} runs",
            "",
            table(rows),
            "",
        ]
    return lines


def against_best(frame: pd.DataFrame) -> list[str]:
    """The stack against the best single variant, paired by run."""
    rows = []
    for fraction, part in frame.groupby("fraction"):
        wide = np.log(part.pivot(index="run", columns="model", values="ratio"))
        singles = wide[[m for m in MODELS if m in wide]]
        best = singles.mean().idxmin()
        gap = (wide[STACK] - wide[best]).rename("gap").reset_index()
        gap["family"] = gap["run"].map(family)
        rows.append(
            {
                "cut": f"{fraction:.0%}",
                "best single": best,
                "its ratio": f"{math.exp(singles[best].mean()):.3f}",
                "stack": f"{math.exp(wide[STACK].mean()):.3f}",
                "stack / best": f"{math.exp(gap['gap'].mean()):.3f}",
                "standard error": f"{standard_error(gap, 'gap'):.3f}",
            }
        )
    return ["## The stack against the best single variant", "", table(rows), ""]


def inertia_page(items: Sequence[dict[str, Any]]) -> tuple[list[str], pd.DataFrame]:
    """On how many runs inertia is preferred."""
    frame = pd.DataFrame([item for item in items if "oscillator_elpd" in item])
    if frame.empty:
        return [], frame
    frame = frame.sort_values("run", ignore_index=True)
    frame.insert(1, "family", frame["run"].map(family))

    def counts(ahead: pd.Series, error: pd.Series) -> dict[str, Any]:
        return {
            "ahead": int((ahead > 0).sum()),
            "clearly (2 se)": int((ahead > 2 * error).sum()),
            "clearly behind (2 se)": int((ahead < -2 * error).sum()),
            "mean difference (nats)": f"{ahead.mean():+.2f}",
            "families clearly": frame.loc[ahead > 2 * error, "family"].nunique(),
        }

    rows = [
        {"oscillator against": name, **counts(frame[f"{name}_behind"], frame[f"{name}_se"])}
        for name in WHOLE[1:]
    ]
    rows.append(
        {
            "oscillator against": "(rate_or_fate against exponential)",
            **counts(frame["rival_ahead"], frame["rival_se"]),
        }
    )
    both = (frame["exponential_behind"] > 0) & (frame["rate_or_fate_behind"] > 0)
    clear = (frame["exponential_behind"] > 2 * frame["exponential_se"]) & (
        frame["rate_or_fate_behind"] > 2 * frame["rate_or_fate_se"]
    )
    neither = (frame["exponential_behind"] <= 0) & (frame["rate_or_fate_behind"] <= 0)
    lines = [
        f"## Is it inertia? {len(frame)} whole runs, {frame['family'].nunique()} families",
        "",
        table(rows),
        "",
        f"Inertia is ahead of both rivals on {both.sum()} runs, clearly on {clear.sum()}; of "
        f"neither on {neither.sum()}. The posterior says that the run oscillates (probability of a "
        f"damping ratio below 1 above .95) on {(frame['oscillatory'] > 0.95).sum()} runs.",
        "",
    ]
    return lines, frame


def weights_of(items: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One row a run, cut and model: score inside the part, and weight in the stack."""
    return pd.DataFrame(
        [
            {"run": item["run"], "fraction": item["fraction"], **row}
            for item in items
            for row in item.get("scores", [])
        ]
    )


def save(path: Path, frame: pd.DataFrame) -> None:
    text = frame.map(lambda v: f"{v:.5g}" if isinstance(v, float) else v)
    write_csv(path, text.to_dict("records"))


def report(items: Sequence[dict[str, Any]]) -> str:
    """Write the tables, and return the page."""
    frame = forecast_rows(items)
    inertia, wholes = inertia_page(items)
    weights = weights_of(items)
    status = pd.DataFrame(items).drop_duplicates("run")["status"].value_counts().to_dict()
    lines = [
        "# Variants and their stack on public runs",
        "",
        f"Logs: {', '.join(f'{count} {name}' for name, count in sorted(status.items()))} (short: "
        f"under {LEAST_ROWS} rewarded rows). {DRAWS['chains']} chains x ({DRAWS['tune']} + "
        f"{DRAWS['draws']}) draws for every fit. Ratios are to {LAST!r}.",
        "",
    ]
    if len(frame):
        save(RESULTS / "variants.csv", frame.drop(columns="family"))
        save(RESULTS / "variants_weights.csv", weights)
        lines += forecast_page(frame) + against_best(frame)
        mean = weights.groupby(["model", "fraction"])["weight"].mean().unstack()
        mean = mean.sort_values(mean.columns[-1], ascending=False)
        rows = [
            {"model": m, **{f"{c:.0%}": f"{v:.3f}" for c, v in r.items()}}
            for m, r in mean.iterrows()
        ]
        lines += ["## Mean weight in the stack, by cut", "", table(rows), ""]
    if len(wholes):
        save(RESULTS / "variants_whole.csv", wholes.drop(columns=["family", "status", "fraction"]))
        lines += inertia
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "numpyro", "numpy"))
    return "\n".join([*lines, packages, ""])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("BAYES_GRPO_RUNS") or ROOT.parent / "shared" / "runs"
    parser.add_argument("--runs", type=Path, default=Path(default), help="folder that holds tidy/")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--stride", type=int, default=1, help="take every n-th log only")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted study")
    parser.add_argument(
        "--so-far", action="store_true", help="report an unfinished study, and stop"
    )
    chosen = parser.parse_args()
    folder = chosen.runs / "tidy" if (chosen.runs / "tidy").is_dir() else chosen.runs
    paths = sorted(folder.glob("*.csv"))[:: chosen.stride]
    if not paths:
        print(
            "Skipped: no public training logs. They are looked for in ../shared/runs/tidy, beside "
            "the repository; name another folder with --runs or the variable BAYES_GRPO_RUNS."
        )
        return 0
    from bayes_grpo import load_model

    settings = {"draws": DRAWS, "models": {name: load_model(name).text for name in MODELS}}
    done = Partial(RESULTS / "variants.partial.jsonl", settings, chosen.resume or chosen.so_far)
    if not chosen.so_far:
        known = {(item["run"], item["fraction"]) for item in done.items}
        # In a mixed order, so that a study cut short is still a fair sample; the longest log last.
        mixed = [paths[i] for i in np.random.default_rng(0).permutation(len(paths))]
        mixed.sort(key=lambda path: path.stat().st_size > LONG_LOG)
        # Cut by cut within a batch of runs: most are as long as each other and share programs.
        batches = [mixed[k : k + BATCH] for k in range(0, len(mixed), BATCH)]
        todo = [(p, f) for b in batches for f in (0.5, 0.25, 0.75, 1.0) for p in b]
        todo = [(path, f) for path, f in todo if (path.stem, f) not in known]
        progress = Progress(len(todo), "variants")
        with ProcessPoolExecutor(
            chosen.jobs, mp_context=get_context("spawn"), max_tasks_per_child=BATCH
        ) as pool:
            for future in as_completed([pool.submit(evaluate, task) for task in todo]):
                item = future.result()
                done.add(item)
                progress.step(f"{item['run']} {item['fraction']:g} {item['status']}")
    page = report(sorted(done.items, key=lambda item: (item["run"], item["fraction"])))
    write_text(RESULTS / "variants.md", page)
    if not chosen.so_far:
        done.done()
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
