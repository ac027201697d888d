"""The command ``bayes-grpo compare``."""

from pathlib import Path
from typing import Any

import click

from bayes_grpo.cli_options import (
    JSON,
    NOT_CONVERGED,
    QUIET,
    SAMPLING,
    SETTINGS,
    options,
    plan_of,
)
from bayes_grpo.errors import InputError


@click.command()
@click.argument("log", metavar="LOG")
@click.option(
    "--models",
    default="oscillator,exponential,rate_or_fate,local_level",
    show_default=True,
    metavar="A,B,...",
    help="Shipped models or model files, separated by commas; 'all' for every shipped one.",
)
@options(*SETTINGS, *SAMPLING)
@click.option("--horizon", type=int, metavar="STEP", help="Last step; else the planned one.")
@click.option(
    "--start",
    type=click.IntRange(2),
    metavar="ROWS",
    help="Rows that the first prediction knows; else a tenth of them, at least 8.",
)
@click.option(
    "--ahead",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Rows that each predictive density is of.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write comparison.csv, and forecast.csv and forecast.png of the stack.",
)
@JSON
@QUIET
def compare(
    log: str,
    models: str,
    start: int | None,
    ahead: int,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **chosen: Any,
) -> int:
    """Compare models of one log by how well each predicts rows that it has not seen.

    Prints scores, differences with their standard errors and the weights of a stack of the
    models, and what the stack forecasts.
    """
    from bayes_grpo import terminal
    from bayes_grpo.commands_compare import compare_models
    from bayes_grpo.model import available_models

    names = [name.strip() for name in models.split(",") if name.strip()]
    if names == ["all"]:
        names = list(available_models())
    if not names:
        raise InputError(f"--models is {models!r}: expected names or files, separated by commas")
    plans = [plan_of({**chosen, "model": name}) for name in names]
    report = terminal.Report(as_json=as_json, quiet=quiet)
    converged = compare_models(log, plans, start, ahead, out, report)
    return 0 if converged else NOT_CONVERGED
