"""What ``bayes-grpo compare`` does once its arguments are read."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bayes_grpo.commands import Plan, fit_quietly, read_one
from bayes_grpo.compilation import keep_compiled
from bayes_grpo.export import write_picture
from bayes_grpo.files import write_whole
from bayes_grpo.outlook import last_forecast_step, number
from bayes_grpo.stacking import Stack, stack
from bayes_grpo.terminal import WIDTH, Report, check_folder, columns, writing

CLEAR = 2.0
"""Standard errors from which on a difference counts as clear."""


def compare_models(
    source: str,
    plans: Sequence[Plan],
    start: int | None,
    ahead: int,
    out: Path | None,
    report: Report,
) -> bool:
    """Fit several models to a log, compare and stack them; raises `InputError`.

    Parameters
    ----------
    source
        The log.
    plans
        How to fit each model.
    start, ahead
        As for `bayes_grpo.compare`.
    out
        Folder of the results; None: no files.
    report
        Where words and numbers go.

    Returns
    -------
    bool
        Whether all fits converged.
    """
    keep_compiled()
    if out is not None:
        check_folder(out)
    run = read_one(source, plans[0])
    fits = [fit_quietly(run, plan, plan.horizon, report) for plan in plans]
    mixture = stack(fits, start=start, ahead=ahead, seed=plans[0].sampling["seed"])
    table = mixture.comparison
    forecast = mixture.forecast(
        last_forecast_step(mixture, plans[0].horizon) - int(run.table["step"].iloc[-1])
    )
    if out is not None:
        with writing(out):
            write_whole(out / "comparison.csv", lambda at: table.to_csv(at))
            write_whole(out / "forecast.csv", lambda at: forecast.to_csv(at, index=False))
            write_picture(mixture, out / "forecast.png", plans[0].horizon)
    report.print_json(
        {
            "run": run.name,
            "source": run.source,
            "scored": table.attrs,
            "comparison": table.to_dict(orient="index"),
            "weights": mixture.weights.to_dict(),
            "forecast": forecast.to_dict(orient="list"),
            "in_words": f"{in_words(table)} {mixture.in_words()}",
        }
    )
    report.say("\n".join(describe(mixture)))
    if out is not None:
        report.say(f"\nwritten to {out}: comparison.csv, forecast.csv, forecast.png")
    return bool(table["converged"].all())


def describe(mixture: Stack) -> list[str]:
    """Lines on a comparison: table, verdict, forecast of the stack."""
    table = mixture.comparison
    scored = table.attrs
    rows: list[tuple[str, ...]] = [
        ("model", "elpd", "behind by (se)", "weight", "CRPS", "in 90 %", "refits, k", "")
    ]
    for name, row in table.iterrows():
        first = name == table.index[0]
        behind = f"{row['difference']:.1f} ({row['difference_se']:.1f})"
        rows.append(
            (
                str(name),
                f"{row['elpd']:.1f}",
                "" if first else behind,
                f"{row['weight']:.2f}",
                number(row["crps"]),
                f"{100 * row['inside90']:.0f} %",
                f"{row['refits']}, {row['pareto_k']:.2f}",
                "" if row["converged"] else "DID NOT CONVERGE",
            )
        )
    at_once = f" ({scored['ahead']} rows at once)" if scored["ahead"] > 1 else ""
    head = (
        f"{scored['run']}: {scored['rows']} rows from step {scored['first_step']} on, each "
        f"predicted from the rows before it{at_once}"
    )
    words = [in_words(table), mixture.in_words(), f"The stack: {mixture.convergence}."]
    return [head, *columns(rows), "", *textwrap.wrap(" ".join(words), WIDTH)]


def in_words(table: pd.DataFrame) -> str:
    """Say which models of a comparison can be told apart.

    Parameters
    ----------
    table
        From `bayes_grpo.compare`.

    Returns
    -------
    str
    """
    best, others = str(table.index[0]), table.iloc[1:]
    if others.empty:
        return f"{best} is the only model."
    clear = others["difference"] > CLEAR * others["difference_se"]
    alike, behind = list(others.index[~clear]), list(others.index[clear])
    if not behind:
        return f"{best} predicts best, but none can be told from it ({', '.join(alike)})."
    if not alike:
        return f"{best} predicts best, all others are clearly behind."
    return (
        f"{best} predicts best; it cannot be told from {', '.join(alike)}; clearly behind: "
        f"{', '.join(behind)}."
    )
