"""The commands ``bayes-grpo simulate ...``: logs whose truth is known."""

import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from bayes_grpo.errors import InputError

# Commands that live beside their simulator: each module offers add_command(group).
_ELSEWHERE = {"policy": "bayes_grpo.simulate.policy"}


class Simulators(click.Group):
    """A group that loads the commands of other modules only when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of all commands."""
        there = [name for name, module in _ELSEWHERE.items() if find_spec(module)]
        return sorted({*super().list_commands(ctx), *there})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command by its name, loading its module if need be."""
        module = _ELSEWHERE.get(cmd_name)
        if module and cmd_name not in self.commands and find_spec(module):
            import_module(module).add_command(self)
        return super().get_command(ctx, cmd_name)


@click.group(cls=Simulators)
def simulate() -> None:
    """Write the log of a simulated training run, whose truth is known."""


def numbers(text: str) -> tuple[float, ...]:
    """Read numbers with commas between them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"'{text}' is not a list of numbers such as 1,0") from None


def assignment(text: str) -> tuple[str, Any]:
    """Split ``plateau=0.8``; the value is a number or a list where it reads as one."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f"'{text}' is not of the form plateau=0.8")
    for read in (int, float, json.loads):
        try:
            return name, read(value)
        except ValueError:
            continue
    return name, value


_OUT = click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Log to write (JSON lines).",
)
_SEED = click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of everything random."
)


def _number(name: str, default: float, text: str, kind: Any = float) -> Callable[[Any], Any]:
    return click.option(f"--{name}", type=kind, default=default, show_default=True, help=text)


def _choice(name: str, choices: tuple[str, ...], text: str) -> Callable[[Any], Any]:
    kind = click.Choice(choices)
    return click.option(f"--{name}", type=kind, default=choices[0], show_default=True, help=text)


@simulate.command()
@_number("updates", 300, "Optimizer updates, one row each.", click.IntRange(2))
@click.option(
    "--success",
    type=numbers,
    default="1,0",
    show_default=True,
    help="Probability of a reward for each arm.",
)
@click.option("--initial-logits", type=numbers, help="Start of the policy; else the reference.")
@click.option("--reference-logits", type=numbers, help="Reference policy; else uniform.")
@_number("learning-rate", 0.05, "Learning rate.")
@_number("momentum", 0.9, "Heavy-ball momentum of SGD, or Adam's beta1.")
@_number("kl-weight", 2.0, "Weight of the penalty on the divergence from the reference.")
@_number("group-size", 8, "Rollouts of a group.", click.IntRange(2))
@click.option("--exact", is_flag=True, help="Infinite groups: the exact drift, without noise.")
@_number("prompts-per-step", 16, "Groups of an update.", click.IntRange(1))
@_number("refresh-interval", 1, "Updates between two refreshes of the sampler.", click.IntRange(1))
@_number("lag", 0, "Updates by which the sampler is always behind.", click.IntRange(0))
@_choice("normalisation", ("std", "mean"), "Advantages over the group's deviation, or centred.")
@_choice("optimizer", ("sgd", "adam"), "Optimizer.")
@_choice("ratio", ("clipped", "unclipped", "none"), "Importance ratios of the loss.")
@_choice("stale-force", ("reward", "all"), "What is evaluated at the sampler: 'all' adds the KL.")
@_number("clip", 0.2, "Half-width of the clip range.")
@_SEED
@_OUT
def bandit(updates: int, exact: bool, seed: int, out: Path, **options: Any) -> None:
    """GRPO on a softmax bandit, with its plateau and curvature in closed form.

    Prints both where they exist: SGD, and a KL weight that is large enough.
    """
    from bayes_grpo.simulate.bandit import Bandit, simulate_bandit
    from bayes_grpo.simulate.equilibrium import curvature
    from bayes_grpo.simulate.log import write_log

    _check_out(out)
    if exact:
        options["group_size"] = None
    if options["lag"] > 0:
        if options["refresh_interval"] > 1:
            raise InputError(
                f"--lag {options['lag']} and --refresh-interval {options['refresh_interval']}: "
                "expected one of them, the sampler is constantly behind or held and refreshed"
            )
        options["lag_pattern"] = "constant"
    settings = Bandit(**options)
    table = simulate_bandit(settings, updates, seed).table()
    table["learning_rate"] = options["learning_rate"]
    write_log(table, out, {**settings.settings(), "max_steps": updates})
    click.echo(f"{updates} rows written to {out}")
    try:
        end = curvature(settings)
    except InputError as error:
        click.echo(f"no closed form: {error}")
        return
    click.echo(f"closed form: plateau {end.plateau:.4g}, curvature {end.curvature:.4g}")


@simulate.command()
@click.option(
    "--model",
    default="oscillator",
    show_default=True,
    metavar="NAME|FILE",
    help="A shipped model ('bayes-grpo models'), or a model file of your own.",
)
@click.option(
    "--set",
    "assignments",
    type=assignment,
    multiple=True,
    metavar="NAME=VALUE",
    help="Parameter of the model or setting of the run, such as plateau=0.8 or momentum=0.9; may "
    "be repeated. Parameters that are not set are drawn from their priors.",
)
@_number("rows", 300, "Rows of the log.", click.IntRange(2))
@_SEED
@_OUT
def model(model: str, assignments: tuple[tuple[str, Any], ...], rows: int, **options: Any) -> None:
    """Draw a run from a model: from given parameters, or from its priors.

    Prints the parameters that the run was drawn from.
    """
    from bayes_grpo.settings import Settings
    from bayes_grpo.simulate.generator import simulate_model
    from bayes_grpo.simulate.log import write_log

    out: Path = options["out"]
    _check_out(out)
    names = Settings.names()
    settings = {name: value for name, value in assignments if name in names}
    parameters = {name: value for name, value in assignments if name not in names}
    found = simulate_model(
        model, parameters, n_rows=rows, seed=options["seed"], name=out.stem, **settings
    )
    planned = {"max_steps": found.run.settings.max_steps}
    columns = [c for c in ("step", "reward", "learning_rate") if c in found.run.table.columns]
    write_log(found.run.table[columns], out, {**planned, **settings})
    click.echo(f"{len(found.run)} rows written to {out}")
    for name, value in found.parameters.items():
        click.echo(f"  {name} {value:.6g}")


def _check_out(out: Path) -> None:
    """Refuse a place that cannot be written to before the work is done."""
    from bayes_grpo.terminal import check_folder

    check_folder(out.parent)
