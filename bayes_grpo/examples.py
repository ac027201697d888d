"""The example runs that come with the package."""

import difflib
from typing import Any, Literal, overload

from bayes_grpo.errors import InputError
from bayes_grpo.readers import read_run
from bayes_grpo.resources import data_dir
from bayes_grpo.run import Run
from bayes_grpo.sweep import read_sweep

# Name -> file of data/, and the settings that its log does not tell.
_EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "gsm8k_like": (
        "gsm8k_like.json",
        {"group_size": 8, "prompts_per_step": 8, "momentum": 0.9, "reward_bounds": (0.0, 1.0)},
    ),
    "plain_table": (
        "plain_table.csv",
        {"group_size": 16, "prompts_per_step": 16, "momentum": 0.95, "reward_bounds": (0.0, 1.0)},
    ),
    "bandit_overdamped": ("bandit_overdamped.jsonl", {}),
    "bandit_oscillating": ("bandit_oscillating.jsonl", {}),
    "bandit_stale": ("bandit_stale.jsonl", {}),
}

# Examples of many runs, each a table with a line of settings.
_SWEEPS = {"sweep": "sweep.csv.gz"}


@overload
def load_example(name: Literal["sweep"], **settings: Any) -> list[Run]: ...
@overload
def load_example(
    name: Literal[
        "gsm8k_like", "plain_table", "bandit_overdamped", "bandit_oscillating", "bandit_stale"
    ] = "gsm8k_like",
    **settings: Any,
) -> Run: ...
@overload
def load_example(name: str, **settings: Any) -> Run | list[Run]: ...
def load_example(name: str = "gsm8k_like", **settings: Any) -> Run | list[Run]:
    """Load an example: synthetic, with known truth (``data/README.md``).

    Parameters
    ----------
    name
        ``"gsm8k_like"``: the log of a run stopped at 200 of 300 planned steps. ``"plain_table"``:
        a CSV of a run that overshoots and swings back. ``"bandit_overdamped"``,
        ``"bandit_oscillating"``, ``"bandit_stale"``: logs of a softmax bandit whose curvature and
        plateau are known, the last one near the threshold of its sampler. ``"sweep"``: 1,125
        runs of a small neural policy, the full grid of group size, momentum, refresh interval,
        learning rate and seed.
    **settings
        Settings that replace those of the example.

    Returns
    -------
    Run or list of Run
        The run, or the runs of a sweep, with the settings it was made with.

    Raises
    ------
    InputError
        If there is no example of that name; lists those there are.
    """
    if name in _SWEEPS:
        return read_sweep(data_dir() / _SWEEPS[name], **settings)
    if name not in _EXAMPLES:
        near = difflib.get_close_matches(name, [*_EXAMPLES, *_SWEEPS], n=1)
        hint = f", did you mean '{near[0]}'?" if near else "."
        raise InputError(
            f"no example '{name}'{hint} Examples are: {', '.join([*_EXAMPLES, *_SWEEPS])}"
        )
    file, known = _EXAMPLES[name]
    return read_run(data_dir() / file, **{**known, **settings})
