"""Make the example runs of this folder: python data/make_examples.py.

Both are the discrete heavy-ball oscillator v' = mu v - eta a (R - R*), R' = R + v', with noise in
v, seen through rollouts that are really drawn: each prompt has its own chance of success, each
completion a reward of 0 or 1. README.md states the truth.
"""

import csv
import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent


def mean_reward(
    rng: np.random.Generator,
    rate: np.ndarray,
    *,
    start: float,
    plateau: float,
    momentum: float,
    stiffness: float,
    noise: float,
) -> np.ndarray:
    """Return the policy's true mean reward before each update, shape (steps,).

    rate is the learning rate of each update as a fraction of its peak.
    """
    rewards, position, velocity = np.empty(len(rate)), start, 0.0
    for step, eta in enumerate(rate):
        rewards[step] = position
        push = stiffness * (plateau - position) + noise * rng.standard_normal()
        velocity = momentum * velocity + eta * push
        position = float(np.clip(position + velocity, 0.01, 0.99))
    return rewards


def success_chances(
    rng: np.random.Generator, mean: float, prompts: int, spread: float
) -> np.ndarray:
    """Draw each prompt's chance of success: logistic-normal with the given mean over prompts."""
    nodes = np.random.default_rng(0).standard_normal(4096)
    low, high = -15.0, 15.0
    for _ in range(60):
        centre = (low + high) / 2
        below = np.mean(1 / (1 + np.exp(-(centre + spread * nodes)))) < mean
        low, high = (centre, high) if below else (low, centre)
    return 1 / (1 + np.exp(-(centre + spread * rng.standard_normal(prompts))))


def rollouts(
    rng: np.random.Generator, mean: float, prompts: int, group: int, spread: float
) -> np.ndarray:
    """Draw rewards of one batch, shape (prompts, group)."""
    chances = success_chances(rng, mean, prompts, spread)
    return (rng.random((prompts, group)) < chances[:, None]).astype(float)


def gsm8k_like() -> dict:
    """Return a trainer state as TRL writes it: 200 of 300 planned steps, still rising."""
    rng = np.random.default_rng(20260)
    steps, planned, warmup, peak = 200, 300, 10, 1e-6
    index = np.arange(planned)
    # As transformers' linear schedule: step t is made with the rate of t finished updates.
    rate = np.where(index < warmup, index / warmup, (planned - index) / (planned - warmup))
    truth = mean_reward(
        rng,
        rate[:steps],
        start=0.18,
        plateau=0.72,
        momentum=0.9,
        stiffness=(1 - 0.9) / 90,
        noise=3e-4,
    )
    history, tokens = [], 0
    for step in range(1, steps + 1):
        batch = rollouts(rng, truth[step - 1], prompts=8, group=8, spread=1.6)
        spread = batch.std(axis=1, ddof=1)
        lengths = np.clip(rng.gamma(6.0, (210 - 40 * truth[step - 1]) / 6.0, 64), 20, 512).round()
        tokens += int(lengths.sum()) + 64 * 105
        history.append(
            {
                "clip_ratio/high_max": 0.0,
                "clip_ratio/high_mean": 0.0,
                "clip_ratio/low_mean": 0.0,
                "clip_ratio/low_min": 0.0,
                "clip_ratio/region_mean": 0.0,
                "completions/clipped_ratio": float((lengths == 512).mean()),
                "completions/max_length": float(lengths.max()),
                "completions/mean_length": float(lengths.mean()),
                "completions/min_length": float(lengths.min()),
                "entropy": round(0.42 - 0.3 * (truth[step - 1] - 0.18) + 0.02 * rng.normal(), 6),
                "epoch": round(step * 8 / 7473, 6),
                "frac_reward_zero_std": float((spread == 0).mean()),
                "grad_norm": round(float(0.05 + 0.5 * spread.mean() * rng.gamma(20, 1 / 20)), 6),
                "kl": round(4e-4 * step / 20 * float(rng.gamma(8, 1 / 8)), 8),
                "learning_rate": float(peak * rate[step - 1]),
                "loss": round(float(0.004 * rng.normal()), 6),
                "num_tokens": float(tokens),
                "reward": float(batch.mean()),
                "reward_std": round(float(spread.mean()), 6),
                "rewards/correctness_reward/mean": float(batch.mean()),
                "rewards/correctness_reward/std": round(float(batch.std(ddof=1)), 6),
                "step": step,
            }
        )
    summary = {
        "epoch": history[-1]["epoch"],
        "step": steps,
        "total_flos": 0.0,
        "train_loss": 0.000112,
        "train_runtime": 5312.4,
        "train_samples_per_second": 2.41,
        "train_steps_per_second": 0.038,
    }
    return {
        "best_global_step": None,
        "best_metric": None,
        "best_model_checkpoint": None,
        "epoch": history[-1]["epoch"],
        "eval_steps": 500,
        "global_step": steps,
        "is_hyper_param_search": False,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": [*history, summary],
        "logging_steps": 1,
        "max_steps": planned,
        "num_input_tokens_seen": tokens,
        "num_train_epochs": 1,
        "save_steps": 100,
        "total_flos": 0.0,
        "train_batch_size": 8,
        "trial_name": None,
        "trial_params": None,
    }


def plain_table() -> list[dict]:
    """Return the rows of a loop with much momentum: overshoots, and swings back."""
    rng = np.random.default_rng(20261)
    steps = 260
    truth = mean_reward(
        rng,
        np.ones(steps),
        start=0.15,
        plateau=0.55,
        momentum=0.95,
        stiffness=0.004,
        noise=6e-4,
    )
    rows = []
    for step, mean in enumerate(truth, 1):
        batch = rollouts(rng, mean, prompts=16, group=16, spread=1.2)
        spread = batch.std(axis=1, ddof=1)
        rows.append(
            {
                "step": step,
                "mean_reward": f"{batch.mean():.6f}",
                "reward_std": f"{spread.mean():.6f}",
                "frac_reward_zero_std": f"{(spread == 0).mean():.4f}",
            }
        )
    return rows


def main() -> None:
    """Write both files."""
    (FOLDER / "gsm8k_like.json").write_text(json.dumps(gsm8k_like(), indent=1) + "\n")
    rows = plain_table()
    with (FOLDER / "plain_table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
