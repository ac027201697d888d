"""OpenRLHF: the dictionary printed at each global step, its keys, and its flags, old and new."""

import re
from collections.abc import Iterable, Iterator

import pandas as pd

from bayes_grpo.readers.config import Config, positive, whole
from bayes_grpo.readers.config_text import literal
from bayes_grpo.readers.protocol import Adjusted, Console, Known, Row, Trainer, in_turn, spelled
from bayes_grpo.readers.records import missing, number_or_nan, without_prefix
from bayes_grpo.settings import Setting

COLUMNS: dict[str, tuple[str, ...]] = {
    "step": ("step", "train/global_step", "global_step"),
    "reward": ("(train/)?reward",),
    "reward_std": ("(train/)?group_reward_std",),
    "kl": ("(train/)?kl",),
    "entropy": ("(train/)?entropy_loss",),
    "completion_length": ("(train/)?response_length",),
    "clip_fraction": ("(train/)?ppo_clip_ratio",),
    "grad_norm": ("(train/)?actor_grad_norm",),
    "learning_rate": ("(train/)?actor_lr",),
    "eval_reward": ("(eval/)?eval_.+_pass1",),
}

_TRAINED = re.compile(r"Global step (\d{1,15}): (\{.*)")
_EVALUATED = re.compile(r"global_step (\d{1,15}), eval_metrics: (\{.*)")
_PAIR = re.compile(
    r"'([^']+)': (?:[\w.]+\()?'?(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf)(?![\w.])"
)
_PLAIN = re.compile(r"\{(?:'[^']+': -?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?:, |\}))+")


def settings(config: Config) -> dict[str, Setting]:
    """Translate OpenRLHF's flags.

    Parameters
    ----------
    config
        Flags with dots (``--rollout.n_samples_per_prompt``) or of the older, flat kind.

    Returns
    -------
    dict of str to Setting
        A global step is one rollout, used for ``rollout.batch_size x n_samples_per_prompt /
        train.batch_size x train.max_epochs`` optimizer updates.
    """
    group = ("rollout.n_samples_per_prompt", "n_samples_per_prompt")
    batch = ("rollout.batch_size", "rollout_batch_size")
    updates = _updates(config.number(*group), config.number(*batch), config)
    found: dict[str, Setting | None] = {
        "group_size": config.count(*group),
        "prompts_per_step": config.count(*batch),
        "updates_per_step": updates,
        "refresh_interval": updates,
        "learning_rate": positive(config.setting("actor.adam.lr", "actor_learning_rate")),
        "momentum": config.setting("actor.adam.betas", "adam_betas"),
        "kl_weight": config.setting("algo.kl.init_coef", "kl.init_coef", "init_kl_coef"),
    }
    queue = ("train.async_queue_size", "async_queue_size")
    waiting = config.number(*queue)
    if config.flag("train.async_enable", "async_train") and waiting:
        each = updates.value if updates else 1
        why = f"{config.find(*queue)}, its upper bound, times {each} updates a rollout"
        found["lag"] = whole(waiting * each, why, "inferred")
    return {name: setting for name, setting in found.items() if setting is not None}


def _updates(group: float | None, prompts: float | None, config: Config) -> Setting | None:
    size = config.number("train.batch_size", "train_batch_size")
    epochs = config.number("train.max_epochs", "max_epochs") or 1
    if not group or not prompts or not size:
        return None
    why = (
        "rollout.batch_size x n_samples_per_prompt / train.batch_size x max_epochs = "
        f"{prompts:g} x {group:g} / {size:g} x {epochs:g}"
    )
    return whole(prompts * group / size * epochs, why)


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Derive the fraction of prompts without contrast from what dynamic filtering let pass.

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
    table = without_prefix(table, "train/")
    found = {"row_average": Setting("single", "read", "OpenRLHF logs each rollout batch")}
    if "reward_std" in table.columns:
        why = "OpenRLHF's group_reward_std is that of each group, averaged"
        found["reward_std_kind"] = Setting("within_group", "read", why)
    own = next((name for name in table.columns if spelled(name) == "eval/global_step"), None)
    if own is not None and "step" in table.columns:
        # Weights & Biases keeps the step of an evaluation in a column of its own.
        steps = table["step"].where(~missing(table["step"]), table[own])
        table = table.assign(step=steps).drop(columns=own)
    if "dynamic_filtering_pass_rate" not in table.columns:
        return Adjusted(table, found)
    passed = table["dynamic_filtering_pass_rate"].map(number_or_nan).astype(float)
    if passed.isna().all():
        return Adjusted(table, found)
    share = passed / 100 if passed.max() > 1 else passed
    why = "dynamic filtering takes prompts without contrast out (dynamic_filtering_pass_rate)"
    found["reward_filtered"] = Setting(True, "read", why)
    note = "zero_std_fraction is what dynamic filtering did not let pass"
    return Adjusted(table.assign(zero_std_fraction=1 - share.clip(0, 1)), found, (note,))


def with_configuration(table: pd.DataFrame, known: Known) -> Adjusted:
    """Say where the estimator of advantages is not GRPO's.

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
    config = known.config
    estimator = config.find("algo.advantage.estimator", "advantage_estimator")
    if estimator is None or str(estimator.value).lower() in ("group_norm", "dr_grpo", "grpo"):
        return Adjusted(table)
    note = f"{estimator}: not GRPO's group_norm, so what is said of groups may not hold for it"
    return Adjusted(table, {}, (note,))


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read ``Global step 12: {...}`` and the evaluations beside them.

    Parameters
    ----------
    lines
        Marked lines.

    Yields
    ------
    dict
        A row each; what is no number (sampled text) is left out.
    """
    for line in lines:
        if trained := _TRAINED.search(line):
            values = _numbers(trained.group(2))
            if "reward" in values:
                yield {"step": int(trained.group(1)), **values}
        elif evaluated := _EVALUATED.search(line):
            values = _numbers(evaluated.group(2))
            own = {name.removeprefix("eval/"): value for name, value in values.items()}
            own.pop("global_step", None)
            if own:
                yield {**own, "step": int(evaluated.group(1))}


def _numbers(text: str) -> Row:
    end = text.rfind("}")
    if _PLAIN.fullmatch(text, 0, end + 1):  # much quicker than evaluating a literal
        return {name: float(value) for name, value in _PAIR.findall(text)}
    found = literal(text[: end + 1]) if end > 0 else None
    if isinstance(found, dict):
        numbers = {str(name): number_or_nan(value) for name, value in found.items()}
        return {name: value for name, value in numbers.items() if value == value}
    if end <= 0:
        return {}
    # Something in it is no literal, such as an object's representation.
    return {name: float(value) for name, value in _PAIR.findall(text)}


OPENRLHF = Trainer(
    name="OpenRLHF",
    signature=(
        r"(train/)?(group_reward_std|actor_grad_norm|ppo_clip_ratio|vllm_kl)",
        r"(train/)?dynamic_filtering_pass_rate",
        r"(eval/)?eval_.+_pass1",
    ),
    columns=COLUMNS,
    settings=settings,
    defaults={"momentum": (0.9, "not in the log: OpenRLHF's default betas (0.9, 0.95)")},
    adjust=in_turn(adjust, with_configuration),
    console=Console(
        marks=("Global step ", "eval_metrics: {"),
        rows=rows_of_console,
        closed=True,
    ),
)
