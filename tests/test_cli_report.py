import json

import pytest
from processes import json_of
from written import result_of

from dyneval import results


@pytest.fixture
def saved(command, checkpoints, shifted, tmp_path):
    path = tmp_path / "saved" / "result.json"
    done = command("evaluate", checkpoints["words"], shifted, "--limit", 150, "--save", path)
    assert done.code == 0
    return path


def test_a_report_needs_the_saved_result_alone(command, saved, tmp_path):
    out = tmp_path / "report"
    done = command("report", saved, "--out", out)
    assert (done.code, done.err) == (0, "")
    assert "perplexity" in done.out
    assert done.out.endswith(f"report: {out / 'report.html'}\n")
    text = (out / "report.html").read_text("utf-8")
    figures = json.loads(saved.read_text("utf-8"))
    assert f'value="{figures["dynamic"]["perplexity"]!r}"' in text
    assert (out / "figures" / "weights.png").exists()
    quiet = command("report", saved.parent, "--out", out, "--quiet")
    assert quiet.out == f"report: {out / 'report.html'}\n"


def test_evaluate_reports_what_report_does(command, checkpoints, shifted, tmp_path):
    direct, later, path = (tmp_path / name for name in ("direct", "later", "direct.json"))
    flags = ("--limit", 150, "--save", path, "--report", direct)
    done = command("evaluate", checkpoints["bytes"], shifted, *flags)
    assert done.out.endswith(f"report: {direct / 'report.html'}\n")
    assert command("report", path, "--out", later).code == 0
    for name in ("report.html", "table.md", "table.tex", "figures/mean-so-far.svg"):
        assert (direct / name).read_bytes() == (later / name).read_bytes()
    there = tmp_path / "json"
    flags = ("--limit", 50, "--report", there, "--json")
    done = command("evaluate", checkpoints["bytes"], shifted, *flags)
    assert json.loads(done.out)["static"]["tokens"] == 49
    assert done.err == f"report: {there / 'report.html'}\n"


def test_a_run_that_diverged_is_reported_too(command, checkpoints, shifted, tmp_path):
    out = tmp_path / "report"
    flags = ("--rule", "sgd", "--learning-rate", "1e30", "--report", out)
    done = command("evaluate", checkpoints["bytes"], shifted, *flags)
    assert done.code == 2
    assert "dynamic diverged at token" in (out / "report.html").read_text("utf-8")


def test_what_moved_is_kept_over_a_resume(command, checkpoints, shifted, tmp_path):
    """Also where the predictor had ended before."""
    folder = ("--checkpoint", tmp_path / "run")
    run = ("evaluate", checkpoints["words"], shifted, "--limit", 150, "--cache", "--json", *folder)
    first = json_of(command(*run))
    again = json_of(command(*run, "--resume"))
    for name in ("dynamic", "dynamic+cache"):
        moved = first[name]["moved"]
        assert again[name]["moved"] == moved
        assert {"shape", "rms", "relative"} == set(next(iter(moved.values())))
        assert any(row["rms"] > 0 for row in moved.values())
    assert "moved" not in first["static"]
    assert "moved" not in first["cache"]


def test_logs_of_evaluate_and_train(command, checkpoints, shifted, texts, tmp_path):
    log, events = tmp_path / "log.jsonl", tmp_path / "events"
    flags = ("--log", log, "--tensorboard", events)
    found = json_of(
        command("evaluate", checkpoints["bytes"], shifted, "--limit", 90, "--json", *flags)
    )
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    last = {row["what"]: row for row in rows}
    for name in ("static", "dynamic"):
        assert last[name]["step"] == 89
        assert last[name]["bits_per_token"] == pytest.approx(found[name]["bits_per_token"])
    assert list(events.iterdir())
    small = ("--units", 4, "--embedding-size", 4, "--layers", 1, "--epochs", 1)
    command("train", texts["train"], tmp_path / "model", *small, "--log", tmp_path / "train.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert rows
    assert {"time", "what", "step", "bits_per_token", "tokens_per_second"} == set(rows[-1])


def test_results_of_before_have_no_text(command, tmp_path):
    """Nor did they tell what moved."""
    old = result_of(b"abc " * 50, moved={})
    path = tmp_path / "old.json"
    results.Result(old.run, old.scored, old.scores).save(path)
    assert results.load(path).vocabulary is None
    assert command("report", path, "--out", tmp_path / "out").code == 0
    assert "saved without its vocabulary" in (tmp_path / "out/report.html").read_text("utf-8")


@pytest.mark.parametrize("kind", ["bytes", "characters", "words"])
def test_a_result_spells_its_tokens(command, checkpoints, shifted, tmp_path, kind):
    path = tmp_path / "result.json"
    command("evaluate", checkpoints[kind], shifted, "--limit", 50, "--save", path)
    found = results.load(path)
    with open(shifted, encoding="utf-8") as file:
        text = file.read()
    shown = found.vocabulary.show(found.scored.tokens)
    assert (
        shown.strip() in text.replace("über", "<unk>").replace(" all", " <unk>") or kind != "words"
    )
    if kind != "words":
        assert shown == text[1 : 1 + len(shown)]


def test_mistakes(mistake, saved, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "is a file; give a folder" in mistake("report", saved, "--out", tmp_path / "file")
    missing = mistake("report", tmp_path / "missing.json", "--out", tmp_path / "out")
    assert "does not exist" in missing
    assert "is a file; give a folder" in mistake("evaluate", "--report", tmp_path / "file")
