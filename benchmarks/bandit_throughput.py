"""How many bandits a second: 10,000 settings x 1,000 updates.

    python benchmarks/bandit_throughput.py

Two-arm bandits with learning rate, momentum, refresh interval and start of their own, in one call
of `bayes_grpo.simulate.simulate_bandit`, float64, recording the rollouts' reward and the expected
one.  ``first`` is the first call, with compilation; ``median`` is of three more.  The target is
10 s on two cores.  Written to benchmarks/results: ``bandit_throughput.csv``, ``.md``.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
from reporting import RESULTS, circumstances, table, write_csv, write_text

from bayes_grpo.simulate import Bandit, simulate_bandit

SETTINGS, UPDATES, REPEATS = 10_000, 1_000, 3
KINDS: dict[str, dict[str, Any]] = {
    "exact drift": {},
    "exact drift, constant lag up to 8": {"lag_pattern": "constant"},
    "exact drift, Adam": {"optimizer": "adam"},
    "sampled, 1 group of 8": {"group_size": 8},
    "sampled, 4 groups of 8": {"group_size": 8, "prompts_per_step": 4},
}


def bandits(**changes: Any) -> Bandit:
    rng = np.random.default_rng(0)
    return Bandit(
        learning_rate=rng.uniform(0.01, 0.1, SETTINGS),
        momentum=rng.choice([0.5, 0.9], SETTINGS),
        refresh_interval=rng.integers(1, 9, SETTINGS),
        lag=rng.integers(0, 9, SETTINGS),
        initial_logits=rng.normal(size=(SETTINGS, 2)),
        **changes,
    )


def seconds(bandit: Bandit, seed: int) -> float:
    begin = time.perf_counter()
    simulate_bandit(bandit, UPDATES, seed, record=("reward", "eval_reward"))
    return time.perf_counter() - begin


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    rows = []
    for kind, changes in KINDS.items():
        bandit = bandits(**changes)
        first, *more = (seconds(bandit, seed) for seed in range(1 + REPEATS))
        median = statistics.median(more)
        rows.append(
            {
                "kind": kind,
                "first_s": f"{first:.2f}",
                "median_s": f"{median:.2f}",
                "min_s": f"{min(more):.2f}",
                "million_updates_per_s": f"{SETTINGS * UPDATES / median / 1e6:.1f}",
            }
        )
        print(rows[-1], flush=True)
    text = [
        f"{SETTINGS:,} two-arm bandits x {UPDATES:,} updates in one call, float64; first: with",
        "compilation. `python benchmarks/bandit_throughput.py` makes this table.",
        "",
        table(rows),
        "",
        circumstances(),
        "",
    ]
    write_csv(RESULTS / "bandit_throughput.csv", rows)
    write_text(RESULTS / "bandit_throughput.md", "\n".join(text))


if __name__ == "__main__":
    main()
