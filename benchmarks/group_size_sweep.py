"""What does group size do? Simple statistics on the factorial data set, against exact drifts.

    python benchmarks/group_size_sweep.py

Runs of `bayes_grpo.load_example("sweep")` that are on-policy (refresh interval 1): five group
sizes, three learning rates, three momenta, five replicates; no model is fitted.

*   Mean. Late reward (exact expectation, last quarter of the run) and the time to half of the rise,
    against the exact drift of groups of that size (bayes_grpo.simulate, no sampling) at the same
    learning rate. Invariance predicts no difference between group sizes; the exact finite-G drift
    (the factor E sqrt(phat (1 - phat)) / sqrt(p (1 - p)) per prompt) predicts one.
*   Noise. Variance of late rows about each run's own line, log-log against G: logged reward,
    sampling noise (logged minus exact), process noise (exact), each with the exponent alpha of
    G^-alpha and a 95 % bootstrap interval over runs. Sampling noise is also predicted from the
    exact policy: E[p (1 - p)] / (B G n) + Var(p) / (B n), n updates a row.
*   Gradient noise, one policy, 4,000 sampled batches a group size: variance along the gradient of
    the reward, for std-normalised and for mean-only advantages.

Written to benchmarks/results: group_size_sweep.csv, .md, .png. About two minutes.
"""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from reporting import RESULTS, circumstances, table, write_csv, write_text

import bayes_grpo as bg
from bayes_grpo.simulate.curvature import Problem, reward_gradient
from bayes_grpo.simulate.design import Design, Hyper
from bayes_grpo.simulate.grpo import Loss, drift_factor, gradient
from bayes_grpo.simulate.network import expected_reward, log_policy, pretrain
from bayes_grpo.simulate.task import arithmetic_task
from bayes_grpo.simulate.training import sampled_batch, train_many

GROUP_SIZES = (2, 4, 8, 16, 64)
RATES = (0.2, 0.6, 1.8)
KL_WEIGHT, PROMPTS, WINDOW, ROWS = 0.8, 32, 16, 100
LATE = 1200
RESAMPLES, BATCHES = 2000, 4000


def line_variance(values: np.ndarray) -> np.ndarray:
    """Variance of each row of numbers about its own straight line."""
    n = values.shape[1]
    x = np.arange(n) - (n - 1) / 2
    slope = values @ x / (x @ x)
    left = values - values.mean(axis=1, keepdims=True) - slope[:, None] * x
    return (left**2).sum(axis=1) / (n - 2)


def exponent(by_group: dict[int, np.ndarray], rng: np.random.Generator) -> tuple[float, ...]:
    """alpha of variance ~ G^-alpha and its 95 % interval, runs drawn again within a group size."""
    x = np.log(list(by_group))

    def fit(means: list[float]) -> float:
        return float(-np.polyfit(x, np.log(means), 1)[0])

    drawn = [
        fit([float(rng.choice(v, len(v)).mean()) for v in by_group.values()])
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return fit([float(v.mean()) for v in by_group.values()]), float(low), float(high)


def half_time(rewards: np.ndarray, begin: float, late: np.ndarray) -> np.ndarray:
    """Updates until half of the rise to the late level, by interpolation; shape (runs,)."""
    steps = np.concatenate([[0], (1 + np.arange(rewards.shape[1])) * WINDOW])
    path = np.concatenate([np.full((len(rewards), 1), begin), rewards], axis=1)
    covered = (path - begin) / (late - begin)[:, None]
    first = (covered >= 0.5).argmax(axis=1)
    at = np.arange(len(rewards))
    before, after = covered[at, first - 1], covered[at, first]
    return steps[first - 1] + WINDOW * (0.5 - before) / (after - before)


def collect() -> dict[tuple[int, float], dict[str, np.ndarray]]:
    """Rows of the on-policy runs, shape (runs, rows), by group size and learning rate."""
    found: dict[tuple[int, float], dict[str, list[np.ndarray]]] = {}
    for run in bg.load_example("sweep"):
        if run.settings.refresh_interval == 1:
            kept = found.setdefault((run.settings.group_size, run.settings.learning_rate), {})
            for name in ("reward", "expected_reward", "step"):
                kept.setdefault(name, []).append(run.table[name].to_numpy())
    return {key: {n: np.array(v) for n, v in kept.items()} for key, kept in found.items()}


def exact_ends(runs: dict[str, np.ndarray]) -> np.ndarray:
    """Mean of the exact reward at the beginning and at the end of each row but the first."""
    return (runs["expected_reward"][:, :-1] + runs["expected_reward"][:, 1:]) / 2


def gradient_noise(
    task: Any, reference: Any, parameters: jax.Array, normalisation: Any
) -> dict[int, np.ndarray]:
    """Squared deviations of the sampled gradient along the reward's, batches of 32 prompts."""
    along = reward_gradient(Problem(task, reference, KL_WEIGHT), parameters)
    along = along / jnp.linalg.norm(along)
    result = {}
    for group_size in GROUP_SIZES:
        design = Design(
            group_size=group_size,
            prompts_per_step=PROMPTS,
            loss=Loss(normalisation=normalisation),
        )

        def one(key: jax.Array, design: Design = design) -> jax.Array:
            chosen, batch, _ = sampled_batch(design, task, reference, parameters, key)
            policy = partial(log_policy, reference.network, prompts=task.prompts[chosen])
            return jnp.vdot(along, gradient(policy, parameters, batch, KL_WEIGHT, design.loss)[0])

        keys = jax.random.split(jax.random.key(11), BATCHES)
        along_reward = np.asarray(jax.jit(jax.vmap(one))(keys), dtype=float)
        result[group_size] = (along_reward - along_reward.mean()) ** 2
    return result


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rng = np.random.default_rng(0)
    data = collect()
    task = arithmetic_task(0)
    reference = pretrain(task, 0)
    begin = float(expected_reward(reference, task, reference.parameters, task.trained))
    rows, noise, ends = [], {}, {}
    log_start = log_policy(reference.network, reference.parameters, task.prompts[task.trained])
    chances = np.asarray(jnp.sum(jnp.exp(log_start) * task.rewards[task.trained], axis=1))
    live = chances[chances > 0]
    for group_size in GROUP_SIZES:
        design = Design(group_size=group_size, exact=True, rows=ROWS, updates_per_row=WINDOW)
        history, state = train_many(
            design, task, reference, Hyper(jnp.array(RATES), 0.0, KL_WEIGHT)
        )
        ends[group_size] = state.parameters
        # Factor of each prompt at the start, weighted by its force at infinite G.
        force = np.sqrt(live * (1 - live))
        factors = [drift_factor(float(p), group_size) for p in live]
        for i, rate in enumerate(RATES):
            runs = data[group_size, rate]
            late = runs["step"][0] > LATE
            exact = np.asarray(history.expected_reward[i : i + 1], dtype=float)
            plateaus = runs["expected_reward"][:, late].mean(axis=1)
            predicted = exact[:, late].mean(axis=1)
            halves = half_time(runs["expected_reward"], begin, plateaus)
            noise[group_size, rate] = {
                "logged": line_variance(runs["reward"][:, late]),
                "process": line_variance(runs["expected_reward"][:, late]),
                # A row is the mean over its updates; the exact reward is known at its two ends.
                "sampling": line_variance((runs["reward"][:, 1:] - exact_ends(runs))[:, late[1:]]),
            }
            now = jnp.exp(
                log_policy(reference.network, state.parameters[i], task.prompts[task.trained])
            )
            p = np.asarray(jnp.sum(now * task.rewards[task.trained], axis=1), dtype=float)
            rows.append(
                {
                    "group_size": group_size,
                    "learning_rate": rate,
                    "runs": len(plateaus),
                    "late_reward": plateaus.mean(),
                    "late_reward_sd": plateaus.std(ddof=1),
                    "exact_drift": predicted[0],
                    "half_time": halves.mean(),
                    "half_time_sd": halves.std(ddof=1),
                    "exact_half_time": half_time(exact, begin, predicted)[0],
                    "drift_factor_at_start": float(np.average(factors, weights=force)),
                    "var_logged": noise[group_size, rate]["logged"].mean(),
                    "var_sampling": noise[group_size, rate]["sampling"].mean(),
                    "var_process": noise[group_size, rate]["process"].mean(),
                    "var_sampling_predicted": (
                        np.mean(p * (1 - p)) / group_size + np.var(p)
                    ) / (PROMPTS * WINDOW),
                }
            )  # fmt: skip
    exponents = {
        (kind, rate): exponent({g: noise[g, rate][kind] for g in GROUP_SIZES}, rng)
        for kind in ("logged", "sampling", "process")
        for rate in RATES
    }
    of_gradient = {
        kind: gradient_noise(task, reference, ends[64][1], kind) for kind in ("std", "mean")
    }
    write_csv(RESULTS / "group_size_sweep.csv", rows)
    slopes = {kind: exponent(found, rng) for kind, found in of_gradient.items()}
    variances = {
        kind: {g: float(v.mean()) for g, v in found.items()} for kind, found in of_gradient.items()
    }
    report(rows, exponents, variances, slopes)
    figure(pd.DataFrame(rows), variances)


def report(
    rows: list[dict[str, Any]],
    exponents: dict[Any, tuple[float, ...]],
    variances: dict[str, dict[int, float]],
    slopes: dict[str, tuple[float, ...]],
) -> None:
    means = [
        {
            "G": r["group_size"],
            "lr": r["learning_rate"],
            "late reward": f"{r['late_reward']:.3f} ± {r['late_reward_sd']:.3f}",
            "exact drift": f"{r['exact_drift']:.3f}",
            "time to half": f"{r['half_time']:.0f} ± {r['half_time_sd']:.0f}",
            "exact drift ": f"{r['exact_half_time']:.0f}",
            "drift factor at start": f"{r['drift_factor_at_start']:.3f}",
        }
        for r in rows
    ]
    laws = [
        {
            "variance of": kind,
            **{
                f"lr {rate}": "{:.2f} ({:.2f} to {:.2f})".format(*exponents[kind, rate])
                for rate in RATES
            },
        }
        for kind in ("logged", "sampling", "process")
    ]
    sampling = [
        {
            "G": r["group_size"],
            "lr": r["learning_rate"],
            "logged": f"{r['var_logged']:.2e}",
            "sampling": f"{r['var_sampling']:.2e}",
            "sampling, predicted": f"{r['var_sampling_predicted']:.2e}",
            "process": f"{r['var_process']:.2e}",
        }
        for r in rows
    ]
    noise = [
        {
            "advantages": kind,
            **{f"G = {g}": f"{v:.2e}" for g, v in found.items()},
            "alpha": "{:.2f} ({:.2f} to {:.2f})".format(*slopes[kind]),
        }
        for kind, found in variances.items()
    ]
    frame = pd.DataFrame(rows)
    readings = []
    for rate, part in frame.groupby("learning_rate"):
        late = part["late_reward"].to_numpy()
        off = np.abs(late - part["exact_drift"]).max()
        times = part["half_time"].to_numpy()
        readings.append(
            f"*   Learning rate {rate:g}: the late reward rises by {late[-1] - late[0]:.3f} from "
            f"G = 2 to G = 64, and lies within {off:.3f} of the exact drift of its group size; "
            f"times to half differ by a factor {times.max() / times.min():.2f}."
        )
    text = f"""# Group size: the mean and the noise

{circumstances()}

On-policy runs of the sweep (refresh interval 1), 15 a line: 3 momenta x 5 replicates. Standard
deviations are over runs.

## Mean

{table(means)}

{chr(10).join(readings)}

Exact drifts are those of momentum 0; a run with momentum .9 is some 10 updates later. The drift
factor (mean over prompts, weighted by their force) says how much weaker the reward force of a group
of G is at the start; the KL penalty does not shrink with it, so the plateau moves.

## Exponents of the noise

Variance ~ G^-alpha of late rows; alpha and 95 % bootstrap interval.

{table(laws)}

{table(sampling)}

## Noise of the gradient along the reward

One policy (end of the exact run with G = 64, lr 0.6), batches of 32 prompts drawn at random.
The policy is near rest for std-normalised advantages only: with mean-only ones every prompt still
pulls, and which prompts are drawn is a noise that groups of any size keep.

{table(noise)}
"""
    write_text(RESULTS / "group_size_sweep.md", text)


def figure(frame: pd.DataFrame, variances: dict[str, dict[int, float]]) -> None:
    whole, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8))
    for rate, marker in zip(RATES, "os^", strict=True):
        part = frame[frame["learning_rate"] == rate]
        line = left.plot(part["group_size"], part["exact_drift"], lw=1)[0]
        left.errorbar(
            part["group_size"], part["late_reward"], part["late_reward_sd"], fmt=marker,
            color=line.get_color(), label=f"learning rate {rate:g}",
        )  # fmt: skip
    left.set(xscale="log", xlabel="group size", ylabel="late expected reward",
             title="Runs (points) and exact drift (lines)")  # fmt: skip
    left.legend(frameon=False)
    part = frame[frame["learning_rate"] == 0.6]
    for name, label in (("logged", "logged reward"), ("sampling", "sampling noise"),
                        ("process", "process noise")):  # fmt: skip
        middle.plot(part["group_size"], part[f"var_{name}"], "o-", label=label)
    middle.plot(part["group_size"], part["var_sampling_predicted"], "k--", lw=1,
                label="sampling, predicted")  # fmt: skip
    g = np.array([2, 64])
    middle.plot(g, 2 * part["var_process"].iloc[0] / g, ":", color="grey", label="1 / G")
    middle.set(xscale="log", yscale="log", xlabel="group size", ylabel="variance of a late row",
               title="Noise, learning rate 0.6")  # fmt: skip
    middle.legend(frameon=False, fontsize=8)
    for kind, marker in (("std", "o"), ("mean", "s")):
        found = variances[kind]
        right.plot(list(found), list(found.values()), marker + "-", label=kind)
        right.plot(g, 2 * found[2] / g, ":", color="grey", label="1 / G" if kind == "std" else None)
    right.set(xscale="log", yscale="log", xlabel="group size", ylabel="variance along the reward",
              title="Gradient noise at one policy")  # fmt: skip
    right.legend(frameon=False)
    for axes in (left, middle, right):
        axes.set_xticks(GROUP_SIZES, [str(size) for size in GROUP_SIZES], minor=False)
        axes.minorticks_off()
    whole.tight_layout()
    temporary = RESULTS / "group_size_sweep.tmp.png"
    whole.savefig(temporary, dpi=130)
    temporary.replace(RESULTS / "group_size_sweep.png")


if __name__ == "__main__":
    main()
