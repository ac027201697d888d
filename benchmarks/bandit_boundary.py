"""Where a bandit's mean dynamics diverge: simulation against leading order and exact theory.

    python benchmarks/bandit_boundary.py

Two-arm bandits with infinite groups (no noise) start a ten-thousandth of a logit from their fixed
point.  The learning rate is searched at which the distance stops decaying and starts growing; every
setting of a lag pattern is simulated at once.  In units of

    staleness = learning_rate K K_ref / (1 - momentum)

with the closed-form curvature K of the bandit, leading order (arXiv 2606.30789) puts the boundary
at 1 for every setting.  Exact theory takes it from eigenvalues of one refresh: with ``n = K_ref``,
the stiffness split into ``s`` (what the sampler exerts) and ``c`` (what the current policy exerts),
n updates of

    v <- momentum v - rate (s held + c R),   R <- R + v

make a 2 x 2 block, as ``held`` is R at the refresh; a constant lag of n updates has the
characteristic polynomial ``z^n ((z - 1)(z - momentum) + rate c z) + rate s z``.  Both are computed
here from nothing but these lines, so that they also check the package's own thresholds.

Settings: momentum x K_ref x lag pattern x normalisation x KL weight, with the whole force stale as
the theory assumes; then what trainers do, with the KL term at the current policy or importance
ratios, where only a part of the force is stale.

The second table leaves the fixed point: the largest staleness at which a run that starts at a
distance still settles, over the exact boundary.

Written to benchmarks/results: ``bandit_boundary.csv``, ``.md``, ``.png``.  Exit status 1 if the
exact theory is off by more than 3 % anywhere in the first part.
"""

import argparse
import sys
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from reporting import RESULTS, circumstances, table, write_csv, write_text

from bayes_grpo.simulate import Bandit, curvature, simulate_bandit

MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95)
HELD = (1, 2, 4, 8, 16, 32)
KL_WEIGHTS = {"mean": (0.5, 1.0), "std": (1.8, 3.0)}
SMALL = 1e-4
"""Distance of the start from the fixed point, in logits."""

UPDATES = 6000
RANGE = (0.02, 120.0)
"""Staleness between which a boundary is looked for."""

GRID, HALVINGS = 54, 12
TOLERANCE = 0.03

SLOWEST = 0.06
"""Lowest staleness looked at from afar: below it runs have not settled yet, stable or not."""

DISTANCES = (0.01, 0.1, 0.3, 1.0, 2.0, 4.0)


class Setting(NamedTuple):
    momentum: float
    held: int
    lag_pattern: str
    normalisation: str
    kl_weight: float
    ratio: str = "none"
    stale_force: str = "all"


class Known(NamedTuple):
    """What the closed form says of a setting."""

    plateau: float
    logit: float
    stale: float
    current: float

    @property
    def curvature(self) -> float:
        return self.stale + self.current


UNIT = Known(0.5, 0.0, 1.0, 0.0)
"""Any bandit whose force is stale as a whole: in units of staleness they share their boundary."""


def bandit_of(setting: Setting) -> Bandit:
    return Bandit(
        kl_weight=setting.kl_weight,
        normalisation=setting.normalisation,
        ratio=setting.ratio,
        stale_force=setting.stale_force,
    )


def know(setting: Setting) -> Known:
    end = curvature(bandit_of(setting))
    logit = float(np.log(end.policy[0] / end.policy[1]))
    return Known(end.plateau, logit, end.stale_curvature, end.curvature - end.stale_curvature)


def largest_eigenvalue(setting: Setting, stale: float, current: float) -> float:
    """Growth of a small deviation per refresh or update; stiffnesses are per update."""
    momentum, held = setting.momentum, setting.held
    if setting.lag_pattern == "constant":
        z = np.poly1d([1.0, 0.0])
        inside = (z - 1) * (z - momentum) + current * z
        return float(np.abs((inside * z**held + stale * z).roots).max())
    # (R, v, held reward): the held one is R at the refresh.
    update = np.array(
        [[1 - current, momentum, -stale], [-current, momentum, -stale], [0.0, 0.0, 1.0]]
    )
    refresh = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    block = (np.linalg.matrix_power(update, held) @ refresh)[:2]
    return float(np.abs(np.linalg.eigvals(block)).max())


def first_crossing(
    unstable: Callable[[np.ndarray], np.ndarray], count: int, lowest: float = RANGE[0]
) -> np.ndarray:
    """Lowest staleness in `RANGE` from which on each of ``count`` settings is unstable.

    A grid, then halvings between the last stable and the first unstable point; NaN if none is
    unstable.
    """
    grid = np.geomspace(lowest, RANGE[1], GRID)
    found = np.stack([unstable(np.full(count, at)) for at in grid], axis=1)
    first = found.argmax(axis=1)
    low, high = grid[np.maximum(first - 1, 0)], grid[first]
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        grows = unstable(middle)
        low, high = np.where(grows, low, middle), np.where(grows, middle, high)
    return np.where(found.any(axis=1) & (first > 0), np.sqrt(low * high), np.nan)


def exact_boundary(setting: Setting, known: Known) -> float:
    def unstable(staleness: np.ndarray) -> np.ndarray:
        return np.array([grows(float(at)) for at in staleness])

    def grows(staleness: float) -> bool:
        rate = staleness * (1 - setting.momentum) / (known.curvature * setting.held)
        return largest_eigenvalue(setting, rate * known.stale, rate * known.current) > 1 + 1e-12

    return float(first_crossing(unstable, 1)[0])


def simulated(
    settings: list[Setting], knowns: list[Known], staleness: np.ndarray, below: np.ndarray
) -> np.ndarray:
    """Distance of the reward from its plateau, shape (settings, updates), starts ``below`` it."""
    deviation = np.empty((len(settings), UPDATES))
    of = lambda name: np.array([getattr(s, name) for s in settings])  # noqa: E731
    switches = ("lag_pattern", "normalisation", "ratio", "stale_force")
    kinds = np.array(["/".join(str(getattr(s, n)) for n in switches) for s in settings])
    stiff = np.array([k.curvature for k in knowns])
    logits = np.array([k.logit for k in knowns]) - below
    plateaus = np.array([k.plateau for k in knowns])
    for kind in np.unique(kinds):
        # A constant lag keeps as many old policies as the longest one: similar lags go together.
        groups = [kinds == kind]
        if kind.startswith("constant"):
            groups = [(kinds == kind) & (of("held") == held) for held in np.unique(of("held"))]
        for chosen in groups:
            if not chosen.any():
                continue
            pattern, normalisation, ratio, stale_force = kind.split("/")
            held, momentum = of("held")[chosen], of("momentum")[chosen]
            bandit = Bandit(
                learning_rate=staleness[chosen] * (1 - momentum) / (stiff[chosen] * held),
                momentum=momentum,
                kl_weight=of("kl_weight")[chosen],
                refresh_interval=held,
                lag=held,
                initial_logits=np.stack([logits[chosen], np.zeros(chosen.sum())], axis=1),
                lag_pattern=pattern,
                normalisation=normalisation,
                ratio=ratio,
                stale_force=stale_force,
            )
            curves = simulate_bandit(bandit, UPDATES, record=("eval_reward",))
            deviation[chosen] = np.abs(curves["eval_reward"] - plateaus[chosen, None])
    return np.where(np.isfinite(deviation), deviation, np.inf)


def growing(settings: list[Setting], knowns: list[Known]) -> Callable[[np.ndarray], np.ndarray]:
    """Whether small deviations grow, from the second to the last quarter of a run."""
    below = np.full(len(settings), SMALL)

    def unstable(staleness: np.ndarray) -> np.ndarray:
        quarters = simulated(settings, knowns, staleness, below).reshape(len(settings), 4, -1)
        largest = quarters.max(axis=2)
        # What has fallen to rounding errors of the reward has decayed, whatever those do; what has
        # left the neighbourhood has grown, even if it goes round in a circle by now.
        grown = (largest[:, 3] > largest[:, 1]) & (largest[:, 3] > 1e-11)
        return grown | (largest[:, 3] > 40 * SMALL)

    return unstable


def not_settling(
    settings: list[Setting], knowns: list[Known], below: float
) -> Callable[[np.ndarray], np.ndarray]:
    def unstable(staleness: np.ndarray) -> np.ndarray:
        start = np.full(len(settings), below)
        last = simulated(settings, knowns, staleness, start)[:, -UPDATES // 4 :].max(axis=1)
        return last > 1e-3

    return unstable


def theory_settings() -> list[Setting]:
    found = []
    for pattern, normalisation in product(("hold", "constant"), ("mean", "std")):
        kinds = product(MOMENTA, HELD, KL_WEIGHTS[normalisation])
        found += [Setting(m, n, pattern, normalisation, w) for m, n, w in kinds]
    return found


def trainer_settings() -> list[Setting]:
    found = []
    for pattern, momentum, held in product(("hold", "constant"), (0.5, 0.9), (1, 4, 16)):
        for normalisation, weight in (("mean", 0.5), ("std", 1.8)):
            common = (momentum, held, pattern, normalisation, weight)
            found += [
                Setting(*common, "none", "reward"),
                Setting(*common, "unclipped", "reward"),
                Setting(*common, "clipped", "reward"),
            ]
    return found


def boundaries(settings: list[Setting]) -> pd.DataFrame:
    knowns = [know(setting) for setting in settings]
    measured = first_crossing(growing(settings, knowns), len(settings))
    exact = np.array([exact_boundary(s, k) for s, k in zip(settings, knowns, strict=True)])
    return pd.DataFrame(
        {
            **pd.DataFrame(settings).to_dict("list"),
            "plateau": [k.plateau for k in knowns],
            "curvature": [k.curvature for k in knowns],
            "stale_share": [k.stale / k.curvature for k in knowns],
            "measured": measured,
            "exact": exact,
            "leading_order": 1.0,
            "error_exact": measured / exact - 1,
            "error_leading_order": 1.0 / measured - 1,
        }
    )


def from_afar(settings: list[Setting], near: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Boundary by distance over the exact one, and how runs a tenth beyond it end."""
    knowns = [know(setting) for setting in settings]
    exact = near["exact"].to_numpy()
    to_one = 1 - np.array([[known.plateau] for known in knowns])
    columns: dict[str, Any] = {}
    ends = {"at a reward of 1": 0, "in a cycle": 0}
    for below in DISTANCES:
        found = first_crossing(not_settling(settings, knowns, below), len(settings), SLOWEST)
        found = np.where(np.isnan(found), SLOWEST, found)  # not even there: an upper bound
        columns[f"{below:g}"] = found / exact
        start = np.full(len(settings), below)
        last = simulated(settings, knowns, 1.1 * found, start)[:, -UPDATES // 4 :]
        # Where small deviations grow anyway, or the run settles after all, there is nothing to say.
        lost = (1.1 * found < exact) & (last.max(axis=1) > 1e-3)
        stuck = (np.abs(last - to_one) < 0.01).all(axis=1)
        ends["at a reward of 1"] += int((lost & stuck).sum())
        ends["in a cycle"] += int((lost & ~stuck).sum())
    return pd.DataFrame(settings).assign(**columns), ends


def draw(near: pd.DataFrame, afar: pd.DataFrame) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = ("#000000", "#0072B2", "#009E73", "#E69F00", "#D55E00")
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 4.6), layout="constrained")
    titles = {"hold": "hold and refresh", "constant": "constant lag"}
    for axis, pattern in zip(axes, titles, strict=False):
        part = near[near["lag_pattern"] == pattern]
        for colour, momentum in zip(colours, MOMENTA, strict=True):
            own = part[part["momentum"] == momentum]
            lags = range(1, HELD[-1] + 1)
            line = [exact_boundary(Setting(momentum, n, pattern, "", 0.0), UNIT) for n in lags]
            axis.plot(lags, line, color=colour, lw=1.2, label=f"{momentum:g}")
            axis.plot(own["held"], own["measured"], "o", color=colour, ms=5, mfc="none")
        axis.axhline(1, color="0.45", lw=1.2, ls="--")
        axis.annotate(
            "leading order",
            (32, 1),
            (0, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=9,
            color="0.35",
        )
        axis.set_xscale("log", base=2)
        axis.set_xticks(HELD, [str(held) for held in HELD])
        axis.set_yscale("log")
        ticks = (1, 2, 3, 5, 10, 20, 40, 80) if pattern == "hold" else (1, 1.2, 1.4, 1.6)
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel("$K_{ref}$, updates" + (" between refreshes" if pattern == "hold" else ""))
        axis.set_title(titles[pattern], fontsize=11)
    axes[0].set_ylabel("staleness at which small deviations grow")
    axes[0].legend(title="momentum", fontsize=9, frameon=False)
    axes[1].text(
        0.03,
        0.95,
        "circles: simulated\nlines: exact",
        transform=axes[1].transAxes,
        va="top",
        fontsize=9,
    )
    far = afar.melt(
        id_vars=["lag_pattern", "normalisation"],
        value_vars=[f"{d:g}" for d in DISTANCES],
        var_name="below",
        value_name="relative",
    )
    far["below"] = far["below"].astype(float)
    styles = {("hold", "mean"): ("o-", 1), ("hold", "std"): ("o--", 1)}
    styles |= {("constant", "mean"): ("s-", 4), ("constant", "std"): ("s--", 4)}
    for (pattern, normalisation), (style, colour) in styles.items():
        own = far[(far["lag_pattern"] == pattern) & (far["normalisation"] == normalisation)]
        by = own.groupby("below")["relative"]
        label = f"{titles[pattern]}, {'std-normalised' if normalisation == 'std' else 'mean-only'}"
        axes[2].plot(
            by.median().index, by.median(), style, color=colours[colour], ms=5, label=label
        )
        axes[2].fill_between(
            by.min().index, by.min(), by.max(), color=colours[colour], alpha=0.1, lw=0
        )
    axes[2].axhline(1, color="0.45", lw=1, ls=":")
    axes[2].set_xscale("log")
    axes[2].set_xlabel("start below the plateau, logits")
    axes[2].set_ylabel("staleness at which it no longer settles / exact")
    axes[2].set_title("away from the plateau: median and range", fontsize=11)
    axes[2].legend(fontsize=8.5, frameon=False)
    figure.savefig(RESULTS / "bandit_boundary.png", dpi=130)
    plt.close(figure)


def errors(frame: pd.DataFrame, by: list[str]) -> list[dict[str, str]]:
    rows = []
    for key, part in frame.groupby(by, sort=False):
        exact, leading = part["error_exact"].abs(), part["error_leading_order"]
        share = part["stale_share"]
        unstable = part["measured"].notna()
        agree = "" if (unstable == part["exact"].notna()).all() else " (exact differs)"
        rows.append(
            {
                **dict(zip(by, map(str, key), strict=True)),
                "settings": str(len(part)),
                "stale share": f"{share.min():.2f} to {share.max():.2f}",
                "measured boundary": (
                    f"{part['measured'].min():.3f} to {part['measured'].max():.3f}"
                    if unstable.any()
                    else "none"
                ),
                f"none below {RANGE[1]:g}": f"{(~unstable).sum()}{agree}",
                "largest error of exact": f"{exact.max():.2%}" if unstable.any() else "",
                "error of leading order": (
                    f"{leading.min():+.0%} to {leading.max():+.0%}" if unstable.any() else ""
                ),
            }
        )
    return rows


def main() -> int:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    near = boundaries(theory_settings())
    print(table(errors(near, ["lag_pattern", "normalisation"])), flush=True)
    trainers = boundaries(trainer_settings())
    print(table(errors(trainers, ["ratio", "normalisation", "lag_pattern"])), flush=True)
    chosen = [s for s in theory_settings() if s.momentum in (0.5, 0.9) and s.held in (1, 4, 16)]
    keys = ["momentum", "held", "lag_pattern", "normalisation", "kl_weight"]
    of_chosen = pd.DataFrame(chosen)[keys].merge(near, on=keys)
    afar, ends = from_afar(chosen, of_chosen)

    write_csv(RESULTS / "bandit_boundary.csv", pd.concat([near, trainers]).to_dict("records"))
    by_distance = []
    for key, part in afar.groupby(["lag_pattern", "normalisation"], sort=False):
        row = {"lag_pattern": key[0], "normalisation": key[1], "settings": str(len(part))}
        for below in DISTANCES:
            values = part[f"{below:g}"]
            row[f"{below:g}"] = f"{values.median():.3f} ({values.min():.3f} to {values.max():.3f})"
        by_distance.append(row)
    agreed = (near["measured"].isna() == near["exact"].isna()).all()
    error = near["error_exact"].abs()
    lines = [
        f"Divergence boundary of {len(near)} two-arm bandits with infinite groups, in units of",
        "staleness = learning_rate K K_ref / (1 - momentum), whole force stale.",
        "`python benchmarks/bandit_boundary.py` makes these tables; its head explains them.",
        f"Exact theory is off by {error.max():.2%} at most, {error.median():.3%} in the median;",
        f"leading order by {near['error_leading_order'].abs().max():.0%} at most,",
        f"{near['error_leading_order'].abs().median():.0%} in the median.",
        "",
        table(errors(near, ["lag_pattern", "normalisation"])),
        "",
        "What trainers do: the KL term at the current policy, and importance ratios.",
        "",
        table(errors(trainers, ["ratio", "normalisation", "lag_pattern"])),
        "",
        "Starts below the plateau, by the distance in logits: largest staleness at which the run",
        "still settles, over the exact boundary of small deviations; median (range over momentum",
        "0.5 and 0.9, K_ref 1, 4 and 16, and KL weights). Where the far boundary lies well below",
        "the near one, runs a tenth beyond it end "
        + " or ".join(f"{where} ({count})" for where, count in ends.items())
        + ":",
        "momentum and held samplers carry the policy to where all its forces vanish.",
        "",
        table(by_distance),
        "",
        circumstances(),
        "",
    ]
    write_text(RESULTS / "bandit_boundary.md", "\n".join(lines))
    draw(near, afar)
    print("\n".join(lines))
    return 0 if agreed and error.max() < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
