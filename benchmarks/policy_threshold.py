"""Where does staleness make GRPO unstable, and does an independently measured curvature tell?

    nice python benchmarks/policy_threshold.py

The small neural policy of bayes_grpo.simulate, for three tasks and references. No curve is fitted:

1.  Curvatures. Exact on-policy training (every answer of every training prompt summed, infinite
    groups) to near rest; then, from the exact drift: the largest curvature of its Jacobian
    (Lanczos), at the start and at rest; the mean curvature seen by the reward (Rayleigh quotient
    along its gradient); the K that the reward shows after a small change of the KL weight; and the
    rate 1 / t63 at which the reward covers 63 % of its rise. Five candidates for the one K.
2.  Local thresholds. A small displacement from rest along the top mode, exact drift: the learning
    rate at which it grows to three times itself, and at which it overshoots by 1 %, by bisection,
    for each momentum and refresh interval (and for a constant lag).
3.  Training thresholds. From the reference, exact drift and sampled (G = 8): the learning rate at
    which the expected reward falls by 0.1 from its running maximum, and (exact drift) by 0.005.
4.  Which surrogates are concerned: the same with importance ratios, clipping, a fresh KL penalty.

Predictions: leading order, eta K K_ref = 1 (the ema convention), and exact, from the eigenvalues
of the block map. Overshoot is predicted by the scalar recursion under the criterion that is used.

Written to benchmarks/results: policy_threshold.csv, .md, .png. Results so far are kept in a partial
file; --resume goes on with them. About 10 minutes on two quiet cores.
"""

import argparse
import textwrap
from collections.abc import Callable
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
from resumable import Partial, Progress

import bayes_grpo as bg
from bayes_grpo.precision import float64
from bayes_grpo.simulate.curvature import (
    Problem,
    response_curvature,
    reward_spectrum,
    top_curvature,
)
from bayes_grpo.simulate.design import Design, Hyper
from bayes_grpo.simulate.grpo import Loss
from bayes_grpo.simulate.network import Reference, expected_reward, pretrain
from bayes_grpo.simulate.task import arithmetic_task
from bayes_grpo.simulate.training import initial_state, train, update

KL_WEIGHT = 0.8
MOMENTA = (0.0, 0.9)
INTERVALS = (1, 2, 4, 8, 16)
REST = 1000
"""Updates of exact training (learning rate 1, momentum 0.9) taken for rest."""

LOCAL_UPDATES, TRAINING_UPDATES = 256, 480
UPDATES_PER_ROW = 4
DISPLACEMENT, OVERSHOOT, GROWTH = 0.01, 0.01, 3.0
"""Of the top mode at rest; the others are measured in units of it."""

COLLAPSE, WAVE = 0.1, 0.005
HALVINGS = 6
RANGE = 4.0
"""Bisection looks from prediction / RANGE to prediction * RANGE: it ends within 2.2 %."""

FAR = 6.0
"""The same around three times the prediction (around it if on-policy), for collapses: 2.8 %."""

LAST_COLUMNS = ("task", "kind", "momentum", "refresh_interval", "value", "predicted", "inside")

SEEDS = 5
STALE = Loss()
VARIANTS = {
    "none, KL stale": STALE,
    "none, KL fresh": Loss(stale_force="reward"),
    "clipped, KL fresh": Loss(ratio="clipped", stale_force="reward"),
    "unclipped, KL fresh": Loss(ratio="unclipped", stale_force="reward"),
    "unclipped, KL fresh, mean": Loss(
        ratio="unclipped", stale_force="reward", normalisation="mean"
    ),
}


# Predictions of the theory, in Lambda = eta K K_ref (ema).


def block_radius(staleness: float, momentum: float, interval: int, lag: str) -> float:
    """Spectral radius of the linear map; above 1 the mean diverges."""
    a = (1 - momentum) * staleness / interval
    if lag == "constant":
        # The sampler is K_ref updates behind: z^(K_ref - 1) (z - 1) (z - mu) + a = 0.
        polynomial = np.zeros(interval + 2)
        polynomial[:3] = 1, -(1 + momentum), momentum
        polynomial[-1] += a
        return float(np.abs(np.roots(polynomial)).max())
    b = momentum * _geometric(momentum, interval)
    c = _geometric(momentum, interval)
    d = (interval - b) / (1 - momentum)
    block = np.array([[1 - a * d, b], [-a * c, momentum**interval]])
    return float(np.abs(np.linalg.eigvals(block)).max())


def _geometric(momentum: float, interval: int) -> float:
    return (1 - momentum**interval) / (1 - momentum)


def divergence_staleness(momentum: float, interval: int, lag: str = "hold") -> float:
    """Lambda at which the mean diverges, exactly."""
    grid = np.geomspace(0.05, 100, 2000)
    above = [block_radius(x, momentum, interval, lag) > 1 + 1e-9 for x in grid]
    at = int(np.argmax(above))
    return _bisect(
        lambda x: block_radius(x, momentum, interval, lag) > 1 + 1e-9, grid[at - 1], grid[at]
    )


def overshoot_staleness(momentum: float, interval: int, updates: int) -> float:
    """Lambda at which the scalar recursion, released at 1, passes -OVERSHOOT at a refresh."""

    def passes(staleness: float) -> bool:
        a = (1 - momentum) * staleness / interval
        x, v, held = 1.0, 0.0, 1.0
        for t in range(updates):
            if t % interval == 0:
                held = x
                if x < -OVERSHOOT:
                    return True
            v = momentum * v - a * held
            x += v
        return False

    return _bisect(passes, 1e-3, 5.0)


def _bisect(test: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(40):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if test(middle) else (middle, high)
    return float(np.sqrt(low * high))


# Measurements.


def bisect_rates(
    exceeds: Callable[[np.ndarray], np.ndarray], guess: np.ndarray, around: float = RANGE
) -> tuple[np.ndarray, np.ndarray]:
    """Learning rates above which a criterion holds, and whether each lies within the range."""
    low, high = guess / around, guess * around
    inside = ~exceeds(low) & exceeds(high)
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        over = exceeds(middle)
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return np.sqrt(low * high), inside


@partial(jax.jit, static_argnums=(0, 2))
def _displaced(design: Design, task: Any, network: Any, arrays: Any, rest: Any, u: Any, hyper: Any):
    """Displacement along u after every update, in units of the first, for many runs.

    Against a twin that starts undisplaced: what is not quite at rest moves on by itself.
    """
    reference = Reference(network, *arrays)

    def one(h: Hyper) -> jax.Array:
        def step(states, _):
            after = [update(design, task, reference, h, state)[0] for state in states]
            apart = after[0].parameters - after[1].parameters
            return after, jnp.vdot(apart, u) / DISPLACEMENT

        begin = [initial_state(design, rest + x * u) for x in (DISPLACEMENT, 0.0)]
        return jax.lax.scan(step, begin, length=LOCAL_UPDATES)[1]

    return jax.vmap(one)(hyper)


def _hyper(rate: np.ndarray, momentum: np.ndarray, interval: np.ndarray, lag: np.ndarray, seed=0):
    n = len(rate)
    return Hyper(
        jnp.asarray(rate, float),
        jnp.asarray(momentum, float),
        jnp.full(n, KL_WEIGHT),
        jnp.asarray(interval, jnp.int32),
        jnp.asarray(lag, jnp.int32),
        jnp.broadcast_to(jnp.asarray(seed, jnp.uint32), (n,)),
    )


@partial(jax.jit, static_argnums=(0, 2))
def _rewards(design: Design, task: Any, network: Any, arrays: Any, hyper: Any) -> jax.Array:
    reference = Reference(network, *arrays)
    return jax.vmap(lambda h: train(design, task, reference, h)[0].expected_reward)(hyper)


def drawdown(rewards: np.ndarray) -> np.ndarray:
    """Largest fall from the running maximum; infinite where training left the numbers."""
    fall = (np.maximum.accumulate(rewards, axis=-1) - rewards).max(axis=-1)
    return np.where(np.isfinite(rewards).all(axis=-1), fall, np.inf)


def curvatures(problem: Problem) -> tuple[dict[str, float], jax.Array, np.ndarray]:
    """The candidates for K, the parameters at rest, and the top mode there."""
    task, reference = problem.task, problem.reference
    design = Design(group_size=None, loss=problem.loss, rows=REST, exact=True)
    run = jax.jit(lambda h: train(design, task, reference, h))
    history, state = run(Hyper(1.0, 0.9, KL_WEIGHT))
    rest = state.parameters
    rewards = np.asarray(history.expected_reward)
    begin = float(expected_reward(reference, task, reference.parameters, task.trained))
    covered = (rewards - begin) / (rewards[-1] - begin)
    t63 = float(1 + np.argmax(covered > 1 - np.exp(-1)))
    top, mode = top_curvature(problem, rest)
    spectrum = reward_spectrum(problem, rest)
    found = {
        "initial_reward": begin,
        "plateau": float(rewards[-1]),
        "grad_norm_at_rest": float(history.grad_norm[-1]),
        "K_top": top,
        "K_top_start": top_curvature(problem, reference.parameters)[0],
        "K_mean": float(spectrum.weight @ spectrum.curvature),
        "K_response": response_curvature(problem, rest, time=300.0),
        "K_rise": 1 / t63,
    }
    return found, rest, mode


class Study:
    """The measurements of one task, stage by stage; each stage returns rows of the table."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.task = arithmetic_task(seed)
        self.reference = pretrain(self.task, seed)
        self.arrays = (self.reference.parameters, self.reference.log_probabilities)
        pairs = [(m, k) for m in MOMENTA for k in INTERVALS]
        self.momentum, self.interval = (np.array(x) for x in zip(*pairs, strict=True))
        self.zero = np.zeros_like(self.interval)
        self.initial_reward = float(
            expected_reward(self.reference, self.task, self.reference.parameters, self.task.trained)
        )
        self.top_start = top_curvature(
            Problem(self.task, self.reference, KL_WEIGHT), self.reference.parameters
        )[0]

    def row(self, kind: str, i: int, value: Any, predicted: Any = None, inside: Any = True):
        return dict(
            zip(
                LAST_COLUMNS,
                (self.seed, kind, float(self.momentum[i]), int(self.interval[i]), float(value),
                 None if predicted is None else float(predicted), bool(inside)),
                strict=True,
            )
        )  # fmt: skip

    def rows(
        self, kind: str, guess: np.ndarray, predicted: np.ndarray, exceeds: Any,
        around: float = RANGE,
    ):  # fmt: skip
        rate, inside = bisect_rates(exceeds, guess, around)
        return [
            self.row(kind, i, rate[i], predicted[i], inside[i]) for i in range(len(self.momentum))
        ]

    def divergence(self, lag: str = "hold") -> np.ndarray:
        pairs = zip(self.momentum, self.interval, strict=True)
        return np.array([divergence_staleness(m, k, lag) for m, k in pairs])

    def rest(self) -> list[dict[str, Any]]:
        """Curvatures, and thresholds of small displacements at rest."""
        with float64():
            task = arithmetic_task(self.seed)
            reference = pretrain(task, self.seed)
            found, rest, mode = curvatures(Problem(task, reference, KL_WEIGHT))
            rest, mode = np.asarray(rest, np.float32), np.asarray(mode, np.float32)
            arrays = tuple(
                np.asarray(x, np.float32)
                for x in (reference.parameters, reference.log_probabilities)
            )
        result = [self.row(name, 0, value) for name, value in found.items()]
        result = [{**row, "momentum": None, "refresh_interval": None} for row in result]
        steps = np.arange(1, LOCAL_UPDATES + 1)
        scale = found["K_top"] * self.interval

        def displaced(rate: np.ndarray, lag: str) -> np.ndarray:
            design = Design(
                group_size=None, exact=True, lag_pattern=lag, longest_lag=max(INTERVALS)
            )
            lags = self.interval if lag == "constant" else self.zero
            hyper = _hyper(rate, self.momentum, self.interval, lags)
            x = _displaced(
                design, self.task, self.reference.network, tuple(map(jnp.asarray, arrays)),
                jnp.asarray(rest), jnp.asarray(mode), hyper,
            )  # fmt: skip
            return np.asarray(x, dtype=float)

        def grows(rate: np.ndarray, lag: str) -> np.ndarray:
            x = np.abs(displaced(rate, lag))
            return (~np.isfinite(x) | (x > GROWTH)).any(axis=1)

        def overshoots(rate: np.ndarray) -> np.ndarray:
            x = displaced(rate, "hold")
            at_refresh = steps[None, :] % self.interval[:, None] == 0
            return (~np.isfinite(x) | ((x < -OVERSHOOT) & at_refresh)).any(axis=1)

        for lag in ("hold", "constant"):
            exact = self.divergence(lag)
            kind = f"local divergence, {lag}"
            result += self.rows(kind, exact / scale, exact, partial(grows, lag=lag))
        pairs = zip(self.momentum, self.interval, strict=True)
        onset = np.array([overshoot_staleness(m, k, LOCAL_UPDATES) for m, k in pairs])
        return result + self.rows("local overshoot, hold", onset / scale, onset, overshoots)

    def fall(self, design: Design, rate: np.ndarray, repeat: int = 1) -> np.ndarray:
        """Drawdown of the expected reward in training from the reference."""
        momentum, interval = np.repeat(self.momentum, repeat), np.repeat(self.interval, repeat)
        seeds = np.tile(np.arange(repeat), len(self.momentum)) + 100 * self.seed
        hyper = _hyper(rate, momentum, interval, 0 * interval, seeds)
        rewards = _rewards(design, self.task, self.reference.network, self.arrays, hyper)
        begin = np.full((len(rewards), 1), self.initial_reward)
        return drawdown(np.concatenate([begin, np.asarray(rewards, dtype=float)], axis=1))

    def design(self, **more: Any) -> Design:
        rows = TRAINING_UPDATES // UPDATES_PER_ROW
        return Design(rows=rows, updates_per_row=UPDATES_PER_ROW, **more)

    def collapse_guess(self) -> np.ndarray:
        beyond = np.where(self.interval == 1, 1.0, 3.0)
        return beyond * self.divergence() / (self.top_start * self.interval)

    def collapse(self, kind: str, loss: Loss = STALE) -> list[dict[str, Any]]:
        design = self.design(group_size=None, exact=True, loss=loss)
        return self.rows(
            kind,
            self.collapse_guess(),
            self.divergence(),
            lambda rate: self.fall(design, rate) > COLLAPSE,
            FAR,
        )

    def wave(self) -> list[dict[str, Any]]:
        exact = self.divergence()
        design = self.design(group_size=None, exact=True)
        guess = exact / (self.top_start * self.interval)
        return self.rows(
            "wave, exact drift", guess, exact, lambda rate: self.fall(design, rate) > WAVE
        )

    def sampled(self) -> list[dict[str, Any]]:
        exact = self.divergence()
        guess = np.repeat(self.collapse_guess(), SEEDS)
        design = self.design(group_size=8)
        rate, inside = bisect_rates(
            lambda rate: self.fall(design, rate, SEEDS) > COLLAPSE, guess, FAR
        )
        return [
            self.row("collapse, G = 8", i // SEEDS, rate[i], exact[i // SEEDS], inside[i])
            for i in range(len(rate))
        ]

    def variants(self) -> list[dict[str, Any]]:
        few = (self.interval == 1) | (self.interval == 8)
        self.momentum, self.interval = self.momentum[few], self.interval[few]
        result = []
        for name, loss in VARIANTS.items():
            result += self.collapse(f"variant: {name}", loss)
        return result


STAGES: dict[str, Callable[[Study], list[dict[str, Any]]]] = {
    "sampled": Study.sampled,
    "collapse": lambda s: s.collapse("collapse, exact drift"),
    "rest": Study.rest,
    "wave": Study.wave,
    "variants": Study.variants,
}


def measure(seed: int, resume: bool) -> list[dict[str, Any]]:
    """All rows of a task; finished stages are kept in its partial file."""
    depends = {"kl_weight": KL_WEIGHT, "momenta": list(MOMENTA), "intervals": list(INTERVALS)}
    kept = Partial(RESULTS / f"policy_threshold_{seed}.partial.jsonl", depends, resume)
    there = {item["stage"] for item in kept.items}
    # The variants are a question of principle: one task answers it.
    stages = {name: f for name, f in STAGES.items() if name != "variants" or seed == 0}
    progress = Progress(len(stages), f"task {seed}, stage")
    missing = [name for name in stages if name not in there]
    study = Study(seed) if missing else None
    for name, stage in stages.items():
        if name in missing:
            kept.add({"stage": name, "rows": stage(study)})
        progress.step(name)
    return [row for item in kept.items for row in item["rows"]]


CANDIDATES = {
    "K_top": "largest curvature, at rest",
    "K_top_start": "largest curvature, at the start",
    "K_mean": "mean curvature along the gradient of the reward, at rest",
    "K_response": "response of the reward to a change of the KL weight, at rest",
    "K_rise": "1 / time to 63 % of the rise of the reward",
}
MEASURED = {
    "local overshoot, hold": "overshoot at rest",
    "local divergence, hold": "divergence at rest",
    "local divergence, constant": "divergence at rest, constant lag",
    "wave, exact drift": "wave of 0.005 in training",
    "collapse, exact drift": "collapse in training",
    "collapse, G = 8": "collapse in training, G = 8",
}


def sweep_collapses() -> pd.DataFrame:
    """Share of collapsed runs of the factorial data set, by momentum and eta K_ref."""
    runs = []
    task = arithmetic_task(0)
    reference = pretrain(task, 0)
    begin = float(expected_reward(reference, task, reference.parameters, task.trained))
    for run in bg.load_example("sweep"):
        rewards = np.concatenate([[begin], run.table["expected_reward"]])
        s = run.settings
        runs.append(
            {
                "momentum": s.momentum,
                "group_size": s.group_size,
                "refresh_interval": s.refresh_interval,
                "rate_times_interval": s.learning_rate * s.refresh_interval,
                "collapsed": bool(drawdown(rewards) > COLLAPSE),
            }
        )
    return pd.DataFrame(runs)


def mean_sd(values: pd.Series) -> str:
    return f"{values.mean():.3g} ± {values.std(ddof=1):.2g}"


def report(frame: pd.DataFrame, sweep: pd.DataFrame) -> None:
    """Tables of thresholds and what each candidate for K predicts."""
    curves = frame[frame["kind"].isin(CANDIDATES)].pivot(
        index="task", columns="kind", values="value"
    )
    tasks = len(curves)
    measured = frame[frame["kind"].isin(MEASURED)].copy()
    measured["product"] = measured["value"] * measured["refresh_interval"]
    measured["implied"] = measured["predicted"] / measured["product"]
    thresholds = []
    for (momentum, interval), part in measured.groupby(["momentum", "refresh_interval"]):
        line = {"momentum": f"{momentum:g}", "K_ref": f"{interval:g}"}
        for kind, label in MEASURED.items():
            of_kind = part[part["kind"] == kind]
            top = of_kind["task"].map(curves["K_top" if "rest" in label else "K_top_start"])
            outside = int((~of_kind["inside"]).sum())
            line[label] = (
                f"{of_kind['predicted'].iloc[0]:.2f} / {mean_sd(of_kind['product'] * top)}"
                + (f" ({outside} out)" if outside else "")
            )
        thresholds.append(line)
    verdicts = []
    for kind, label in MEASURED.items():
        of_kind = measured[(measured["kind"] == kind) & measured["inside"]]
        line = {"measured": label, "implied K": f"{of_kind['implied'].median():.2g}"}
        for name in CANDIDATES:
            # Measured over predicted threshold: the prediction is Lambda* / (K K_ref).
            factor = of_kind["task"].map(curves[name]) / of_kind["implied"]
            low, middle, high = np.quantile(factor, [0.1, 0.5, 0.9])
            line[name] = f"{middle:.2g} ({low:.2g} to {high:.2g})"
        leading = of_kind["product"] * of_kind["task"].map(curves["K_top"])
        line["K_top, leading order"] = "{1:.2g} ({0:.2g} to {2:.2g})".format(
            *np.quantile(leading, [0.1, 0.5, 0.9])
        )
        verdicts.append(line)
    at_rest, in_training = verdicts[:3], verdicts[3:]
    reading = (
        f"Measured over exact prediction, median and 10 to 90 % range. At rest, with the largest "
        f"curvature at rest as K: overshoot {at_rest[0]['K_top']}, divergence "
        f"{at_rest[1]['K_top']}, with a constant lag {at_rest[2]['K_top']}: holds. Leading order "
        f"(Lambda = 1) is off by {at_rest[1]['K_top, leading order']}. In training from the "
        f"reference, with the largest curvature at the start: waves "
        f"{in_training[0]['K_top_start']}, collapse by {COLLAPSE} {in_training[1]['K_top_start']}, "
        f"sampled {in_training[2]['K_top_start']}: holds up to these factors, as a necessary "
        f"condition, because oscillations beyond the threshold saturate. On-policy with momentum "
        f"0.9, sampled runs collapse far below the prediction (table above): noise, not lag. The "
        f"K that the curve of the reward shows (K_rise) fails: its thresholds are too high by a "
        f"factor of {1 / float(at_rest[1]['K_rise'].split()[0]):.0f} at rest."
    )
    variants = [
        {
            "momentum": f"{momentum:g}",
            "K_ref": f"{interval:g}",
            **{
                name: f"{v:.3g}" if inside else f"{v:.3g} (edge of the search)"
                for name, v, inside in zip(
                    part["kind"].str.removeprefix("variant: "),
                    part["value"] * interval,
                    part["inside"],
                    strict=True,
                )
            },
        }
        for (momentum, interval), part in frame[frame["kind"].str.startswith("variant")].groupby(
            ["momentum", "refresh_interval"]
        )
    ]
    shares = sweep.pivot_table(
        index="momentum", columns="rate_times_interval", values="collapsed", aggfunc="mean"
    )
    found = [
        {"momentum": f"{m:g}", **{f"{x:g}": f"{v:.2f}" for x, v in row.items()}}
        for m, row in shares.iterrows()
    ]
    by_size = sweep.groupby("group_size")["collapsed"].mean()
    text = f"""# Staleness: measured thresholds against independently measured curvature

{circumstances()}

{tasks} tasks and references, no fitted curve. ± is the standard deviation over tasks (over tasks
and seeds for G = 8).

## Candidates for K, per unit learning rate

{table([{"": k, "meaning": v, "value": mean_sd(curves[k])} for k, v in CANDIDATES.items()])}

## Thresholds in units of Lambda = eta K K_ref

Predicted exactly / measured; K is the largest curvature, at rest for displacements at rest, at the
start for training. "Out": the threshold was at the edge of the search or beyond. Leading order
predicts 1 for every divergence.

{table(thresholds)}

## Measured threshold over prediction

Median and 10 to 90 % range over tasks, momenta and refresh intervals, with each candidate as K in
the exact prediction. 1: holds.

{table(verdicts)}

{textwrap.fill(reading, 98)}

## Which surrogates are concerned

eta K_ref at collapse (exact drift, task 0), by the ratio of the surrogate, by whether its KL
penalty is stale, and for advantages without std normalisation ("mean").

{table(variants)}

## The factorial data set

Share of collapsed runs (all group sizes and replicates) by eta K_ref:

{table(found)}

By group size, all cells: {", ".join(f"G = {g}: {v:.3f}" for g, v in by_size.items())}.
"""
    write_text(RESULTS / "policy_threshold.md", text)


def figure(frame: pd.DataFrame, sweep: pd.DataFrame) -> None:
    whole, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4.2))
    curves = frame[frame["kind"].isin(CANDIDATES)].pivot(
        index="task", columns="kind", values="value"
    )
    top = curves["K_top_start"].mean()
    colors = dict(zip((0.0, 0.5, 0.9), ("C0", "C2", "C1"), strict=True))
    for axes, kinds in (
        (left, {"local divergence, hold": "o", "local overshoot, hold": "v"}),
        (middle, {"collapse, exact drift": "s", "collapse, G = 8": "o", "wave, exact drift": "v"}),
    ):
        for kind, marker in kinds.items():
            part = frame[(frame["kind"] == kind) & frame["inside"]]
            name = "K_top" if axes is left else "K_top_start"
            scaled = part["value"] * part["refresh_interval"] * part["task"].map(curves[name])
            for momentum, of in scaled.groupby(part["momentum"]):
                x = part.loc[of.index, "refresh_interval"]
                axes.plot(
                    x * (0.96 if momentum == 0 else 1.04), of, marker, ms=4, alpha=0.6,
                    color=colors[momentum], mfc="none" if marker != "o" else None,
                    label=f"{MEASURED[kind].replace(' in training', '')}, momentum {momentum:g}",
                )  # fmt: skip
        for momentum in MOMENTA:
            exact = [divergence_staleness(momentum, k) for k in INTERVALS]
            axes.plot(INTERVALS, exact, color=colors[momentum], lw=1.2)
            if axes is left:
                onset = [overshoot_staleness(momentum, k, LOCAL_UPDATES) for k in INTERVALS]
                axes.plot(INTERVALS, onset, color=colors[momentum], lw=1.2, ls="--")
        axes.axhline(1, color="grey", ls=":", lw=1)
        axes.set(xscale="log", yscale="log", xlabel="refresh interval (updates)")
        axes.set_xticks(INTERVALS, [str(k) for k in INTERVALS])
        axes.minorticks_off()
        axes.legend(frameon=False, fontsize=7)
    left.set(ylabel="learning rate × top curvature × refresh interval", title="At rest")
    middle.set(title="Training from the reference", ylim=(0.8, 700))
    left.set(ylim=(0.02, 400))
    for momentum, part in sweep.groupby("momentum"):
        share = part.groupby("rate_times_interval")["collapsed"].mean()
        right.plot(share.index * top, share, "o-", color=colors[momentum], ms=4,
                   label=f"momentum {momentum:g}")  # fmt: skip
        right.axvline(divergence_staleness(momentum, 16), color=colors[momentum], ls="--", lw=1)
    right.axvline(1, color="grey", ls=":", lw=1)
    right.set(xscale="log", xlabel="learning rate × top curvature × refresh interval",
              ylabel="share of collapsed runs", title="Factorial data set")  # fmt: skip
    right.legend(frameon=False, fontsize=8)
    whole.text(
        0.5, 0.01, "Lines: exact thresholds of divergence (solid; in the right panel dashed, for "
        "a refresh interval of 16) and of overshoot (dashed). Dotted: leading order.",
        ha="center", fontsize=8,
    )  # fmt: skip
    whole.tight_layout(rect=(0, 0.04, 1, 1))
    temporary = RESULTS / "policy_threshold.tmp.png"
    whole.savefig(temporary, dpi=130)
    temporary.replace(RESULTS / "policy_threshold.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=3, help="tasks and references (default 3)")
    parser.add_argument("--only", type=int, help="measure this task only, report with --resume")
    parser.add_argument("--resume", action="store_true", help="go on with the partial files")
    options = parser.parse_args()
    if options.only is not None:
        measure(options.only, options.resume)
        return
    rows = [row for seed in range(options.tasks) for row in measure(seed, options.resume)]
    frame = pd.DataFrame(rows).astype({"momentum": float, "refresh_interval": float})
    sweep = sweep_collapses()
    report(frame, sweep)
    figure(frame, sweep)
    write_csv(RESULTS / "policy_threshold.csv", rows)
    for seed in range(options.tasks):
        (RESULTS / f"policy_threshold_{seed}.partial.jsonl").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
