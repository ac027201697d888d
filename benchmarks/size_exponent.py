"""Does the relaxation time grow with model size, and how: relaxation time ~ size^a.

    python benchmarks/size_exponent.py

Held-out GSM8K accuracy during GRPO of five base models of one family, .6 to 14 billion parameters
(``../shared/runs/sizes.csv``, elsewhere ``--runs`` or BAYES_GRPO_RUNS; not part of this
repository), in one hierarchical fit: each run has its own start, plateau and noise, with the
priors of the shipped model, and

    log(relaxation_time - 1 row) = level + a log(size / 4) + spread * e,     e ~ N(0, 1)

so that runs may scatter about the power law, which five sizes must allow for.  ``level`` has the
shipped prior's median and width, ``a ~ N(0, 1)``, ``spread ~ HalfNormal(.5)``.  A literature value
of the exponent is .3; the statement is whether it lies inside the central 90 % interval.

Repeated under several mean curves, as the time scale depends on the shape.  Written to
benchmarks/results: ``size_exponent.csv``, ``size_exponent.md``.
"""

import argparse
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd
from forecast import ROOT
from numpyro import distributions as dist
from reporting import RESULTS, circumstances, table, write_csv, write_text

from bayes_grpo.convergence import effective_draws, r_hat
from bayes_grpo.model import bind, load_model
from bayes_grpo.precision import float64
from bayes_grpo.run import Run

MODELS = ("exponential", "oscillator", "rate_or_fate", "scalerl")
SIZES = {"0.6b": 0.6, "1.7b": 1.7, "4b": 4.0, "8b": 8.0, "14b": 14.0}
MIDDLE = 4.0
LITERATURE = 0.3


def runs_of(path: Path) -> dict[str, Run]:
    """One run a size; rows are evaluations, one sample of the policy each."""
    frame = pd.read_csv(path)
    found = {}
    for name in SIZES:
        rows = frame[["Step", name]].dropna()
        step = rows["Step"].to_numpy(dtype=int) + 1  # the log counts from 0
        made = pd.DataFrame({"step": step, "reward": rows[name].to_numpy()})
        found[name] = Run.from_table(made, name, row_average="single", max_steps=2 * step.max())
    return found


def hierarchical(bound: dict[str, Any], model: Any) -> None:
    """All runs in one NumPyro model."""
    prior = model.priors["relaxation_time"]
    median, width = prior.arguments["median"], prior.arguments["sd_log"]
    planned = np.mean([float(data.scale.planned_updates) for _, data in bound.values()])
    level = numpyro.sample("level", dist.Normal(math.log(median * planned), width))
    exponent = numpyro.sample("exponent", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(0.5))
    for name, (program, data) in bound.items():
        off = numpyro.sample(f"{name}_off", dist.Normal(0.0, 1.0))
        log_time = level + exponent * math.log(SIZES[name] / MIDDLE) + spread * off
        draws = {
            p: numpyro.sample(f"{name}_{p}", model.priors[p].in_unit())
            for p in program.sampled
            if p != "relaxation_time"
        }
        time = jnp.exp(log_time)
        numpyro.deterministic(f"{name}_time", time + data.scale.row_updates)
        draws["relaxation_time"] = time / data.scale.planned_updates
        numpyro.factor(f"{name}_rewards", program.log_likelihood(draws, data))


def posterior(runs: dict[str, Run], name: str, draws: int) -> tuple[dict[str, np.ndarray], int]:
    """Draws by quantity, shape (chains, draws) each, and divergences."""
    model = load_model(name)
    with float64():
        bound = {}
        for size, run in runs.items():
            program, _, data = bind(model, run)
            data = jax.tree.map(lambda a: jnp.asarray(a, dtype=float), data)
            bound[size] = (program, data)
        kernel = numpyro.infer.NUTS(
            lambda: hierarchical(bound, model), target_accept_prob=0.95, dense_mass=False
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mcmc = numpyro.infer.MCMC(
                kernel,
                num_warmup=draws,
                num_samples=draws,
                num_chains=4,
                chain_method="vectorized",
                progress_bar=False,
            )
            mcmc.run(jax.random.key(0), extra_fields=("diverging",))
        found = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
        return found, int(np.sum(mcmc.get_extra_fields()["diverging"]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("BAYES_GRPO_RUNS") or ROOT.parent / "shared" / "runs"
    parser.add_argument("--runs", type=Path, default=Path(default), help="folder with sizes.csv")
    parser.add_argument("--draws", type=int, default=1000)
    chosen = parser.parse_args()
    path = chosen.runs / "sizes.csv"
    if not path.is_file():
        print("Skipped: no sizes.csv; it is looked for in ../shared/runs, beside the repository.")
        return 0
    runs = runs_of(path)
    rows, numbers = [], []
    for name in MODELS:
        found, divergences = posterior(runs, name, chosen.draws)
        a = found["exponent"]
        low, median, high = np.quantile(a, (0.05, 0.5, 0.95))
        inside = bool(low <= LITERATURE <= high)
        times = {size: float(np.median(found[f"{size}_time"])) for size in SIZES}
        rows.append(
            {
                "mean curve": name,
                "exponent a": f"{median:+.2f}",
                "90 % interval": f"{low:+.2f} to {high:+.2f}",
                ".3 inside": "yes" if inside else "no",
                "P(a > 0)": f"{np.mean(a > 0):.2f}",
                "P(a > .3)": f"{np.mean(a > LITERATURE):.2f}",
                "scatter of log time": f"{np.median(found['spread']):.2f}",
                "relaxation times (steps)": ", ".join(f"{s} {t:.1f}" for s, t in times.items()),
                "r_hat": f"{r_hat(a):.3f}",
                "ess": f"{effective_draws(a):.0f}",
                "divergences": divergences,
            }
        )
        numbers.append(
            {
                "model": name, "low": f"{low:.4f}", "median": f"{median:.4f}",
                "high": f"{high:.4f}", "inside": inside,
                **{f"time_{s}": f"{t:.3f}" for s, t in times.items()},
            }
        )  # fmt: skip
        print(rows[-1], file=sys.stderr, flush=True)
    page = "\n".join(
        [
            "# Exponent of the relaxation time in model size",
            "",
            "Five runs of one family, one hierarchical fit for each mean curve (4 chains x "
            f"({chosen.draws} + {chosen.draws}) draws).",
            "",
            table(rows),
            "",
            circumstances(),
            "",
        ]
    )
    write_csv(RESULTS / "size_exponent.csv", numbers)
    write_text(RESULTS / "size_exponent.md", page)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
