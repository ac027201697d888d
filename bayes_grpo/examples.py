"""The example runs that come with the package."""

import difflib
from typing import Any

from bayes_grpo.errors import InputError
from bayes_grpo.readers import read_run
from bayes_grpo.resources import data_dir
from bayes_grpo.run import Run

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
}


def load_example(name: str = "gsm8k_like", **settings: Any) -> Run:
    """Load an example run: synthetic, with known truth (``data/README.md``).

    Parameters
    ----------
    name
        ``"gsm8k_like"``: the log of a run stopped at 200 of 300 planned steps. ``"plain_table"``:
        a CSV of a run that overshoots and swings back.
    **settings
        Settings that replace those of the example.

    Returns
    -------
    Run
        The run, with the settings it was made with.

    Raises
    ------
    InputError
        If there is no example of that name; lists those there are.
    """
    if name not in _EXAMPLES:
        near = difflib.get_close_matches(name, _EXAMPLES, n=1)
        hint = f", did you mean '{near[0]}'?" if near else "."
        raise InputError(f"no example '{name}'{hint} Examples are: {', '.join(_EXAMPLES)}")
    file, known = _EXAMPLES[name]
    return read_run(data_dir() / file, **{**known, **settings})
