import numpy as np
from written import experiment_of, result_of, timescales_of

from dyneval import tables

TEXT = b"the cat saw the dog " * 30


def cells(text):
    return [[cell.strip() for cell in line.strip("| \n").split("|")] for line in text.splitlines()]


def test_markdown_has_the_figures_of_the_result():
    result = result_of(TEXT)
    figures = result.to_json()
    head, rule, static, dynamic = cells(tables.markdown({"a": result}))
    assert head == list(tables.HEADS)
    assert set(rule) == {"---", "---:"}
    assert static[2:6] == [
        "static",
        "600",
        "bits/byte",
        f"{figures['static']['bits_per_byte']:.4f}",
    ]
    gain = figures["dynamic"]["gain"]
    assert dynamic[6] == f"{100 * gain['relative']:+.1f}"
    assert dynamic[7] == f"\\[{100 * gain['low']:.1f}, {100 * gain['high']:.1f}\\]"


def test_latex_has_a_row_for_each_row():
    lines = tables.latex({"a": result_of(TEXT)}).splitlines()
    rows = [line for line in lines if line.endswith("\\\\")]
    assert len(rows) == 3
    assert all(row.count(" & ") == len(tables.HEADS) - 1 for row in rows)
    assert lines[1] == "\\begin{tabular}{lllrlrrr}"
    assert {"\\toprule", "\\midrule", "\\bottomrule", "\\end{tabular}"} <= set(lines)


def test_a_loss_is_written_as_one():
    worse = {"static": np.ones(600), "dynamic": np.full(600, 1.5)}
    result = result_of(TEXT, nats=worse)
    assert "−50.0" in tables.markdown({"a": result})
    assert "$-$50.0" in tables.latex({"a": result})


def test_what_would_be_markup_is_text():
    result = result_of(TEXT, model="[a]_b%c&d|e\\f\n<g>", nats={"static": np.ones(600)})
    (row,) = [line for line in tables.latex({"a": result}).splitlines() if "static" in line]
    model = r"{[}a]\_b\%c\&d|e\textbackslash{}f \textless{}g\textgreater{}"
    assert row.startswith(model + " & ")
    (row,) = [line for line in tables.markdown({"a": result}).splitlines() if "static" in line]
    assert row.startswith(r"| \[a\]\_b%c&d\|e\\f \<g\> | ")


def test_what_was_published_stands_below_and_once():
    results = {name: result_of(TEXT, corpus="enwik8") for name in "ab"}
    rows = tables.rows(results)
    assert [row[5] for row in rows[4:]] == ["1.24", "1.08"]
    assert all("published" in row[0] for row in rows[-2:])


def test_an_experiment_has_its_rows_below_the_paper_s():
    found = experiment_of()
    text = tables.markdown({"own": found, "a": result_of(TEXT)})
    first, title, *_ = text.split("\n\n")
    assert first.count("static") == 1  # results stand above
    assert title == "**Table 9: our own (bits per character)**"
    rows = cells(text[text.index("| theirs") :])
    dynamic = found["studies"][0]["rows"]["dynamic"]
    gain = dynamic["gain"]
    assert rows[5] == [
        "↳ small",
        "1.6M",
        f"{dynamic['valid']:.3f}",
        f"{dynamic['test']:.3f}",
        f"{100 * gain['relative']:+.1f}",
        f"\\[{100 * gain['low']:.1f}, {100 * gain['high']:.1f}\\]",
    ]
    assert rows[4] == ["LSTM + dynamic eval", "", "", "1.80", "+10.0"]
    assert rows[7] == ["↳ not run"]
    drawn = tables.latex({"own": found})
    assert drawn.count("\\begin{tabular}") == 2  # the curve has one, too
    assert "% Table 9: our own (bits per character)" in drawn
    assert f"\\quad small & 1.6M & {dynamic['valid']:.3f} & " in drawn


def test_sequences_have_a_table():
    value = timescales_of().to_json(4, 12, False)
    rows = cells(tables.markdown({"a": value}).split("\n\n")[1])[2:]
    assert [row[:2] for row in rows] == [
        *[["static", "1–40"], ["static", "29–40"]],
        *[["dynamic", "1–40"], ["dynamic", "29–40"]],
    ]
    band = value["dynamic"]["last"]["gain"]
    assert rows[3][4:] == [f"{band['mean']:.3f}", f"\\[{band['low']:.3f}, {band['high']:.3f}\\]"]
