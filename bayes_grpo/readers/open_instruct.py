"""open-instruct (grpo_fast): its panel of metrics in the console, its arguments."""

import re
from collections.abc import Iterable, Iterator

import pandas as pd

from bayes_grpo.readers.config import Config
from bayes_grpo.readers.protocol import Adjusted, Console, Known, Row, Trainer, spelled
from bayes_grpo.readers.records import missing, number_or_nan
from bayes_grpo.settings import Setting

# Continued cells stand under the second column, whose start is at least this far in.
_NARROWEST = 4
_CELL = re.compile(r"^ {1,3}(\S+) {2,}(\S.*)$")
_PAIR = re.compile(r"^(\S.*?):\s+(\S+)$")


def settings(config: Config) -> dict[str, Setting]:
    """Translate open-instruct's arguments.

    Parameters
    ----------
    config
        Of the command line, or as printed.

    Returns
    -------
    dict of str to Setting
        A training step is ``num_mini_batches * num_epochs`` optimizer updates; ``async_steps``
        counts training steps, the lag updates.
    """
    group = config.setting("num_samples_per_prompt_rollout")
    prompts = config.setting("num_unique_prompts_rollout")
    found: dict[str, Setting | None] = {
        "group_size": group,
        "prompts_per_step": prompts,
        "learning_rate": config.setting("learning_rate"),
        "kl_weight": config.setting("beta"),
        "max_steps": config.setting("num_training_steps"),
    }
    batches, epochs = config.number("num_mini_batches"), config.number("num_epochs")
    updates = int((batches or 1) * (epochs or 1))
    if (batches or epochs) and updates >= 1:
        why = f"num_mini_batches x num_epochs = {batches or 1:g} x {epochs or 1:g}"
        found["updates_per_step"] = found["refresh_interval"] = Setting(updates, "read", why)
    ahead = config.number("async_steps")
    if ahead is not None:
        why = f"async_steps = {ahead:g} steps of {updates} updates, its upper bound"
        found["lag"] = Setting(int(ahead * updates), "read", why)
    episodes = config.number("total_episodes")
    batch = group.value * prompts.value if group and prompts else 0
    if episodes and batch >= 1 and found["max_steps"] is None:
        steps = int(episodes // batch)
        why = f"total_episodes = {episodes:g} over prompts x completions"
        found["max_steps"] = Setting(steps, "read", why) if steps >= 1 else None
    filtering = config.find("filter_zero_std_samples")
    if filtering is not None:
        filtered = str(filtering.value).lower() != "false"
        found["reward_filtered"] = Setting(filtered, "read", str(filtering))
    return {name: setting for name, setting in found.items() if setting is not None}


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Make the fraction of prompts without contrast of what is left of the batch.

    Parameters
    ----------
    table
        Rows with canonical names.
    known
        What is known so far.

    Returns
    -------
    Adjusted
    """
    left = next((n for n in table.columns if spelled(n).endswith("real_batch_size_ratio")), None)
    if left is None or "zero_std_fraction" in table.columns or missing(table[left]).all():
        return Adjusted(table)
    fraction = 1 - table[left].map(number_or_nan)
    if not fraction.dropna().between(0, 1).all():
        return Adjusted(table)
    note = f"zero_std_fraction is 1 less '{left}', the part of the batch that filtering left"
    return Adjusted(table.assign(zero_std_fraction=fraction), {}, (note,))


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read the panels titled "Metrics": a category and its ``name: value`` pairs on each line.

    Parameters
    ----------
    lines
        Marked lines. Long cells go on in the next line.

    Yields
    ------
    dict
        A row for each whole panel; names get their category back, except those under "other". An
        evaluation, which has a panel of its own, gets the training step before it.
    """
    cells: list[tuple[str, str]] | None = None
    step: float | None = None
    for line in lines:
        if "╭" in line:
            cells = [] if "Metrics" in line else None
        elif cells is not None and "╰" in line:
            row = _row(cells)
            if "training_step" in row:
                step = row["training_step"]
            elif step is not None:
                row["training_step"] = step
            if row:
                yield row
            cells = None
        elif cells is not None and line.count("│") >= 2:
            inner = line[line.index("│") + 1 : line.rindex("│")]
            if found := _CELL.match(inner.rstrip()):
                cells.append((found.group(1), found.group(2)))
            elif cells and inner[:_NARROWEST].strip() == "":
                cells[-1] = (cells[-1][0], f"{cells[-1][1]} {inner.strip()}")


def _row(cells: list[tuple[str, str]]) -> Row:
    row: Row = {}
    for category, text in cells:
        for piece in text.split("|"):
            if pair := _PAIR.match(piece.strip()):
                name = pair.group(1).replace(" ", "")
                row[name if category == "other" else f"{category}/{name}"] = pair.group(2)
    return {name: number_or_nan(value) for name, value in row.items()}


OPEN_INSTRUCT = Trainer(
    name="open-instruct",
    signature=(
        r"objective/kl\d?(_avg)?",
        r"val/sequence_lengths",
        r"(val/)?(real|unsolved)_batch_size_ratio",
        r"policy/clipfrac_avg",
    ),
    columns={
        "step": ("training_step",),
        "reward": ("scores", "objective/scores"),
        "kl": (r"objective/kl(_avg)?", r"objective/kl0_avg", r"objective/kl[123]_avg"),
        "entropy": (r"(policy|objective)/entropy(_avg)?",),
        "completion_length": ("val/sequence_lengths",),
        "clip_fraction": ("policy/clipfrac_avg",),
        "grad_norm": ("optim/grad_norm",),
        "learning_rate": ("lr",),
        "eval_reward": ("eval/scores", "eval/objective/scores"),
    },
    settings=settings,
    defaults={
        "group_size": (4, "not in the log: open-instruct's default"),
        "prompts_per_step": (16, "not in the log: open-instruct's default"),
        "momentum": (0.9, "not in the log: open-instruct's default, PyTorch's AdamW"),
        "kl_weight": (0.05, "not in the log: open-instruct's default beta"),
        "lag": (8, "not in the log: open-instruct's default async_steps, its upper bound"),
        "row_average": ("single", "open-instruct logs every training step"),
        "reward_filtered": (
            True,
            "not in the log: by default open-instruct takes prompts without contrast out before "
            "it averages 'scores'",
        ),
    },
    adjust=adjust,
    console=Console(marks=("│", "╭", "╰"), rows=rows_of_console, closed=True),
)
