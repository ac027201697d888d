"""Options that several commands of the terminal share, and what becomes of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bayes_grpo.commands import Plan

BAD_INPUT = 2
NOT_CONVERGED = 3


def _setting(name: str, kind: Any, text: str, **extra: Any) -> Callable[[Any], Any]:
    return click.option(f"--{name}", type=kind, default=None, help=text, **extra)


# Range checks are left to Settings, which says what is wrong in the same words as the library.
SETTINGS = (
    _setting("group-size", int, "Completions sampled for one prompt."),
    _setting("prompts-per-step", int, "Prompts in one rollout batch."),
    _setting("momentum", float, "First-moment decay of the optimizer (Adam's beta1)."),
    _setting(
        "momentum-convention",
        click.Choice(["ema", "heavy_ball"]),
        "Whether the gradient enters the momentum with weight 1 - momentum (Adam) or 1 (SGD).",
    ),
    _setting("learning-rate", float, "Peak learning rate, the unit of the curvature."),
    _setting("refresh-interval", int, "Optimizer updates between two refreshes of the sampler."),
    _setting("lag", int, "Updates by which an asynchronous sampler is always behind."),
    _setting("updates-per-step", int, "Optimizer updates in one unit of the logged step."),
    _setting(
        "row-average",
        click.Choice(["window", "single"]),
        "Whether a row is the mean since the row before, or one rollout batch.",
    ),
    _setting(
        "reward-bounds",
        float,
        "Lowest and highest reward that can occur.",
        nargs=2,
        metavar="LOW HIGH",
    ),
    _setting("max-steps", int, "Planned last step of the training."),
)


def _number(name: str, least: int, default: int, text: str) -> Callable[[Any], Any]:
    kind = click.IntRange(least)
    return click.option(f"--{name}", type=kind, default=default, show_default=True, help=text)


MODEL = click.option(
    "--model",
    default="oscillator",
    show_default=True,
    metavar="NAME|FILE",
    help="A shipped model ('bayes-grpo models'), or a model file of your own.",
)
SAMPLING = (
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Seed of everything random."
    ),
    _number("chains", 1, 4, "Chains of NUTS."),
    _number("draws", 4, 1000, "Kept draws of each chain."),
    _number("tune", 0, 1000, "Warm-up draws of each chain."),
)


def options(*several: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give a command several options at once, in their order."""

    def add(command: Any) -> Any:
        for option in reversed(several):
            command = option(command)
        return command

    return add


SEGMENTS = click.option(
    "--segments",
    type=click.Choice(["auto", "split", "merge", "last"]),
    default="auto",
    show_default=True,
    help="Where the step counter runs back: tell restarts from further runs, or insist.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
QUIET = click.option("--quiet", is_flag=True, help="Print nothing but errors.")


def given(chosen: dict[str, Any]) -> list[str]:
    """Options on how to read and fit that were given: a saved fit refuses them."""
    context = click.get_current_context()
    return [
        name
        for name in chosen
        if name != "horizon"
        and context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    ]


def plan_of(chosen: dict[str, Any]) -> "Plan":
    """Sort the options, and check everything that needs no log."""
    from bayes_grpo.commands import Plan
    from bayes_grpo.settings import Settings

    names = set(Settings.names())
    settings = {n: v for n, v in chosen.items() if n in names and v is not None}
    sampling = {n: chosen[n] for n in ("seed", "chains", "draws", "tune")}
    return Plan.checked(settings, chosen["model"], chosen["horizon"], sampling)
