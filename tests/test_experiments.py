"""The files of experiments/ run in miniature, and an experiment survives being killed anywhere."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from processes import json_of, killed, process

from dyneval import experiments, models, storage
from dyneval.stages import Base, Train, Workspace

ROOT = Path(__file__).parent.parent
WRITER = ROOT / "experiments" / "write_docs.py"
FILES = sorted({*(ROOT / "experiments").glob("*.py")} - {WRITER})
TABLES = {"ptb": 24, "wikitext2": 14, "hutter": 12, "text8": 8}  # published rows
FLAGS = ("--engine", "reference", "--device", "cpu", "--threads", 1)
OWN = """
'''A table of our own.'''
from dyneval.published import Published
from dyneval.recipes import Recipe
from dyneval.stages import Base, Curve, Sample, Statistics, Study
from dyneval.tuning import Plan

figure = "bits per character"
published = (
    Published("theirs", 1.5),
    Published("LSTM", 2.0, 2.1, role="lstm", row="static"),
    Published("LSTM + dynamic eval", 1.8, 1.9, role="lstm", row="dynamic"),
    Published("LSTM + sparse", 1.9, role="lstm", row="sparse"),
)
RECIPE = Recipe(
    *("lstm", {"embedding_size": 8, "units": 16}, "sgd"),
    learning_rate=1.0, epochs=3, batch_size=4, sequence_length=20,
)
ROWS = {
    "dynamic": {"segment_length": 5, "rule": "sgd+decay", "learning_rate": 0.05},
    "rms": {"segment_length": 5, "rule": "rms+rms-decay"},
}
STUDY = Study(
    *("small", "lstm", Base("lstm", "sample:20000", RECIPE, "bytes"), ROWS),
    Plan(trials=4, prefix=400, confirm=2),
    Statistics(batch_size=4, batches=400),
    validation=600,
    test=900,
)
runs = {
    "desk": (
        STUDY,
        Curve("curve", STUDY, "dynamic", "sample:4000", "all", length=400, count=10, bucket=80),
        Sample("text", STUDY, "dynamic", "sample:4000", "all", conditioning=50, length=20),
    )
}
"""


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return path


def without_times(value):
    """Return what was found, but for how long it took."""
    if isinstance(value, dict):
        return {
            key: without_times(each)
            for key, each in value.items()
            if key not in ("seconds", "tuning_seconds")
        }
    return [without_times(each) for each in value] if isinstance(value, list) else value


# The files


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_file_runs_in_miniature(file, command, tmp_path):
    line = ("experiment", file, "--scale", "miniature", "--folder", tmp_path / "out", *FLAGS)
    done = command(*line)
    assert (done.code, done.err) == (0, "")
    saved = tmp_path / "found.json"
    found = json_of(command(*line, "--json", "--save", saved))  # nothing was missing
    assert found == storage.read_json(saved)
    assert found == storage.read_json(tmp_path / "out" / file.stem / experiments.RESULT)
    assert len([*tmp_path.glob("found-*.png")]) == len(found["curves"])
    parts = experiments.load(file).runs["miniature"]
    assert len(found["studies"]) + len(found["curves"]) + len(found["samples"]) == len(parts)
    for study in found["studies"]:
        assert study["rows"].keys() > {"static"}
        assert all(row["test"] > 0 and row["valid"] > 0 for row in study["rows"].values())
        assert str(tmp_path) not in json.dumps(study)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_is_published_is_answered(file):
    """By a study of one scale at least; and each name is one thing."""
    task = experiments.load(file)
    assert len(task.published) == TABLES.get(task.name, len(task.published))
    names = [row.name for row in task.published]
    assert len(set(names)) == len(names)
    studies = [
        part
        for parts in task.runs.values()
        for part in parts
        if isinstance(part, experiments.Study)
    ]
    answered = {(study.role, row) for study in studies for row in ("static", *study.rows)}
    asked = {(row.role, row.row) for row in task.published if row.role}
    assert asked <= answered
    for parts in task.runs.values():
        assert len({part.name for part in parts}) == len(parts)


def test_every_base_model_of_the_paper_is_trained_by_its_recipe():
    from dyneval import recipes

    bases = {
        stage.base.name: stage.base.recipe
        for file in FILES
        for stage in experiments.stages(experiments.load(file).runs.get("paper", ()))
        if isinstance(stage, Train)
    }
    assert bases == recipes.PAPER


# Killed, and started again


class Whole(NamedTuple):
    folder: Path
    found: dict


@pytest.fixture(scope="module")
def whole(own, tmp_path_factory):
    """What is found when nothing happens."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    work = Workspace(tmp_path_factory.mktemp("whole"), "own", "cpu", "reference")
    found = experiments.execute(experiments.load(own), "desk", work)
    torch.set_num_threads(before)
    return Whole(work.folder, found)


def test_killed_in_every_stage_it_finds_the_same(own, whole, command, mistake, tmp_path):
    line = ("experiment", own, "--folder", tmp_path, *FLAGS)
    model, study, curve = (
        tmp_path / name for name in ("models/lstm", "studies/small", "own/curve")
    )
    begun = {
        "training": model / "config.json",
        "statistics": model / "trained.json",
        "tuning": study / "settings.json",
        "test": study / "reading-test" / "static.safetensors",
        "sequences": curve / "reading" / "000002.safetensors",
    }
    ended = [
        model / "trained.json",
        model / "gradient-stats-4-400-default.json",
        study / "tuned.json",
        study / "read-test.json",
        curve / "read.json",
    ]
    second = []
    for (stage, path), marker in zip(begun.items(), ended, strict=True):
        working = process(*line)
        if stage == "training":

            def seen(path=path):
                if path.exists():
                    second.append(mistake(*line))  # while the first one trains
                return path.exists()

            killed(working, seen)
        else:
            killed(working, path.exists)
        assert not marker.exists(), stage
    assert "is being worked on: the first run (process " in second[0]
    found = json_of(command(*line, "--json"))
    assert without_times(found) == without_times(whole.found)


# What is done, and what is refused


def test_the_table_stands_beside_the_paper_s(own, whole):
    from dyneval import experiment_report

    task, found = experiments.load(own), whole.found
    rows = list(experiment_report.rows(found))
    assert [row[0] for row in rows] == [
        *("theirs", "LSTM", "↳ small", "LSTM + dynamic eval", "↳ small"),
        *("LSTM + sparse", "↳ not run"),
    ]
    assert rows[3] == ("LSTM + dynamic eval", "1.90", "1.80", "10.0%")
    dynamic = found["studies"][0]["rows"]["dynamic"]
    assert rows[4][1:3] == (f"{dynamic['valid']:.3f}", f"{dynamic['test']:.3f}")
    assert rows[4][3].startswith(f"{dynamic['gain']['relative']:.1%} (")
    text = experiment_report.markdown(found)
    assert "| LSTM + dynamic eval | 1.90 | 1.80 | 10.0% |" in text
    assert "curve, 10 sequences" in text
    nothing = experiment_report.markdown(task.begun("desk"))
    assert nothing.count("↳ not run") == 3


def test_a_result_is_reported_without_its_file(whole, command, tmp_path):
    """As where the package is installed and no experiments/ is there."""
    saved, out = tmp_path / "own.json", tmp_path / "report"
    storage.write_json(saved, whole.found)
    done = command("report", saved, "--out", out)
    assert (done.code, done.err) == (0, "")
    for part in ("A table of our own (bits per character)", "↳ not run", "text, dynamic:"):
        assert part in done.out
    text = (out / "report.html").read_text("utf-8")
    dynamic = whole.found["studies"][0]["rows"]["dynamic"]
    for value in (dynamic["test"], dynamic["gain"]["low"], 1.9):
        assert f'value="{value!r}"' in text
    assert "\\quad small" in (out / "table.tex").read_text("utf-8")


def test_a_part_alone(own, whole, command, tmp_path):
    """What others found is told as well, if they are done."""
    folder = Path(shutil.copytree(whole.folder, tmp_path / "copy"))
    (folder / "own" / "text" / "written.json").unlink()
    (folder / "own" / "curve" / "read.json").unlink()
    line = ("experiment", own, "--folder", folder, "--only", "text", *FLAGS, "--json")
    found = json_of(command(*line))
    assert without_times(found) == without_times(whole.found | {"curves": {}})


@pytest.mark.parametrize("scale", experiments.SCALES)
def test_files_share_what_has_one_name(scale):
    named = {}
    for file in FILES:
        for stage in experiments.stages(experiments.load(file).runs.get(scale, ())):
            place = stage.marker(Workspace(Path("folder"), file.stem))
            assert named.setdefault(place, stage) == stage


@pytest.fixture
def work(tmp_path):
    return Workspace(tmp_path, "own", "cpu", "reference")


def test_a_model_that_was_put_there_is_taken(own, work, checkpoints):
    checkpoint = models.load(checkpoints["bytes"])
    stage = experiments.stages(experiments.load(own).runs["desk"])[0]
    models.save(work.model(stage.base), checkpoint)
    experiments._complete(stage, work)
    kept = models.load(work.model(stage.base)).model
    assert models.fingerprint(kept) == models.fingerprint(checkpoint.model)


def test_a_model_of_another_recipe_is_not(own, work, checkpoints):
    stage = experiments.stages(experiments.load(own).runs["desk"])[0]
    model, vocabulary, _ = vars(models.load(checkpoints["bytes"])).values()
    recipe = vars(stage.base.recipe) | {"learning_rate": 3.0}
    models.save(work.model(stage.base), models.Checkpoint(model, vocabulary, {"recipe": recipe}))
    with pytest.raises(ValueError, match="lstm holds a model of another recipe than lstm; move"):
        experiments._complete(stage, work)


def test_a_base_without_a_recipe_must_be_there(work):
    with pytest.raises(ValueError, match="big has no recipe; put the checkpoint into"):
        experiments._complete(Train(Base("big", "ptb")), work)


def test_a_description_leaves_out_what_is_as_usual(own):
    """What fields with a default are added to a recipe later, it stays the same stage."""
    stage = experiments.stages(experiments.load(own).runs["desk"])[1]
    assert experiments._described(stage) == {
        "kind": "Collect",
        "base": {
            "kind": "Base",
            "name": "lstm",
            "corpus": "sample:20000",
            "recipe": {
                "kind": "Recipe",
                "architecture": "lstm",
                "model": {"embedding_size": 8, "units": 16},
                "optimizer": "sgd",
                "learning_rate": 1.0,
                "epochs": 3,
                "batch_size": 4,
                "sequence_length": 20,
            },
            "vocabulary": "bytes",
        },
        "statistics": {"kind": "Statistics", "batch_size": 4, "batches": 400},
    }


def test_a_stage_that_is_described_in_another_way(own, work):
    marker = work.folder / "models" / "lstm" / "trained.json"
    stage = experiments.stages(experiments.load(own).runs["desk"])[0]
    storage.write_json(marker, {"kind": "Train"})
    with pytest.raises(ValueError, match="trained.json is of a step that was described in another"):
        experiments._complete(stage, work)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--scale", "huge"), "own has no scale 'huge'; give one of desk"),
        (("--only", "x"), "there is no part 'x'; give some of small, curve, text"),
    ],
)
def test_mistakes(own, mistake, tmp_path, flags, message):
    assert message in mistake("experiment", own, "--folder", tmp_path, *flags, "--threads", 1)


def test_files_that_are_no_experiments(mistake, tmp_path):
    (tmp_path / "a.py").write_text("figure = 1")
    assert "a.py is no experiment: module" in mistake("experiment", tmp_path / "a.py")
    assert "b.py is no experiment; give one of" in mistake("experiment", tmp_path / "b.py")


# The document


def test_the_document_shows_what_was_committed():
    """Its tables are those that the results give, so nothing in them was written by hand."""
    spec = importlib.util.spec_from_file_location("write_docs", WRITER)
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    text = writer.DOCUMENT.read_text("utf-8")
    assert writer.filled(text, ROOT / "docs" / "results") == text
    for file in writer.FILES:
        saved = writer.RESULTS / f"{file.stem}.json"
        if saved.exists():
            assert storage.read_json(saved) == writer.with_published(file, saved)
    with pytest.raises(ValueError, match="the document has no place for ablations"):
        writer.filled("", ROOT / "docs" / "results")
