import pytest
from written import experiment_of, result_of, timescales_of

from dyneval import dossier, storage

TEXT = b"the cat saw the dog " * 30


def files(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_dossier_holds_a_page_tables_and_figures(tmp_path):
    path = dossier.write({"a": result_of(TEXT)}, tmp_path / "out")
    assert path == tmp_path / "out" / "report.html"
    names = ("cumulative-bits", "gain-by-position", "mean-so-far", "weights")
    figures = [f"figures/{name}{end}" for name in names for end in (".png", ".svg")]
    assert files(tmp_path / "out") == sorted([*figures, "report.html", "table.md", "table.tex"])


def test_the_figures_of_several_results_stand_side_by_side(tmp_path):
    dossier.write({"a": result_of(TEXT), "/b/c": result_of(TEXT)}, tmp_path)
    assert (tmp_path / "figures" / "a-weights.svg").exists()
    assert (tmp_path / "figures" / "b-c-weights.svg").exists()
    assert (tmp_path / "table.md").read_text("utf-8").count("static") == 2


def test_results_are_found_by_file_and_folder(tmp_path):
    for name in ("a/one.json", "a/two.json", "b/one.json"):
        result_of(TEXT).save(tmp_path / name)
    (tmp_path / "a" / "settings.json").write_text("{}")  # no result
    assert list(dossier.load([tmp_path / "a"])) == ["one", "two"]
    found = dossier.load([tmp_path / "a" / "one.json", tmp_path / "b"])
    assert [name.removeprefix(tmp_path.as_posix()) for name in found] == ["/a/one", "/b/one"]


def test_a_folder_without_a_result_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no result; give what `evaluate --save` wrote"):
        dossier.load([tmp_path])
    with pytest.raises(ValueError, match="does not exist"):
        dossier.load([tmp_path / "a.json"])


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ValueError, match="is a file; give a folder"):
        dossier.write({"a": result_of(TEXT)}, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_sequences_stand_beside_results(tmp_path):
    curves = timescales_of()
    curves.save(tmp_path / "in" / "curves.json", curves.to_json(4, 12, False))
    result_of(TEXT).save(tmp_path / "in" / "one.json")
    dossier.write(dossier.load([tmp_path / "in"]), tmp_path / "both")
    assert {"figures/curves-timescales.svg", "figures/one-weights.svg", "table.md"} <= set(
        files(tmp_path / "both")
    )
    dossier.write(dossier.load([tmp_path / "in" / "curves.json"]), tmp_path / "alone")
    figures = ["figures/timescales.png", "figures/timescales.svg"]
    assert files(tmp_path / "alone") == [*figures, "report.html", "table.md", "table.tex"]
    text = (tmp_path / "alone" / "report.html").read_text("utf-8")
    assert "12 sequences of 41 tokens" in text
    assert "<title>models/a on notes.txt (all)</title>" in text


def test_an_experiment_stands_beside_results(tmp_path):
    storage.write_json(tmp_path / "in" / "own.json", experiment_of())
    result_of(TEXT).save(tmp_path / "in" / "one.json")
    (tmp_path / "in" / "settings.json").write_text("{}")
    (tmp_path / "in" / "notes.json").write_text("no JSON")
    found = dossier.load([tmp_path / "in"])
    assert list(found) == ["one", "own"]
    dossier.write(found, tmp_path / "both")
    written = files(tmp_path / "both")
    figures = ["own-gains", "own-timescales-spanish", "one-weights"]
    assert {f"figures/{name}{end}" for name in figures for end in (".png", ".svg")} <= {*written}
    text = (tmp_path / "both" / "report.html").read_text("utf-8")
    assert "<h2>Table 9: our own</h2>" in text
    dossier.write(dossier.load([tmp_path / "in" / "own.json"]), tmp_path / "alone")
    assert "<title>Table 9: our own</title>" in (tmp_path / "alone/report.html").read_text("utf-8")


def test_a_curve_s_name_leads_nowhere_else(tmp_path):
    found = experiment_of()
    found["curves"] = {"../../x y": found["curves"]["Spanish"]}
    dossier.write({"own": found}, tmp_path / "out")
    assert "figures/timescales--x-y.png" in files(tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_an_experiment_that_is_not_whole(tmp_path):
    found = experiment_of()
    del found["studies"][0]["rows"]["dynamic"]["test"]
    storage.write_json(tmp_path / "own.json", found)
    with pytest.raises(ValueError, match="own.json is no whole result of `experiment --save`"):
        dossier.load([tmp_path / "own.json"])
