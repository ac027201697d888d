"""What ``bayes-grpo stability`` does once its arguments are read."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from bayes_grpo.export import DPI, write_table
from bayes_grpo.files import write_whole
from bayes_grpo.fit import Fit
from bayes_grpo.outlook import number
from bayes_grpo.plain_json import to_json
from bayes_grpo.stability import Stability, stability
from bayes_grpo.terminal import WIDTH, Report, check_folder, columns, writing


def write_stability(
    done: Fit,
    out: Path | None,
    report: Report,
    *,
    level: float,
    curvature: tuple[float, float] | None,
) -> None:
    """Print the stability of a run, and write it where asked; raises `InputError`.

    Parameters
    ----------
    done
        The fit.
    out
        A ``.png`` (phase diagram), ``.csv`` (summary) or ``.json`` (everything); None: no file.
    report
        Where words and numbers go.
    level
        Accepted probability of failure.
    curvature
        Mean and standard deviation of an independently measured curvature.
    """
    answer = stability(done, level=level, curvature=curvature)
    if out is not None:
        check_folder(out.parent)
        with writing(out):
            _write(done, answer, out)
    report.print_json(answer.to_dict())
    if report.as_json:
        return
    report.say("\n".join(describe(answer)))
    if out is not None:
        report.say(f"\nwritten to {out}")


def describe(answer: Stability) -> list[str]:
    """Lines on the stability of a run: warning, probabilities, limits, assumptions.

    Parameters
    ----------
    answer
        From `bayes_grpo.stability`.

    Returns
    -------
    list of str
    """
    lines = [f"{answer.run}, {answer.model}: stability under stale sampling", ""]
    if answer.tautology:
        lines += [*textwrap.wrap(f"NO EVIDENCE OF A MARGIN: {answer.notes['tautology']}.", WIDTH)]
        lines.append("")
    lines += [*textwrap.wrap(answer.in_words(), WIDTH), ""]
    lines += [f"Keeps the probability below {answer.level:g}:", *columns(_limits(answer)), ""]
    lines.append("Assumed:")
    for subject, text in answer.notes.items():
        if subject != "tautology":
            lines += textwrap.wrap(text, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return [*lines, "", f"sampling: {answer.convergence}"]


def _limits(answer: Stability) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("of", "longest", "sampler", "largest peak learning rate")]
    for (pattern, keeps), row in answer.limits.iterrows():
        failure = "diverging" if keeps == "stable" else "oscillating"
        longest = "none" if np.isnan(row["longest"]) else f"{row['longest']:,.0f}"
        sampler = "constant lag" if pattern == "constant" else "refresh interval"
        rate = f"{number(row['learning_rate'])} ({number(row['relative'])} x the run's)"
        rows.append((failure, longest, sampler, f"{rate} at {row['at']:.0f}"))
    return rows


def _write(done: Fit, answer: Stability, out: Path) -> None:
    if out.suffix == ".csv":
        write_table(done, answer.summary(), out, index=True)
    elif out.suffix == ".json":
        text = to_json(answer.to_dict()) + "\n"
        write_whole(out, lambda at: at.write_text(text, encoding="utf-8"))
    else:
        _draw(answer, out)


def _draw(answer: Stability, out: Path) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from bayes_grpo.plots import plot_stability
    from bayes_grpo.plots.style import SIZE

    figure, ax = plt.subplots(figsize=SIZE, layout="constrained")
    try:
        plot_stability(answer, ax)
        return write_whole(out, lambda at: figure.savefig(at, dpi=DPI))
    finally:
        plt.close(figure)
