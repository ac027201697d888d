"""The names of the columns of a run, and what other logs call them."""

import difflib
import re
from collections.abc import Iterable

# Columns that mean the same in every run, in the order of the table.
CANONICAL = (
    "step",
    "reward",
    "reward_std",
    "zero_std_fraction",
    "kl",
    "entropy",
    "completion_length",
    "clip_fraction",
    "grad_norm",
    "learning_rate",
    "eval_reward",
)

# What each is called elsewhere, the best source first; spelled as `normalise` returns it. For the
# reward, the verifier's own score comes before one that penalties were added to.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "step": (
        "step",
        "global_step",
        "train_step",
        "training_step",
        "grpo_step",
        "rollout_step",
        "steps",
        "iteration",
        "iter",
        "update",
        "updates_done",
        "optimizer_step",
        "_step",
    ),
    "reward": (
        "reward",
        "critic/score/mean",
        "critic/rewards/mean",
        "reward_mean",
        "mean_reward",
        "reward/mean",
        "rewards/mean",
        "reward_avg",
        "avg_reward",
        "average_reward",
        "train_reward",
        "train_reward_mean",
        "train_mean_reward",
        "rollout_reward",
        "rollout/reward",
        "reward/avg_raw_reward",
        "rollout/raw_reward",
        "raw_reward",
        "reward_mean_all",
        "episode_reward",
        "mean_score",
        "score_mean",
        "score",
        "scores",
    ),
    "reward_std": ("reward_std", "std_reward", "rewards_std", "reward/std", "group_reward_std"),
    "zero_std_fraction": (
        "zero_std_fraction",
        "frac_reward_zero_std",
        "frac_zero_std",
        "zero_std_frac",
    ),
    "kl": ("kl", "mean_kl", "kl_mean", "actor/kl_loss", "reference_kl", "kl_ref", "kl_loss"),
    "entropy": (
        "entropy",
        "entropy/mean",
        "mean_entropy",
        "entropy_avg",
        "token_entropy",
        "policy_entropy",
        "actor/entropy",
        "actor/entropy_loss",
    ),
    "completion_length": (
        "completion_length",
        "completions/mean_length",
        "mean_completion_length",
        "completion_len",
        "response_length",
        "response_length/mean",
        "mean_response_length",
        "avg_response_len",
        "avg_response_token_length",
        "avg_len",
    ),
    "clip_fraction": (
        "clip_fraction",
        "clip_ratio/region_mean",
        "clip_ratio",
        "clipfrac",
        "clip_frac",
        "actor/pg_clipfrac",
        "ppo_clip_ratio",
    ),
    "grad_norm": ("grad_norm", "actor/grad_norm", "gradient_norm", "actor_grad_norm"),
    "learning_rate": ("learning_rate", "lr", "actor/lr", "actor_lr"),
    "eval_reward": (
        "eval_reward",
        "eval/reward",
        "eval_mean_reward",
        "eval_reward_mean",
        "val_reward",
        "validation_reward",
        "eval_score",
        "eval_acc",
        "eval_accuracy",
    ),
}

# What loggers put in front of every training metric.
_PREFIXES = ("train/", "training/", "metrics/", "data/")


def normalise(column: object) -> str:
    """Return a column's name in one spelling.

    Parameters
    ----------
    column
        As the log has it, for example ``"completions / mean_length"`` or ``"Mean Reward"``.

    Returns
    -------
    str
        Lower case, ``_`` for blanks and dashes, no blanks around ``/``, no ``train/`` in front.
    """
    name = re.sub(r"\s*/\s*", "/", str(column).strip().lower())
    name = re.sub(r"[\s\-.]+", "_", name)
    stripped = True
    while stripped:
        stripped = False
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                name, stripped = name.removeprefix(prefix), True
    return name


def candidates(columns: Iterable[object], canonical: str) -> list[object]:
    """Return the columns that may hold a canonical quantity.

    Parameters
    ----------
    columns
        The columns of a log.
    canonical
        One of `CANONICAL`.

    Returns
    -------
    list
        Those of `columns` that are a known name of it, the best source first.
    """
    columns = list(columns)
    if canonical in columns:
        return [canonical, *(c for c in candidates(set(columns) - {canonical}, canonical))]
    known = SYNONYMS[canonical]
    matching = [column for column in columns if normalise(column) in known]
    return sorted(matching, key=lambda column: (known.index(normalise(column)), str(column)))


def look_alikes(columns: Iterable[object]) -> list[str]:
    """Return the columns that could be a reward under a name of the user's own.

    Parameters
    ----------
    columns
        The columns of a table.

    Returns
    -------
    list of str
        Known names of a reward first, then those whose spelling is near.
    """
    columns = list(columns)
    known = [str(column) for column in candidates(columns, "reward")]
    spelled = {normalise(column): str(column) for column in columns}
    near = [
        name
        for key, name in spelled.items()
        if re.search(r"reward|score|return|accuracy|correct", key)
        and not re.search(r"std|eval|min|max", key)
    ]
    near += [spelled[key] for key in difflib.get_close_matches("reward", spelled, n=2)]
    return list(dict.fromkeys([*known, *near]))
