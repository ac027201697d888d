"""NeMo RL: the block of bullets printed at each step, its keys, its configuration."""

import math
import re
from collections.abc import Iterable, Iterator

import pandas as pd

from bayes_grpo.readers.config import Config, positive, whole
from bayes_grpo.readers.protocol import Adjusted, Console, Known, Row, Trainer, in_turn
from bayes_grpo.readers.records import missing, number_or_nan, without_prefix
from bayes_grpo.settings import Setting

# kl_penalty is the divergence itself: its weight is divided out before it is logged.
COLUMNS: dict[str, tuple[str, ...]] = {
    "step": ("step", "train/step"),
    "reward": ("(train/)?reward",),
    "kl": ("(train/)?kl_penalty",),
    "entropy": ("(train/)?approx_entropy",),
    "completion_length": ("(train/)?mean_gen_tokens_per_sample",),
    "grad_norm": ("(train/)?grad_norm",),
    "learning_rate": ("(train/)?lr",),
    "eval_reward": ("validation/accuracy",),
}

_STEP = re.compile(r"={5,} Step (\d{1,15})/(\d{1,15}) ={5,}")
_EPOCH = re.compile(r"={5,} Epoch (\d{1,15})/(\d{1,15}) ={5,}")
_VALIDATION = re.compile(r"Starting validation at step (\d{1,15})")
_AGE = re.compile(r"\(avg age: (\d+\.?\d*) steps")
_SPREAD = re.compile(r"Rewards stats:.*\bstd=(\d+\.?\d*(?:e[-+]?\d+)?)")
_BULLET = re.compile(
    r"• ([A-Z][A-Za-z ]+): (-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf)(?![\w.])"
)
_BULLETS = {
    "Loss": "loss",
    "Generation KL Error": "gen_kl_error",
    "Avg Reward": "reward",
    "Avg Total Reward": "reward",
    "Avg Filtered Reward": "filtered_reward",
    "Mean Generation Length": "mean_gen_tokens_per_sample",
}


def settings(config: Config) -> dict[str, Setting]:
    """Translate NeMo RL's configuration.

    Parameters
    ----------
    config
        From the printed dictionary, overrides, or Weights & Biases.

    Returns
    -------
    dict of str to Setting
        A step is one rollout, used for ``num_prompts_per_step x num_generations_per_prompt /
        train_global_batch_size`` optimizer updates.
    """
    group, prompts = "grpo.num_generations_per_prompt", "grpo.num_prompts_per_step"
    megatron = "policy.megatron_cfg.optimizer"
    kwargs = "policy.optimizer.kwargs"
    rates = [f"{kwargs}.lr", f"{megatron}.lr"]
    decays = [f"{kwargs}.betas", f"{megatron}.adam_beta1"]
    if config.flag("policy.megatron_cfg.enabled"):
        rates.reverse()
        decays.reverse()
    updates = _updates(config)
    found: dict[str, Setting | None] = {
        "group_size": config.count(group),
        "prompts_per_step": config.count(prompts),
        "updates_per_step": updates,
        "refresh_interval": updates,
        "learning_rate": positive(config.setting(*rates)),
        "momentum": config.setting(*decays),
        "kl_weight": config.setting("loss_fn.reference_policy_kl_penalty"),
    }
    return {name: setting for name, setting in found.items() if setting is not None}


def _updates(config: Config) -> Setting | None:
    prompts = config.number("grpo.num_prompts_per_step")
    group = config.number("grpo.num_generations_per_prompt")
    size = config.number("policy.train_global_batch_size")
    if not prompts or not group or not size:
        return None
    why = (
        "num_prompts_per_step x num_generations_per_prompt / train_global_batch_size = "
        f"{prompts:g} x {group:g} / {size:g}"
    )
    return whole(prompts * group / size, why)


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Choose the reward of all prompts, and add up the shares of those without contrast.

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
    found = {"row_average": Setting("single", "read", "NeMo RL logs each rollout batch")}
    notes = []
    if "reward_std" in table.columns:
        why = "'Rewards stats' are those of the whole batch"
        found["reward_std_kind"] = Setting("pooled", "read", why)
    if "filtered_reward" in table.columns and not missing(table["filtered_reward"]).all():
        if "reward" in table.columns and not missing(table["reward"]).all():
            notes.append("dynamic sampling: the reward is that before prompts were taken out")
        else:
            kept = table.drop(columns="reward", errors="ignore")
            table = kept.rename(columns={"filtered_reward": "reward"})
            why = "only filtered_reward is logged: that of prompts with contrast"
            found["reward_filtered"] = Setting(True, "read", why)
    shares = [f"baseline_reward/pct_{end}" for end in (0, 1)]
    if set(shares) <= set(table.columns) and "zero_std_fraction" not in table.columns:
        percent = sum(table[name].map(number_or_nan).astype(float) for name in shares)
        table = table.assign(zero_std_fraction=percent / 100)
        notes.append("zero_std_fraction is baseline_reward/pct_0 + pct_1: rewards are 0 or 1")
    return Adjusted(table, found, tuple(notes))


def with_configuration(table: pd.DataFrame, known: Known) -> Adjusted:
    """Turn the age of trajectories in steps into a lag in updates, and find the planned end.

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
    from_config = settings(config)
    found: dict[str, Setting] = {}
    updates = from_config["updates_per_step"].value if "updates_per_step" in from_config else 1
    times = f" x {updates} updates a step" if updates > 1 else ""
    bound = "grpo.async_grpo.max_trajectory_age_steps"
    lag: Setting | None = None
    if "avg_trajectory_age" in table.columns:
        age = float(table["avg_trajectory_age"].map(number_or_nan).astype(float).mean())
        steps = round(age * updates) if math.isfinite(age * updates) else 0
        lag = whole(steps, f"mean age of the trajectories {age:.3g} steps{times}", "inferred")
    elif config.flag("grpo.async_grpo.enabled") and (oldest := config.number(bound)):
        why = f"{config.find(bound)}, its upper bound{times}"
        lag = whole(oldest * updates, why, "inferred")
    if lag is not None:
        found = {"lag": lag, "lag_pattern": Setting("constant", "inferred", lag.why)}
    # The configured maximum is often a million, with the epochs as the real end.
    limit = config.number("grpo.max_num_steps") or math.inf
    if "_planned" in table.columns:
        logged = table["_planned"].map(number_or_nan).astype(float).max()
        planned = whole(min(limit, logged), "the steps and epochs counted in the log")
        table = table.drop(columns="_planned")
    else:
        epochs = config.number("grpo.max_num_epochs")
        certain = limit < math.inf and (limit < 1_000_000 or epochs is None)
        planned = whole(limit, str(config.find("grpo.max_num_steps"))) if certain else None
    if planned is not None:
        found["max_steps"] = planned
    return Adjusted(table, found)


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read the blocks under ``Step 12/1000``.

    Parameters
    ----------
    lines
        Marked lines.

    Yields
    ------
    dict
        A row for each block of training results, which the mean generation length ends, and one
        for each validation. Steps are counted on over the epochs, in each of which they are
        printed from 1.
    """
    row: Row = {}
    epoch, epochs, validated = 1, 1, 0
    for line in lines:
        if header := _STEP.search(line):
            step, of_epoch = int(header.group(1)), int(header.group(2))
            step += (epoch - 1) * of_epoch
            row = {"step": step, "_planned": of_epoch * epochs}
            validated = step
        elif header := _EPOCH.search(line):
            epoch, epochs = int(header.group(1)), int(header.group(2))
        elif header := _VALIDATION.search(line):
            validated = int(header.group(1))
        elif age := _AGE.search(line):
            row["avg_trajectory_age"] = float(age.group(1))
        elif spread := _SPREAD.search(line):
            row["reward_std"] = float(spread.group(1))
        elif bullet := _BULLET.search(line):
            name, value = bullet.group(1), float(bullet.group(2))
            if name == "Accuracy":
                yield {"step": validated, "validation/accuracy": value}
            elif name in _BULLETS and "step" in row:
                row[_BULLETS[name]] = value
                if name == "Mean Generation Length":
                    yield row
                    row = {}


NEMO_RL = Trainer(
    name="NeMo RL",
    signature=(
        r"(train/)?(gen_kl_error|token_mult_prob_error|probs_ratio_clamped)",
        r"(train/)?baseline_reward/pct_(0|1|mixed)",
        r"(train/)?mean_gen_tokens_per_sample",
    ),
    columns=COLUMNS,
    settings=settings,
    defaults={
        "group_size": (16, "not in the log: NeMo RL's default num_generations_per_prompt"),
        "prompts_per_step": (32, "not in the log: NeMo RL's default num_prompts_per_step"),
    },
    adjust=in_turn(adjust, with_configuration),
    console=Console(
        marks=(
            "= Step ",
            "= Epoch ",
            "Starting validation at step",
            "(avg age: ",
            "Rewards stats:",
            "• Accuracy:",
            "• Loss:",
            "Generation KL Error:",
            "Reward: ",
            "Mean Generation Length:",
        ),
        rows=rows_of_console,
    ),
)
