"""Logs of no trainer in particular: names that many share, and lines of ``name: value`` pairs."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from bayes_grpo.columns import normalise
from bayes_grpo.errors import InputError
from bayes_grpo.readers.config import Config
from bayes_grpo.readers.protocol import Console, Row, Trainer
from bayes_grpo.settings import Setting, Settings

# Settings that some logs repeat in every row: names of the column, and what they set.
_SETTING_COLUMNS: dict[str, tuple[str, ...]] = {
    "group_size": ("group_size",),
    "num_generations": ("group_size",),
    "num_questions": ("prompts_per_step",),
    "num_groups": ("prompts_per_step",),
    "num_prompts": ("prompts_per_step",),
    "prompts_per_step": ("prompts_per_step",),
    "kl_coef": ("kl_weight",),
    "max_steps": ("max_steps",),
    "total_steps": ("max_steps",),
    "num_examples": ("eval_size",),
    "eval_size": ("eval_size",),
    # A step is one rollout, used for this many updates before the next is sampled.
    "optimizer_updates_per_rollout_batch": ("updates_per_step", "refresh_interval"),
}

# What own training loops call their settings, in a configuration record or on the command line.
_SETTING_NAMES: dict[str, tuple[str, ...]] = {
    "group_size": (
        "group_size",
        "num_generations",
        "n_samples_per_prompt",
        "samples_per_prompt",
        "num_rollouts_per_prompt",
    ),
    "prompts_per_step": ("prompts_per_step", "num_prompts", "n_prompts"),
    "momentum": ("momentum", "adam_beta1", "beta1"),
    "learning_rate": ("learning_rate", "lr"),
    "kl_weight": ("kl_weight", "kl_coef", "kl_beta"),
    "max_steps": ("max_steps", "total_steps", "num_steps", "n_steps"),
    "refresh_interval": ("refresh_interval",),
    "lag": ("lag",),
    "updates_per_step": ("updates_per_step",),
}

# Settings that are no numbers, by the name they have in this package.
_WORDS = (
    "momentum_convention",
    "lag_pattern",
    "row_average",
    "reward_bounds",
    "reward_filtered",
    "reward_std_kind",
    "trainer",
)

_PAIR = re.compile(
    r"([A-Za-z][A-Za-z0-9_/.\-]*(?: [A-Za-z0-9_/.\-]+){0,3}?)\s*(?:=|:)\s*"
    r"(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)(?![\w.]|:\d)"
)
_STEP = re.compile(
    r"\b(?:step|iter(?:ation)?|update|rollout)\s*[:=#]?\s*\[?\s*(\d{1,15}(?!\d))(?:\s*/\s*(\d{1,15}(?!\d)))?",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    r"\bepoch\W*\[?(\d{1,15})/(\d{1,15})(?!\d)\]?\W*\(?\[?(\d{1,15})\s*/\s*(\d{1,15}(?!\d))",
    re.IGNORECASE,
)


def settings(config: Config) -> dict[str, Setting]:
    """Take settings that a configuration calls by a name of this package, or a common one.

    Parameters
    ----------
    config
        Names may have a prefix such as ``args.``.

    Returns
    -------
    dict of str to Setting
    """
    found = {}
    for name, others in _SETTING_NAMES.items():
        names = [f"{prefix}{own}" for prefix in ("", "args.", "config.") for own in others]
        setting = config.setting(*names)
        if setting is not None and _is_valid(name, setting):
            found[name] = setting
    for name in _WORDS:
        chosen = config.find(name)
        if chosen is not None and _is_valid(name, Setting(chosen.value, "read")):
            found[name] = Setting(chosen.value, "read", str(chosen))
    return found


def settings_in_columns(table: pd.DataFrame) -> tuple[dict[str, Setting], tuple[str, ...]]:
    """Read settings off the columns that repeat them in every row.

    Parameters
    ----------
    table
        All records, of whatever kind, under the log's own names.

    Returns
    -------
    settings : dict of str to Setting
    notes : tuple of str
        Columns that vary, and so set nothing.
    """
    found: dict[str, Setting] = {}
    notes = []
    for column in table.columns:
        names = _SETTING_COLUMNS.get(normalise(column), ())
        if not names:
            continue
        values = sorted(set(_finite(table[column])))
        if len(values) == 1 and (values[0] > 0 or names == ("kl_weight",)):
            for name in names:
                found.setdefault(name, Setting(values[0], "read", f"column '{column}'"))
        elif len(values) > 1:
            shown = ", ".join(f"{value:g}" for value in values[:5])
            notes.append(f"column '{column}' varies ({shown}): not taken for {names[0]}")
    return found, tuple(notes)


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read lines of several ``name: value`` or ``name=value`` pairs.

    Parameters
    ----------
    lines
        Marked lines.

    Yields
    ------
    dict
        A row each, with the step and the planned last step where a counter tells them.
    """
    for line in lines:
        if len(line) > 5000:
            continue
        row: Row = {}
        text = line
        if counted := _EPOCH.search(text):
            epoch, _, at, total = map(int, counted.groups())
            row |= {"step": (epoch - 1) * total + at, "max_steps": total * int(counted.group(2))}
            text = text[: counted.start()] + text[counted.end() :]
        elif counters := list(_STEP.finditer(text)):
            # Of "Iter: 1/1, Step: 3/200" the one that calls itself step is meant.
            counted = next((c for c in counters if c.group().lower()[:4] == "step"), counters[0])
            row["step"] = int(counted.group(1))
            if counted.group(2):
                row["max_steps"] = int(counted.group(2))
            text = text[: counted.start()] + text[counted.end() :]
        pairs = {name.strip().lower(): float(value) for name, value in _PAIR.findall(text)}
        # Sampled text says "step 2" and "reward" too: without a number for it, it is no row.
        if any("reward" in name or "score" in name for name in pairs) and (row or len(pairs) > 1):
            yield pairs | row


def _is_valid(name: str, setting: Setting) -> bool:
    try:
        Settings(read={name: setting})
    except InputError:
        return False
    return True


def _finite(cells: Iterable[Any]) -> Iterator[float]:
    for cell in cells:
        if isinstance(cell, bool):
            continue
        try:
            number = float(cell)
        except (TypeError, ValueError):
            continue  # blank in this record
        if abs(number) < float("inf"):
            yield number


PLAIN = Trainer(
    name="",
    settings=settings,
    console=Console(marks=("eward", "core:", "core ", "core="), rows=rows_of_console),
)
