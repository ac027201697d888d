"""Tables of notebooks: HTML, Markdown, .ipynb."""

import json

import numpy as np
import pytest
from sample_logs import HTML, MARKDOWN, NOTEBOOK, REWARDS, ROWS

from bayes_grpo import InputError, read_run, read_runs


def write(path, text):
    path.write_text(text)
    return path


def table(rewards, header=("Step", "Training Loss", "reward"), closed=True):
    head = "<tr>" + "".join(f"<th>{name}</th>" for name in header) + "</tr>"
    rows = (f"<tr><td>{k}</td><td>0.1</td><td>{r}</td></tr>" for k, r in enumerate(rewards, 1))
    return f"<table>{head}{''.join(rows)}" + ("</table>" if closed else "")


# --- HTML ---------------------------------------------------------------------------------------


def test_the_table_of_a_notebook(tmp_path):
    run = read_run(write(tmp_path / "page.txt", HTML))
    assert run.table["reward"].tolist() == REWARDS
    assert run.components == ("rewards/correctness",)
    assert run.table["completion_length"].tolist() == [120.5] * ROWS
    assert (run.settings.trainer, run.settings.max_steps) == ("Unsloth", 90)
    assert run.settings.row_average == "window"
    assert any("leaves out entropy" in note for note in run.notes)


def test_inside_a_saved_page_with_other_tables(tmp_path):
    style = "<style>" + "td { color: red }\n" * 20_000 + "</style>"
    other = table([1, 2, 3], ("a", "b", "c"))
    page = f"<!DOCTYPE html><html><head>{style}</head><body>{other}{table(REWARDS)}</body></html>"
    assert read_run(write(tmp_path / "page.html", page)).table["reward"].tolist() == REWARDS


def test_several_trainings_on_one_page(tmp_path):
    page = "<div>" + table(REWARDS) + "<p>again</p>" + table([r / 2 for r in REWARDS]) + "</div>"
    runs = read_runs(write(tmp_path / "page.html", page))
    assert [run.name for run in runs] == ["page: table 1", "page: table 2"]
    assert runs[1].table["reward"].tolist() == [r / 2 for r in REWARDS]


def test_entities_attributes_comments_and_missing_end_tags(tmp_path):
    rows = "".join(
        f"<tr style='x > y'><td>{k}<!-- <td>9 --></td>\n<td> <b>&#48;{str(r)[1:]}</b> &nbsp;\n"
        for k, r in enumerate(REWARDS, 1)
    )
    page = f"<table><tr><th>Step</th><th>reward</th></tr>{rows}<tr></table>"
    assert read_run(write(tmp_path / "page", page)).table["reward"].tolist() == REWARDS


def test_nested_tables_do_not_mix(tmp_path):
    inner = table([9, 9, 9], ("a", "b", "reward"))
    page = f"<table><tr><td>{inner}</td></tr></table>" + table(REWARDS)
    runs = read_runs(write(tmp_path / "page", f"<div>{page}</div>".replace("9</td>", "8</td>", 2)))
    assert REWARDS in [run.table["reward"].tolist() for run in runs]
    deep = "<table><tr><td>" * 3000 + table(REWARDS)
    with pytest.raises(InputError, match="no table with a reward"):
        read_run(write(tmp_path / "deep", deep))


def test_bombs_and_scripts_do_nothing(tmp_path):
    bomb = (
        '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c SYSTEM "/etc/passwd">]>'
    )
    page = f"{bomb}<script>while(true){{}}</script><p>&b;&c;</p>{table(REWARDS)}"
    run = read_run(write(tmp_path / "page", page))
    assert run.table["reward"].tolist() == REWARDS


def test_pages_without_a_training(tmp_path):
    for page in ("<html></html>", "<table></table>", table([], ("a", "b", "c")), "<p>reward</p>"):
        with pytest.raises(InputError, match="table with a reward column in the page"):
            read_run(write(tmp_path / "page", page))


def test_printed_output_on_a_page(tmp_path):
    rows = "\n".join(repr({"loss": 0.1, "reward": r}) for r in REWARDS)
    page = f"<html><pre>start\n{rows.replace('{', '&#123;')}\n</pre></html>"
    run = read_run(write(tmp_path / "page", page))
    assert run.table["reward"].tolist() == REWARDS
    assert run.settings.trainer == "TRL"


# --- Markdown -----------------------------------------------------------------------------------


def test_a_table_in_an_issue(tmp_path):
    run = read_run(write(tmp_path / "issue.md", MARKDOWN))
    assert run.table["reward"].tolist() == REWARDS
    assert run.settings.trainer == "Unsloth"


@pytest.mark.parametrize("bars", ["| {} |", "{}", "{} |"])
def test_bars_at_the_ends_are_a_matter_of_taste(tmp_path, bars):
    rows = ["step | reward", ":--- | ---:", *(f"{k} | {r}" for k, r in enumerate(REWARDS, 1))]
    text = "\n".join(bars.format(row) for row in rows) + "\n\nand so on\n"
    assert read_run(write(tmp_path / "a.md", text)).table["reward"].tolist() == REWARDS


def test_several_tables_in_one_text(tmp_path):
    text = MARKDOWN + "\n| a | b |\n|---|---|\n| 1 | 2 |\n\n" + MARKDOWN
    assert len(read_runs(write(tmp_path / "a.md", text))) == 2


# --- notebooks ----------------------------------------------------------------------------------


def cell(source="", *outputs, kind="code"):
    return {"cell_type": kind, "source": source.splitlines(True), "outputs": list(outputs)}


def html(text):
    return {
        "output_type": "display_data",
        "data": {"text/html": [text], "text/plain": ["<IPython>"]},
    }


def stream(text):
    return {"output_type": "stream", "name": "stdout", "text": text.splitlines(True)}


def notebook(*cells):
    return json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def test_a_notebook_with_its_configuration(tmp_path):
    run = read_run(write(tmp_path / "train.ipynb", NOTEBOOK))
    assert run.name == "train"
    assert run.table["reward"].tolist() == REWARDS
    assert (run.settings.group_size, run.settings.learning_rate) == (6, 5e-6)
    assert "the code of cell 2" in run.settings["group_size"].why


def test_one_training_shown_twice_is_one_run(tmp_path):
    printed = "\n".join(repr({"loss": 0.1, "reward": float(f"{r:.4g}")}) for r in REWARDS)
    text = notebook(cell("trainer.train()", html(table(REWARDS)), stream(printed + "\n")))
    run = read_run(write(tmp_path / "a.ipynb", text))
    assert "training loss" in [name.lower() for name in run.table.columns]


def test_two_trainings_are_two_runs(tmp_path):
    cells = [
        cell("GRPOConfig(num_generations=4)\nt.train()", html(table(REWARDS))),
        cell("GRPOConfig(num_generations=8)\nt.train()", html(table([1 - r for r in REWARDS]))),
    ]
    runs = read_runs(write(tmp_path / "a.ipynb", notebook(*cells)))
    assert [run.name for run in runs] == ["a: cell 1", "a: cell 2"]
    assert [run.settings.group_size for run in runs] == [4, 8]


def test_a_stream_in_pieces(tmp_path):
    text = "".join(repr({"loss": 0.1, "reward": r}) + "\n" for r in REWARDS)
    pieces = [stream(text[at : at + 37]) for at in range(0, len(text), 37)]
    run = read_run(write(tmp_path / "a.ipynb", notebook(cell("go()", *pieces))))
    assert run.table["reward"].tolist() == REWARDS


def test_notebooks_without_outputs_and_odd_ones(tmp_path):
    for text in (
        notebook(cell("x = 1"), cell("# reward", kind="markdown")),
        json.dumps({"cells": [{"cell_type": "code", "outputs": 3}, 4, {"cell_type": "code"}]}),
        json.dumps({"cells": {"cell_type": "code"}}),
    ):
        with pytest.raises(
            InputError, match="no cell whose output has a reward|expected a notebook"
        ):
            read_run(write(tmp_path / "a.ipynb", text))


def test_code_is_read_not_run(tmp_path):
    code = "GRPOConfig(num_generations=__import__('os').getpid(), beta=0.1, adam_beta1=f())"
    run = read_run(write(tmp_path / "a.ipynb", notebook(cell(code, html(table(REWARDS))))))
    assert run.settings["group_size"].provenance == "default"
    assert run.settings.kl_weight == 0.1
    np.testing.assert_array_equal(run.table["reward"], REWARDS)
