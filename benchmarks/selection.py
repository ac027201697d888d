"""Does `compare` find the model that made a run, and does it keep quiet where it cannot?

    python benchmarks/selection.py

Each of several models makes runs whose curve differs from the others' by more than noise (the
oscillator overshoots, the bandit curve starts slowly and ends late, the random walk wanders);
candidates are fitted to each run, and the one that `bayes_grpo.compare` puts first is counted.  The
last set of runs is flat: a level and noise, the same under every mean curve, so that stacking
weights should be near equal.

Written to benchmarks/results: ``selection.csv`` (every run) and ``selection.md``.  Exit status 1 if
a generating model is picked in less than 80 % of its runs.
"""

import argparse
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd
from reporting import RESULTS, circumstances, table, write_csv, write_text
from resumable import Partial, Progress

CANDIDATES = ("oscillator", "exponential", "rate_or_fate", "local_level")
NOISE = {"sampling_sd": 0.04, "fluctuation_sd": 0.005, "drift_sd": 0.005}
LEVELS = {"initial_reward": 0.1, "plateau": 0.8}
MADE: dict[str, tuple[str, dict[str, float]]] = {
    "oscillator": (
        "oscillator",
        {**LEVELS, **NOISE, "relaxation_time": 20.0, "damping_ratio": 0.5},
    ),
    "exponential": ("exponential", {**LEVELS, **NOISE, "relaxation_time": 50.0}),
    "rate_or_fate": (
        "rate_or_fate",
        {**LEVELS, **NOISE, "relaxation_time": 80.0, "initial_success": 0.06},
    ),
    "local_level": (
        "local_level",
        {"initial_reward": 0.4, "drift_sd": 0.6, "sampling_sd": 0.04},
    ),
    "flat": ("exponential", {**NOISE, "initial_reward": 0.5, "plateau": 0.5}),
}
"""Model and parameters of each set of runs, in reward and in updates."""

ROWS = 200
DRAWS = {"chains": 2, "tune": 500, "draws": 500}
TARGET = 0.8


def one(task: tuple[str, int]) -> dict[str, Any]:
    """Make a run, fit every candidate, and compare."""
    import bayes_grpo
    from bayes_grpo.compilation import keep_compiled
    from bayes_grpo.simulate.generator import simulate_model

    keep_compiled()
    name, number = task
    model, parameters = MADE[name]
    made = simulate_model(model, parameters, n_rows=ROWS, seed=1000 + number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = [
            bayes_grpo.fit(made.run, m, seed=number, progress=False, **DRAWS) for m in CANDIDATES
        ]
    found = bayes_grpo.compare(fits)
    second = found.iloc[1]
    return {
        "made by": name,
        "number": number,
        "picked": str(found.index[0]),
        "ahead by": float(second["difference"]),
        "se": float(second["difference_se"]),
        **{f"weight {m}": float(found.loc[m, "weight"]) for m in CANDIDATES},
        "converged": bool(found["converged"].all()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=50, help="of each set")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted study")
    chosen = parser.parse_args()
    settings = {"made": {n: list(m) for n, m in MADE.items()}, "rows": ROWS, "draws": DRAWS}
    done = Partial(RESULTS / "selection.partial.jsonl", settings, chosen.resume)
    known = {(item["made by"], item["number"]) for item in done.items}
    tasks = [(n, k) for k in range(chosen.runs) for n in MADE if (n, k) not in known]
    progress = Progress(len(tasks), "selection")
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(one, task) for task in tasks]):
            item = future.result()
            done.add(item)
            progress.step(f"{item['made by']}: {item['picked']}")
    frame = pd.DataFrame(done.items).sort_values(["made by", "number"], ignore_index=True)
    rows, missed = [], []
    for name, part in frame.groupby("made by", sort=False):
        share = float(np.mean(part["picked"] == name))
        if name != "flat" and share < TARGET:
            missed.append(name)
        weights = part[[f"weight {m}" for m in CANDIDATES]].mean()
        rows.append(
            {
                "made by": name,
                "runs": len(part),
                "picked": "" if name == "flat" else f"{share:.0%}",
                "ahead of the second by (median)": f"{part['ahead by'].median():.1f}",
                "clearly (2 se)": f"{np.mean(part['ahead by'] > 2 * part['se']):.0%}",
                **{
                    f"mean weight of {m}": f"{w:.2f}"
                    for m, w in zip(CANDIDATES, weights, strict=True)
                },
                "not converged": int((~part["converged"]).sum()),
            }
        )
    page = "\n".join(
        [
            "# Is the generating model picked?",
            "",
            f"{ROWS} rows a run, four candidates, {DRAWS['chains']} chains x ({DRAWS['tune']} + "
            f"{DRAWS['draws']}) draws a fit.",
            "",
            table(rows),
            "",
            f"**{'FAIL: ' + ', '.join(missed) if missed else 'Pass'}**: picked in at least "
            f"{TARGET:.0%} of the runs of every generating model.",
            "",
            circumstances(),
            "",
        ]
    )
    text = frame.map(lambda v: f"{v:.4g}" if isinstance(v, float) else v)
    write_csv(RESULTS / "selection.csv", text.to_dict("records"))
    write_text(RESULTS / "selection.md", page)
    done.done()
    print(page)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
