"""Forecasts of real runs: is the second half of a log where its first half said it would be?

    python benchmarks/forecast.py --model oscillator

Two claims are put to the test on every public log of the folder ``../shared/runs/tidy`` (elsewhere:
``--runs`` or the variable BAYES_GRPO_RUNS; the logs are not part of this repository):

1. A log is fitted, or refused with one clear line.  Every run is fitted as a whole, with fewer
   draws; no exception but `InputError`, and no NaN in its summary or in its forecast to the planned
   end, which is guessed.
2. Forecasts are honest and worth something.  Each run of at least 40 rewarded rows is fitted up to
   the middle of its rewarded rows, with the same settings for all of them, and its later rows are
   compared with the forecast: share of rows in the 50 % and 90 % bands, and the continuous ranked
   probability score (CRPS) against that of "last value", a normal distribution with mean and
   standard deviation of the last fifth of the first half.

A run's score is (CRPS + .02 sd) / (CRPS of last value + .02 sd), sd being that of the whole run, so
that a run without noise does not decide; the geometric mean over runs is the result.  Many runs are
repetitions of one experiment: means over families (runs whose names begin with the same three
words) let each experiment count once, and standard errors come from resampling families.

The log is not told how long it will be: it is taken as half of the plan, which is right here by
construction.  ``--fraction`` moves the cut, and with it makes that guess wrong.

Written to benchmarks/results: ``forecast_MODEL.csv`` (numbers of every run) and ``.md`` (tables).
Exit status 1 if a run is neither fitted nor refused properly, or if a target is missed.
"""

import argparse
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from reporting import RESULTS, table, write_csv, write_text
from resumable import Partial, Progress
from scipy.stats import norm

ROOT = Path(__file__).resolve().parent.parent
LEAST_ROWS = 40
LONG_RUN = 2_500
"""Rewarded rows from which on a run gets fewer draws: a gradient takes as long as its run."""

FULL = {"chains": 4, "tune": 1000, "draws": 1000}
QUICK = {"chains": 2, "tune": 500, "draws": 500}
LEAST = {"chains": 2, "tune": 300, "draws": 300}
SCORE_FLOOR = 0.02

TARGETS = {"score": (0.0, 0.97), "inside90": (0.87, 0.93), "inside50": (0.45, 0.57)}


def crps_normal(mean: float, sd: float, found: np.ndarray) -> np.ndarray:
    """CRPS of a normal distribution (Gneiting & Raftery 2007), shape (rows,)."""
    sd = max(sd, 1e-9)
    z = (found - mean) / sd
    return sd * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))


def family(name: str) -> str:
    """Runs of one experiment share the first three words of their names, seeds left out."""
    return "-".join(re.sub(r"-seed\d.*", "", name).split("-")[:3])


def quiet_fit(run: Any, model: str, draws: dict[str, int]) -> tuple[Any, float]:
    """Fit without warnings of non-convergence (it is counted), and its seconds."""
    import bayes_grpo

    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bayes_grpo.ConvergenceWarning)
        made = bayes_grpo.fit(run, model=model, seed=0, progress=False, **draws)
    return made, time.perf_counter() - begin


def quality(made: Any, seconds: float) -> dict[str, Any]:
    convergence = made.convergence
    return {
        "converged": bool(convergence.converged),
        "r_hat": convergence.r_hat,
        "ess": convergence.ess,
        "divergences": int(made.idata["sample_stats"]["diverging"].sum()),
        "leapfrog_steps": float(made.idata["sample_stats"]["n_steps"].mean()),
        "seconds": seconds,
    }


def check_finite(made: Any) -> None:
    """Raise if the summary or the forecast to the planned end holds a NaN."""
    summary = made.summary().drop(columns="unit")
    varies = summary["sd"] > 0  # a constant (momentum is known) has no effective sample size
    if not np.isfinite(summary[varies].to_numpy(dtype=float)).all():
        raise FloatingPointError(f"NaN in the summary: {summary.to_dict()}")
    if not np.isfinite(summary.drop(columns=["ess", "r_hat"]).to_numpy(dtype=float)).all():
        raise FloatingPointError(f"NaN in the summary: {summary.to_dict()}")
    if not np.isfinite(made.forecast().to_numpy(dtype=float)).all():
        raise FloatingPointError("NaN in the forecast to the planned end")


def second_half(full: Any, model: str, draws: dict[str, int], fraction: float) -> dict[str, Any]:
    """Scores of the forecast of the later rewarded rows of a run from its earlier ones."""
    from bayes_grpo.scores import crps

    rewarded = full.table[full.table["reward"].notna()]
    steps, reward = rewarded["step"].to_numpy(), rewarded["reward"].to_numpy()
    count = int(len(rewarded) * fraction)
    made, seconds = quiet_fit(full.until(int(steps[count - 1])), model, draws)
    _, observed = made.forecast_draws(steps[count:])
    if not np.isfinite(observed).all():
        raise FloatingPointError("NaN in the forecast of the second half")
    found = reward[count:]
    q05, q25, q75, q95 = np.quantile(observed, (0.05, 0.25, 0.75, 0.95), axis=0)
    last = reward[count - max(2, count // 5) : count]
    ours = float(crps(observed, found).mean())
    theirs = float(crps_normal(last.mean(), last.std(ddof=1), found).mean())
    sd = float(reward.std())
    return {
        "forecast_rows": len(found),
        "inside90": float(((found >= q05) & (found <= q95)).mean()),
        "inside50": float(((found >= q25) & (found <= q75)).mean()),
        "crps": ours,
        "crps_last_value": theirs,
        "sd": sd,
        "score": (ours + SCORE_FLOOR * sd) / (theirs + SCORE_FLOOR * sd),
        "bias": float((found.mean() - observed.mean()) / sd),
        **quality(made, seconds),
    }


def evaluate(path: Path, model: str, draws: dict[str, int], fraction: float) -> dict[str, Any]:
    """Everything about one log; ``status`` is fitted, refused, or error (a fault of ours)."""
    import bayes_grpo

    name = path.stem
    result: dict[str, Any] = {"run": name, "family": family(name), "status": "fitted"}

    def attempt(stage: str, what: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return what()
        except bayes_grpo.InputError as error:
            status, message = "refused", str(error)
        except Exception as error:  # the claim is that there are none: count it and go on
            status, message = "error", f"{type(error).__name__}: {error}"
        if result["status"] != "error":
            result["status"] = status
        # Where the logs lie is nobody's business.
        told = message.replace(str(path), path.name)
        result["message"] = "; ".join(filter(None, [result.get("message"), f"{stage}: {told}"]))
        return None

    def whole() -> dict[str, Any]:
        made, seconds = quiet_fit(run, model, LEAST if long else QUICK)
        check_finite(made)
        return {f"whole_{key}": value for key, value in quality(made, seconds).items()}

    run: Any = None

    def read() -> dict[str, Any]:
        nonlocal run
        run = bayes_grpo.read_run(path)
        return {"rows": len(run), "rewarded_rows": int(run.table["reward"].notna().sum())}

    result.update(attempt("read", read) or {})
    if run is None:
        return result
    long = result["rewarded_rows"] >= LONG_RUN
    result.update(attempt("whole run", whole) or {})
    if result["rewarded_rows"] >= LEAST_ROWS:
        half = partial(second_half, run, model, QUICK if long else draws, fraction)
        result.update(attempt("first part", half) or {})
    return result


def bootstrap(frame: pd.DataFrame, value: Callable[[pd.DataFrame], float]) -> float:
    """Standard error of a number, families resampled with replacement."""
    groups = [group for _, group in frame.groupby("family")]
    rng = np.random.default_rng(0)
    again = [
        value(pd.concat([groups[i] for i in rng.integers(0, len(groups), len(groups))]))
        for _ in range(500)
    ]
    return float(np.std(again))


def by_family(frame: pd.DataFrame) -> pd.DataFrame:
    """Means of each family, geometric for the score."""
    found = frame.assign(log_score=np.log(frame["score"])).groupby("family")
    means = found[["log_score", "inside90", "inside50"]].mean()
    means["score"] = np.exp(means.pop("log_score"))
    return means.assign(runs=found.size(), rows=found["forecast_rows"].sum()).reset_index()


def overall(frame: pd.DataFrame) -> list[tuple[str, str, float, float, bool]]:
    """Label, what it is an average over, value, standard error, whether it is in its target."""

    def score(rows: pd.DataFrame) -> float:
        return float(np.exp(np.log(rows["score"]).mean()))

    families = by_family(frame)
    found = [
        ("score", "runs", score(frame), bootstrap(frame, score)),
        ("score", "families", score(families), bootstrap(families, score)),
    ]
    for name in ("inside90", "inside50"):

        def pooled(rows: pd.DataFrame, name: str = name) -> float:
            return float(np.average(rows[name], weights=rows["forecast_rows"]))

        def mean(rows: pd.DataFrame, name: str = name) -> float:
            return float(rows[name].mean())

        found.append((name, "rows", pooled(frame), bootstrap(frame, pooled)))
        found.append((name, "runs", mean(frame), bootstrap(frame, mean)))
        found.append((name, "families", mean(families), bootstrap(families, mean)))
    return [
        (name, over, value, error, TARGETS[name][0] <= value <= TARGETS[name][1])
        for name, over, value, error in found
    ]


LABELS = {
    "score": "CRPS relative to last value, geometric mean",
    "inside90": "rows inside the 90 % band",
    "inside50": "rows inside the 50 % band",
}


def report(model: str, frame: pd.DataFrame, settings: dict[str, Any]) -> tuple[str, bool]:
    """The result as a Markdown page, and whether everything is as it should be."""
    if "message" not in frame:
        frame = frame.assign(message="")
    if "score" not in frame:
        frame = frame.assign(score=np.nan)
    count = frame["status"].value_counts()
    forecast = frame[frame["score"].notna()]
    short = frame[(frame["status"] == "fitted") & frame["score"].isna()]
    errors = frame[frame["status"] == "error"]
    refused = frame[frame["status"] == "refused"]
    lines = [
        f"# Forecasts of public runs by `{model}`",
        "",
        f"{len(frame)} logs: {count.get('fitted', 0)} fitted, {count.get('refused', 0)} refused, "
        f"{count.get('error', 0)} errors. {len(forecast)} forecast, {len(short)} too short for it "
        f"(under {LEAST_ROWS} rewarded rows; fitted as a whole).",
    ]
    fine = errors.empty
    if len(forecast):
        results = overall(forecast)
        # The targets are on runs and rows; families are told beside them.
        fine &= all(hit for _, over, _, _, hit in results if over != "families")
        rows = [
            {
                "quantity": LABELS[name],
                "average over": over,
                "value": f"{value:.3f}",
                "standard error": f"{error:.3f}",
                "target": "{} to {}".format(*TARGETS[name])
                if TARGETS[name][0]
                else f"<= {TARGETS[name][1]}",
                "met": "yes" if hit else "no",
            }
            for name, over, value, error, hit in results
        ]
        used = settings["draws"]
        lines += [
            "",
            f"Forecast from the first {settings['fraction']:.0%} of the rewarded rows, "
            f"{used['chains']} chains x ({used['tune']} + {used['draws']}) draws; standard errors "
            f"from resampling the {forecast['family'].nunique()} families.",
            "",
            table(rows),
            "",
            f"Not converged: {(~forecast['converged'].astype(bool)).sum()} of {len(forecast)} "
            f"(r_hat above 1.01: {(forecast['r_hat'] > 1.01).sum()}, ess below 400: "
            f"{(forecast['ess'] < 400).sum()}); divergent draws: "
            f"{forecast['divergences'].sum():.0f}; leapfrog steps a draw: mean "
            f"{forecast['leapfrog_steps'].mean():.1f}, largest "
            f"{forecast['leapfrog_steps'].max():.1f}; seconds a fit: median "
            f"{forecast['seconds'].median():.1f}, largest {forecast['seconds'].max():.1f}.",
        ]
    if "whole_seconds" in frame:
        wholes = frame[frame["whole_seconds"].notna()]
        r_hat = wholes["whole_r_hat"]
        lines += [
            "",
            f"Whole runs, 2 chains x (500 + 500) draws (300 from {LONG_RUN:,} rows on): "
            f"{len(wholes)} fitted without a NaN; r_hat above 1.01: {(r_hat > 1.01).sum()}, "
            f"largest {r_hat.max():.3f}; divergent draws: "
            f"{wholes['whole_divergences'].sum():.0f}; longest: "
            f"{wholes['whole_seconds'].max():.1f} s.",
        ]
    if len(forecast):
        rows = [
            {
                "family": row.family,
                "runs": row.runs,
                "score": f"{row.score:.3f}",
                "inside 90 %": f"{row.inside90:.2f}",
                "inside 50 %": f"{row.inside50:.2f}",
            }
            for row in by_family(forecast).itertuples()
        ]
        lines += ["", "## Families", "", table(rows)]
    for title, chosen in (("Refused", refused), ("Errors", errors)):
        if len(chosen):
            lines += ["", f"## {title}", ""]
            lines += [f"- `{row.run}`: {row.message}" for row in chosen.itertuples()]
    packages = ", ".join(f"{name} {version(name)}" for name in ("jax", "numpyro", "numpy"))
    return "\n".join([*lines, "", packages, ""]), bool(fine)


def results_of(
    work: Callable[[Path], dict[str, Any]], paths: Sequence[Path], jobs: int
) -> Iterator[dict[str, Any]]:
    if jobs == 1:
        yield from map(work, paths)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(work, path) for path in paths]):
            yield future.result()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("BAYES_GRPO_RUNS") or ROOT.parent / "shared" / "runs"
    parser.add_argument("--model", default="oscillator", help="name or file of a model")
    parser.add_argument("--runs", type=Path, default=Path(default), help="folder that holds tidy/")
    parser.add_argument("--quick", action="store_true", help="2 chains x (500 + 500) draws")
    parser.add_argument("--stride", type=int, default=1, help="take every n-th log only")
    parser.add_argument("--fraction", type=float, default=0.5, help="of the rows that is fitted")
    parser.add_argument("--jobs", type=int, default=1, help="processes (each runs its chains)")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted study")
    chosen = parser.parse_args()
    if not 0.1 <= chosen.fraction <= 0.9:
        parser.error("--fraction: expected a number from 0.1 to 0.9")
    folder = chosen.runs / "tidy" if (chosen.runs / "tidy").is_dir() else chosen.runs
    paths = sorted(folder.glob("*.csv"))[:: chosen.stride]
    if not paths:
        print(
            "Skipped: no public training logs. They are looked for in ../shared/runs/tidy, beside "
            "the repository; name another folder with --runs or the variable BAYES_GRPO_RUNS."
        )
        return 0

    from bayes_grpo import load_model

    model = load_model(chosen.model)
    name = f"forecast_{model.name}"
    if chosen.fraction != 0.5:
        name += f"_{chosen.fraction:g}"
    settings = {
        "model": model.text,
        "draws": QUICK if chosen.quick else FULL,
        "fraction": chosen.fraction,
    }
    done = Partial(RESULTS / f"{name}.partial.jsonl", settings, chosen.resume)
    wanted = {path.stem for path in paths}
    known = {item["run"] for item in done.items}
    todo = [path for path in paths if path.stem not in known]
    progress = Progress(len(todo), name)
    work = partial(evaluate, model=chosen.model, draws=settings["draws"], fraction=chosen.fraction)
    for item in results_of(work, todo, chosen.jobs):
        done.add(item)
        progress.step(f"{item['run']} {item['status']}")

    frame = pd.DataFrame([item for item in done.items if item["run"] in wanted])
    frame = frame.sort_values("run", ignore_index=True)
    page, fine = report(model.name, frame, settings)
    numbers = frame.drop(columns="message", errors="ignore").astype(object)
    rounded = numbers.map(lambda v: "" if pd.isna(v) else f"{v:.5g}" if isinstance(v, float) else v)
    write_csv(RESULTS / f"{name}.csv", rounded.to_dict("records"))
    write_text(RESULTS / f"{name}.md", page)
    done.done()
    print(page)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
