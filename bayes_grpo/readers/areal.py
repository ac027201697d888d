"""AReaL: its table of metrics in the console, its configuration."""

import re
from collections.abc import Iterable, Iterator, Mapping

import pandas as pd

from bayes_grpo.readers.config import Config
from bayes_grpo.readers.protocol import Adjusted, Console, Known, Row, Trainer, spelled
from bayes_grpo.readers.records import number_or_nan
from bayes_grpo.settings import Setting

_ACTOR = r"\w+_actor"
_STEP = re.compile(r"Train step (\d{1,15})/(\d{1,15}) done")
_MINIBATCHES = 4


def settings(config: Config) -> dict[str, Setting]:
    """Translate AReaL's configuration.

    Parameters
    ----------
    config
        Of the YAML file, or overrides on the command line.

    Returns
    -------
    dict of str to Setting
        A logged step is one batch of rollouts, used for ``ppo_n_minibatches`` optimizer updates.
        ``max_head_offpolicyness`` counts such steps; the lag is in updates, and its upper bound.
    """
    minibatches = config.setting("actor.ppo_n_minibatches", "ppo_n_minibatches")
    found: dict[str, Setting | None] = {
        "group_size": config.setting("gconfig.n_samples", "actor.group_size"),
        "prompts_per_step": config.setting("train_dataset.batch_size"),
        "learning_rate": config.setting("actor.optimizer.lr", "optimizer.lr"),
        "momentum": config.setting("actor.optimizer.beta1", "optimizer.beta1"),
        "kl_weight": config.setting("actor.kl_ctl", "kl_ctl"),
        "updates_per_step": minibatches,
        "refresh_interval": minibatches,
        "max_steps": config.setting("total_train_steps"),
    }
    staleness = config.number("rollout.max_head_offpolicyness", "max_head_offpolicyness")
    if staleness is not None:
        updates = minibatches.value if minibatches else _MINIBATCHES
        why = (
            f"max_head_offpolicyness = {staleness:g} steps of {updates:g} updates, its upper bound"
        )
        found["lag"] = Setting(staleness * updates, "read", why)
    filtering = config.find("actor.dynamic_sampling", "dynamic_sampling")
    if filtering is not None and str(filtering.value).lower() == "true":
        found["reward_filtered"] = Setting(True, "read", str(filtering))
    return {name: setting for name, setting in found.items() if setting is not None}


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Turn the reward's penalty into a divergence, and sequences into completions.

    Parameters
    ----------
    table
        Rows with canonical names.
    known
        What is known so far.

    Returns
    -------
    Adjusted
        ``kl_rewards`` is the divergence times ``-kl_ctl``; ``seq_len`` includes the prompt.
    """
    names = {spelled(name): name for name in table.columns}
    notes = []
    prompt = _first(names, rf"{_ACTOR}/prompt_len/avg")
    if prompt is not None and "completion_length" in table.columns:
        whole = table["completion_length"].map(number_or_nan)
        table = table.assign(completion_length=whole - table[prompt].map(number_or_nan))
        notes.append("completion_length is seq_len less prompt_len")
    penalty = _first(names, rf"{_ACTOR}/kl_rewards/avg")
    weight = known.settings.get("kl_weight")
    if penalty is not None and weight is not None and weight.value:
        table = table.assign(kl=-table[penalty].map(number_or_nan) / weight.value)
        notes.append(f"kl is '{penalty}' / -kl_ctl")
    return Adjusted(table, {}, tuple(notes))


def _first(names: Mapping[str, object], pattern: str) -> object:
    return next((own for name, own in names.items() if re.fullmatch(pattern, name)), None)


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read the tables that follow ``Train step N/M done``.

    Parameters
    ----------
    lines
        Marked lines. Names and numbers take turns in the cells; a step has one table or several.

    Yields
    ------
    dict
        A row for each step with a whole table; what several tables of a step have is averaged.
    """
    row: Row = {}
    counts: dict[str, int] = {}
    pending: list[tuple[str, float]] = []
    whole = False
    for line in lines:
        if reached := _STEP.search(line):
            if whole:
                yield row
            row = {"step": int(reached.group(1)), "max_steps": int(reached.group(2))}
            counts, pending, whole = {}, [], False
        elif "╒" in line:
            pending = []
        elif "╘" in line:
            for name, value in pending if row else []:
                n = counts[name] = counts.get(name, 0) + 1
                row[name] = value if n == 1 else row[name] + (value - row[name]) / n
            whole |= bool(row) and bool(pending)
            pending = []
        elif "│" in line:
            cells = [cell.strip() for cell in line.split("│")[1:-1]]
            pairs = zip(cells[::2], cells[1::2], strict=False)
            pending += [(name, number_or_nan(value)) for name, value in pairs if name]
    if whole:
        yield row


AREAL = Trainer(
    name="AReaL",
    signature=(
        rf"{_ACTOR}/(task_reward|final_reward|kl_rewards|seq_len|advantages)/avg",
        rf"{_ACTOR}/update/.+",
        r"eval-rollout/.+",
    ),
    columns={
        "reward": (
            rf"{_ACTOR}/task_reward/avg",
            r"rollout/(task_)?reward(/avg)?",
            rf"{_ACTOR}/final_reward/avg",
        ),
        "entropy": (rf"{_ACTOR}/update/entropy/avg", rf"{_ACTOR}/entropy(/avg)?"),
        "completion_length": (rf"{_ACTOR}/seq_len/avg",),
        "clip_fraction": (rf"{_ACTOR}/update/clip_ratio/avg",),
        "grad_norm": (rf"{_ACTOR}/update/grad_norm(/avg)?", rf"{_ACTOR}/grad_norm(/avg)?"),
        "learning_rate": (rf"{_ACTOR}/update/lr(/avg)?", rf"{_ACTOR}/lr(/avg)?"),
        "eval_reward": (r"eval[-_]rollout/(task_)?reward(/avg)?", r"\w+_eval/task_reward/avg"),
    },
    settings=settings,
    defaults={
        "momentum": (0.9, "not in the log: AReaL's default optimizer.beta1"),
        "updates_per_step": (_MINIBATCHES, "not in the log: AReaL's default ppo_n_minibatches"),
        "refresh_interval": (_MINIBATCHES, "not in the log: AReaL's default ppo_n_minibatches"),
        "row_average": ("single", "AReaL logs every batch of rollouts"),
    },
    adjust=adjust,
    console=Console(marks=("Train step ", "│", "╒", "╘"), rows=rows_of_console),
)
