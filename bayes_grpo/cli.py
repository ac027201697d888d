"""The command ``bayes-grpo``: fit logs, forecast, judge stability, list models.

Exit status: 0 done, 2 bad input (one line on standard error), 3 sampling did not converge, 130
stopped by Ctrl-C. JAX, ArviZ and matplotlib are imported inside the commands, so that ``--help``
answers at once.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from bayes_grpo import __version__
from bayes_grpo.cli_compare import compare
from bayes_grpo.cli_options import (
    BAD_INPUT,
    JSON,
    MODEL,
    NOT_CONVERGED,
    QUIET,
    SAMPLING,
    SEGMENTS,
    SETTINGS,
    given,
    options,
    plan_of,
)
from bayes_grpo.cli_simulate import simulate
from bayes_grpo.complaint import complain
from bayes_grpo.errors import BayesGrpoError, InputError

INTERRUPTED = 130


class Commands(click.Group):
    """A group of commands that ends in one of the exit statuses above, never in a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command, turning every expected error into one line and a status."""
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        sys.exit(_status(run))


def _status(run: Callable[[], Any]) -> int:
    try:
        status: Any = run()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "bayes-grpo"
        complain(f"{error.format_message()} See '{where} --help'.")
        return BAD_INPUT
    except click.ClickException as error:
        complain(error.format_message())
        return BAD_INPUT
    except BayesGrpoError as error:
        complain(str(error))
        return BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return INTERRUPTED
    return status if isinstance(status, int) else 0


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bayes-grpo")
def main() -> None:
    """Tell where the reward of a GRPO run will level off, when, and how sure that is."""


@main.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@options(*SETTINGS, MODEL, *SAMPLING)
@click.option(
    "--horizon",
    type=int,
    metavar="STEP",
    help="Step up to which the run is planned and forecast; else --max-steps, else what the log "
    "says, else twice its length.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out"),
    show_default=True,
    metavar="DIR",
    help="Folder of the results; several runs get one subfolder each.",
)
@JSON
@QUIET
def fit(logs: tuple[str, ...], out: Path, as_json: bool, quiet: bool, **chosen: Any) -> int:
    """Fit training logs: where the reward levels off, when, and how sure that is.

    A LOG is a file (TRL's trainer_state.json, JSON, JSON lines, CSV), an output folder of TRL, a
    folder of logs, or a pattern. Writes forecast.png, fit.nc, summary.csv and forecast.csv.
    """
    from bayes_grpo import commands, terminal

    plan = plan_of(chosen)
    report = terminal.Report(as_json=as_json, quiet=quiet)
    terminal.check_folder(out)
    runs = terminal.read_all(logs, plan.settings, report)
    several = len(runs) > 1 or len(logs) > 1
    folders = terminal.folders(out, runs) if several else [out]
    for run, folder in zip(runs, folders, strict=False):
        commands.fit_one(run, folder, plan, report, brief=several)
    report.print_json({"runs": report.records, "errors": report.errors})
    return BAD_INPUT if report.errors else NOT_CONVERGED if report.doubtful else 0


@main.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@options(*SETTINGS)
@SEGMENTS
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="TABLE.CSV",
    help="Write the table as it was understood; several runs get a column 'run'.",
)
@JSON
@QUIET
def inspect(
    logs: tuple[str, ...],
    segments: Any,
    to: Path | None,
    as_json: bool,
    quiet: bool,
    **chosen: Any,
) -> int:
    """Show what a log holds: trainer, columns, settings with their origin, and what is missing."""
    from bayes_grpo import terminal
    from bayes_grpo.settings import Settings

    if to is not None and to.suffix != ".csv":
        raise InputError(f"{to}: unknown kind of output '{to.suffix}': expected .csv")
    settings = {name: value for name, value in chosen.items() if value is not None}
    Settings(settings)
    report = terminal.Report(as_json=as_json, quiet=quiet)
    terminal.inspect_logs(logs, settings, segments, to, report)
    report.print_json({"runs": report.records, "errors": report.errors})
    return BAD_INPUT if report.errors else 0


@main.command()
@click.argument("source", metavar="LOG|FIT.NC")
@options(*SETTINGS, MODEL, *SAMPLING)
@click.option("--horizon", type=int, metavar="STEP", help="Last step; else the planned one.")
@click.option(
    "--kind",
    type=click.Choice(["observed", "mean"]),
    default="observed",
    show_default=True,
    help="The reward that a row will show, or the reward without sampling noise.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write a .csv or a .png."
)
@JSON
@QUIET
def forecast(
    source: str, out: Path | None, kind: str, as_json: bool, quiet: bool, **chosen: Any
) -> int:
    """Forecast a run beyond its log, from the log or from a saved fit."""
    from bayes_grpo import commands, terminal

    if out is not None and out.suffix not in (".csv", ".png"):
        raise InputError(f"{out}: unknown kind of output '{out.suffix}': expected .csv or .png")
    report = terminal.Report(as_json=as_json, quiet=quiet)
    plan = plan_of(chosen)
    done = commands.fit_or_load(source, plan, given(chosen), report)
    commands.write_forecast(done, out, kind, plan.horizon, report)
    return 0 if done.convergence.converged else NOT_CONVERGED


@main.command()
@click.argument("source", metavar="LOG|FIT.NC")
@options(*SETTINGS, MODEL, *SAMPLING)
@click.option(
    "--curvature",
    type=float,
    nargs=2,
    metavar="MEAN SD",
    help="Curvature per unit learning rate, measured independently of this run.",
)
@click.option(
    "--level",
    type=float,
    default=0.05,
    show_default=True,
    help="Probability of failure that is accepted.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write a .png, .csv or .json."
)
@JSON
@QUIET
def stability(
    source: str,
    curvature: tuple[float, float] | None,
    level: float,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **chosen: Any,
) -> int:
    """Tell how stale the sampler of a run may be before the reward oscillates or diverges.

    From a log or a saved fit. Where the run cannot tell, because it shows no oscillation, that is
    said instead of a margin.
    """
    from bayes_grpo import commands, terminal
    from bayes_grpo.commands_stability import write_stability

    if out is not None and out.suffix not in (".png", ".csv", ".json"):
        raise InputError(
            f"{out}: unknown kind of output '{out.suffix}': expected .png, .csv or .json"
        )
    if not 0 < level < 1:
        raise InputError(f"--level is {level}: expected a number between 0 and 1")
    report = terminal.Report(as_json=as_json, quiet=quiet)
    plan = plan_of({**chosen, "horizon": None})
    done = commands.fit_or_load(source, plan, given(chosen), report)
    write_stability(done, out, report, level=level, curvature=curvature)
    return 0 if done.convergence.converged else NOT_CONVERGED


@main.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print names and descriptions as JSON.")
def models(name: str | None, as_json: bool) -> None:
    """List the models that ship with the package, or print the file of one."""
    from bayes_grpo.model import available_models, load_model

    if name is not None:
        click.echo(load_model(name).text, nl=False)
        return
    known = available_models()
    if as_json:
        import json

        click.echo(json.dumps(known, indent=2))
        return
    width = max(map(len, known))
    for model, description in known.items():
        click.echo(f"{model.ljust(width)}  {description}")


main.add_command(compare)
main.add_command(simulate)

if __name__ == "__main__":
    main()
