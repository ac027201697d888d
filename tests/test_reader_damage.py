"""Damaged logs of every format: read as far as they are whole, or refused in one line."""

import random
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_logs import REWARDS, ROWS, SAMPLES

from bayes_grpo import InputError, read_runs

MUTATIONS = 25  # of each format by default; the slow test makes 10,000 in all


def runs_or_refusal(path):
    """Read a file; anything but runs in order and one-line refusals fails the test."""
    try:
        runs = read_runs([path])
    except InputError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)
        return []
    for run in runs:
        assert (np.diff(run.table["step"]) > 0).all()
        assert np.isfinite(run.table["reward"].dropna()).all()
        assert (run.table["updates"] >= 1).all()
    return runs


@pytest.mark.parametrize("form", SAMPLES)
def test_undamaged(tmp_path, form):
    path = tmp_path / "log"
    path.write_text(SAMPLES[form])
    (run,) = runs_or_refusal(path)
    assert run.table["reward"].tolist() == REWARDS
    assert run.table["step"].tolist() == list(range(1, ROWS + 1))


@pytest.mark.parametrize("form", SAMPLES)
def test_cut_at_any_byte(tmp_path, form):
    """A log of a running job is read up to its last whole row."""
    data = SAMPLES[form].encode()
    path = tmp_path / "log"
    longest = 0
    for end in range(0, len(data), max(1, len(data) // 80)):
        path.write_bytes(data[:end])
        for run in runs_or_refusal(path):
            longest = max(longest, len(run))
            # The last number of a text that ends within a line may be cut and still be a number.
            sure = len(run) - (not data[:end].endswith(b"\n"))
            assert run.table["reward"].tolist()[:sure] == REWARDS[:sure]
            assert run.table["step"].tolist()[:sure] == list(range(1, sure + 1))
    # These are one JSON object, which nobody writes while a training goes on.
    assert longest >= ROWS - 2 or form in ("json columns", "notebook")


def mutated(data, rng):
    """Damage a file in one of the ways in which files get damaged."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, end = sorted(rng.randrange(len(data)) for _ in range(2))
        end = min(end, at + rng.choice([1, 3, 40, 400]))
        kind = rng.randrange(9)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end]
        elif kind == 3:
            lines = bytes(data).split(b"\n")
            rng.shuffle(lines)
            data = bytearray(b"\n".join(lines))
        elif kind == 4:
            lines = bytes(data).split(b"\n")
            data = bytearray(b"\n".join(lines + lines[: rng.randrange(len(lines) + 1)]))
        elif kind == 5:
            words = [b"NaN", b"null", b"None", b'"x"', b"1e999", b"-1", b"[" * 60, b"\x00", b"{}"]
            numbers = list(re.finditer(rb"\d+\.?\d*", bytes(data)))
            if numbers:
                number = rng.choice(numbers)
                data[number.start() : number.end()] = rng.choice(words)
        elif kind == 6:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 30)))
        elif kind == 7:
            data = data[:end] or data
        else:
            data = bytearray(bytes(data).replace(b"\n", b"\r\n"))
        if not data:
            return b"\n"
    return bytes(data)


def damage(tmp_path, form, seeds):
    path = tmp_path / "log"
    for seed in seeds:
        path.write_bytes(mutated(SAMPLES[form].encode(), random.Random(seed)))
        try:
            runs_or_refusal(path)
        except Exception as error:
            raise AssertionError(f"mutation {seed} of '{form}'") from error


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", SAMPLES)
def test_mutated(tmp_path, form):
    damage(tmp_path, form, range(MUTATIONS))


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", SAMPLES)
def test_ten_thousand_mutations(tmp_path, form):
    damage(tmp_path, form, range(-(-10_000 // len(SAMPLES))))


orders = st.permutations(range(ROWS))


@pytest.mark.parametrize("form", [form for form in SAMPLES if form in ("csv", "json list")])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=orders, twice=st.integers(0, ROWS))
def test_permuted_and_duplicated_rows(tmp_path, form, order, twice):
    lines = SAMPLES[form].strip("[]\n ").replace("},\n {", "}\n{").split("\n")
    if form == "csv":
        head, rows = lines[:1], lines[1:]
    else:
        text = SAMPLES[form].strip().strip("[]").strip()
        head, rows = [], re.findall(r"\{[^}]*\}", text)
    shuffled = [rows[k] for k in [*order, *order[:twice]]]
    text = "\n".join([*head, *shuffled, ""])
    path = tmp_path / "log"
    path.write_text(text if form == "csv" else "[" + ",\n".join(shuffled) + "]")
    for run in runs_or_refusal(path):
        steps = run.table["step"].to_numpy()
        np.testing.assert_allclose(run.table["reward"], np.array(REWARDS)[steps - 1])


@pytest.mark.parametrize(
    "text",
    [
        '{"step": 1, "reward": ' + "9" * 5000 + "}\n",
        '[{"step": 1, "reward": ' + "9" * 5000 + "}]",
        '{"step": 1' + "0" * 5000 + ', "reward": 0.5}\n' * 3,
        "step " + "9" * 5000 + ": {'reward': 1}\n",
        'step,"the\nreward"\n1,0.5\n2,0.6\n',
    ],
)
def test_endless_numbers_and_names_of_two_lines_are_refused_in_one_line(tmp_path, text):
    (tmp_path / "log").write_text(text)
    assert runs_or_refusal(tmp_path / "log") == []


def test_a_seed_that_once_broke_the_line_of_a_message(tmp_path):
    damage(tmp_path, "chart", range(400, 834))


@pytest.mark.parametrize("unclosed", ["<!-- ", "<a ", "</a", "<!", "<?", "<![CDATA[", "<a a='"])
def test_a_page_with_a_million_unclosed_tags(tmp_path, unclosed):
    # Quadratic in older versions of the standard parser: this test then never ends.
    rows = "".join(f"<tr><td>{k}</td><td>0.{k}</td></tr>" for k in range(1, 6))
    page = f"<table><tr><th>Step</th><th>reward</th></tr>{rows}</table>"
    (tmp_path / "log.html").write_text(page + unclosed * (1_000_000 // len(unclosed)))
    (run,) = read_runs([tmp_path / "log.html"])
    assert run.table["reward"].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_commented_rows_of_a_page_are_no_rows(tmp_path):
    row = "<tr><td>{}</td><td>0.{}</td></tr>".format
    rows = row(1, 1) + "<!--" + row(2, 9) + "-->" + row(3, 2) + row(4, 3)
    page = f"<table><tr><th>Step</th><th>reward</th></tr>{rows}</table> a < b <!-- {row(5, 4)}"
    (tmp_path / "log.html").write_text(page)
    (run,) = read_runs([tmp_path / "log.html"])
    assert run.table["step"].tolist() == [1, 3, 4]
    assert run.table["reward"].tolist() == [0.1, 0.2, 0.3]
