"""The commands ``bayes-grpo simulate ...``: logs whose truth is known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bayes_grpo.errors import InputError


@click.group()
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


@simulate.command()
@_number("updates", 400, "Optimizer updates.", click.IntRange(2))
@_number("updates-per-row", 1, "Updates that a logged row is the mean of.", click.IntRange(1))
@_number("learning-rate", 0.6, "Learning rate; Adam wants one near 0.003.")
@_number("momentum", 0.9, "Momentum of SGD, or Adam's beta1.")
@_number("kl-weight", 0.8, "Weight of the penalty on the divergence from the reference.")
@_number("group-size", 8, "Rollouts of a prompt.", click.IntRange(2))
@_number("prompts-per-step", 32, "Prompts of an update.", click.IntRange(1))
@_number("refresh-interval", 1, "Updates between two refreshes of the sampler.", click.IntRange(1))
@_number("lag", 0, "Updates by which the sampler is always behind.", click.IntRange(0))
@_choice("normalisation", ("std", "mean"), "Advantages over the group's deviation, or centred.")
@_choice("ratio", ("clipped", "unclipped", "none"), "Importance ratios of the loss.")
@_number("clip", 0.2, "Half-width of the clip range.")
@_choice("stale-force", ("reward", "all"), "What is evaluated at the sampler: 'all' adds the KL.")
@_choice("optimizer", ("sgd", "adam"), "Optimizer.")
@_choice("momentum-convention", ("ema", "heavy_ball"), "Weight of a gradient in SGD's momentum.")
@click.option("--reuse", is_flag=True, help="Use the same rollouts until the next refresh.")
@_number("modulus", 11, "Prompts are 'a op b' modulo this number.", int)
@_number("unsolvable", 0.1, "Fraction of prompts that no answer solves.")
@_number("accuracy", 0.35, "Mean accuracy of the pretrained reference.")
@_number("task-seed", 0, "Seed of task and reference.", int)
@_number("seed", 0, "Seed of the rollouts.", click.IntRange(0))
@_OUT
def policy(out: Path, **options: Any) -> None:
    """GRPO on a small neural policy that learns arithmetic modulo a prime.

    Prompts are of unequal difficulty, some cannot be solved. The log has the columns of a trainer's
    and the exact expected reward of the policy.
    """
    from bayes_grpo.simulate.policy import PolicyRun, write_policy_log

    _check_out(out)
    table = write_policy_log(PolicyRun(**options), out)
    first, last = table["expected_reward"].iloc[[0, -1]]
    click.echo(
        f"{len(table)} rows written to {out}: expected reward {first:.3f} after row 1, "
        f"{last:.3f} at the end"
    )


def _check_out(out: Path) -> None:
    """Refuse a place that cannot be written to before the work is done."""
    from bayes_grpo.terminal import check_folder

    check_folder(out.parent)
