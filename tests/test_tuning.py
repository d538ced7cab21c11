import math
import re
from dataclasses import replace

import numpy as np
import optuna
import pytest
import torch
from processes import killed, process
from torch import nn

from dyneval import corpora, gradient_stats, models, settings, storage, tuning
from dyneval.evaluation import evaluate
from dyneval.run import Run
from dyneval.settings import Settings, table_1
from dyneval.targets import ALL
from dyneval.tuning import Plan
from dyneval.waves import Waves

START = Settings(10, "sgd+decay", learning_rate=0.01, decay_rate=0.1)
QUICK = Plan(trials=6, prefix=150, confirm=2)


@pytest.fixture
def checkpoint(checkpoints):
    return models.load(checkpoints["words"])


@pytest.fixture
def stream(checkpoint, shifted):
    tokens = corpora.load(shifted, checkpoint.vocabulary).read().tokens
    return torch.from_numpy(tokens).long()[None, :301]


def whole(stream):
    """A (1, T) stream as one document."""
    return Waves(stream[0], np.array([0, stream.shape[1]]))


def tuned(checkpoint, stream, journal, row=START, plan=QUICK, stats=None, report=None):
    return tuning.tune("row", row, checkpoint.model, stats, whole(stream), plan, journal, report)


def nats_of(row, checkpoint, stream, stats=None):
    parts = evaluate(row.predictor(checkpoint.model, stats), stream, row.segment_length)
    return torch.cat([*parts], 1).double().mean().item()


def without_seconds(value):
    """The same JSON values without any that tell the time."""
    if isinstance(value, dict):
        return {key: without_seconds(kept) for key, kept in value.items() if key != "seconds"}
    return [without_seconds(kept) for kept in value] if isinstance(value, list) else value


def test_the_best_is_better_than_the_start(checkpoint, stream, tmp_path):
    """Its record holds what was tried and what was found, as a plain evaluation finds it too."""
    best, record = tuned(checkpoint, stream, tmp_path / "journal")
    assert record["validation_nats"] == pytest.approx(nats_of(best, checkpoint, stream), rel=1e-6)
    assert record["validation_nats"] < 0.97 * nats_of(START, checkpoint, stream)
    assert best.segment_length == 10
    trials = record["trials"]
    assert [trial["number"] for trial in trials] == list(range(6))
    assert trials[0]["settings"] == pytest.approx(START.to_json() | {"rule": "sgd+decay"})
    prefix = stream[:, :151]
    for trial in trials:
        if trial["state"] == "COMPLETE":
            found = nats_of(Settings(**trial["settings"]), checkpoint, prefix)
            assert trial["nats"] == pytest.approx(found, rel=1e-6)


def test_the_best_two_are_read_whole(checkpoint, stream, tmp_path):
    _, record = tuned(checkpoint, stream, tmp_path / "journal")
    complete = [trial for trial in record["trials"] if trial["state"] == "COMPLETE"]
    best = sorted(complete, key=lambda trial: trial["nats"])[:2]
    assert set(record["confirmed"]) == {str(trial["number"]) for trial in best}
    for trial in best:
        found = nats_of(Settings(**trial["settings"]), checkpoint, stream)
        assert record["confirmed"][str(trial["number"])] == pytest.approx(found, rel=1e-6)
    assert record["validation_nats"] == min(record["confirmed"].values())


def test_documents_are_read_as_in_an_evaluation(checkpoints, checkpoint, shifted, tmp_path):
    """By the trials as well as by those that confirm; the file says how."""
    corpus = corpora.load(shifted, checkpoint.vocabulary)
    how = {"documents": "lines", "carry": "weights", "streams": 2}
    path = tmp_path / "settings.json"
    plan = replace(QUICK, trials=2, confirm=1)
    rows = {"dynamic": START}
    found = tuning.tune_rows(rows, checkpoint, {}, corpus, "all", plan, path, None, 300, **how)[
        "dynamic"
    ]
    assert storage.read_json(path)["tuning"]["dynamic"].items() >= how.items()
    run = Run(checkpoints["words"], shifted, {"dynamic": found.settings}, limit=300, **how)
    nats = run.execute().scores["dynamic"].nats
    assert found.record["validation_nats"] == pytest.approx(nats.mean(), rel=1e-6)
    prefix = replace(run, limit=151, predictors=rows).execute().scores["dynamic"].nats
    assert found.record["trials"][0]["nats"] == pytest.approx(prefix.mean(), rel=1e-6)
    for other in ({"streams": 3}, {"carry": "none"}, {"documents": "chunks:10"}):
        with pytest.raises(ValueError, match="was begun with another "):
            tuning.tune_rows(
                rows, checkpoint, {}, corpus, "all", plan, path, None, 300, **how | other
            )


def test_documents_without_a_token_to_score_cannot_be_tuned_on(checkpoint, shifted, tmp_path):
    corpus = corpora.load(shifted, checkpoint.vocabulary)
    line = [{"dynamic": START}, checkpoint, {}, corpus, "all", QUICK, tmp_path / "a.json"]
    with pytest.raises(ValueError, match=r"shifted.txt \(all\) is too short to tune on"):
        tuning.tune_rows(*line, documents="chunks:1")


def test_trials_that_fall_behind_are_given_up(checkpoint, stream, tmp_path):
    seen = {}
    plan = replace(QUICK, trials=14)

    def report(at):
        seen.setdefault(at.trial, []).append(at)

    _, record = tuned(checkpoint, stream, tmp_path / "journal", plan=plan, report=report)
    states = [trial["state"] for trial in record["trials"]]
    assert len(states) == 14
    assert "PRUNED" in states
    for number, state in enumerate(states):
        last = seen[number][-1]
        assert (last.done == last.total == 150) or state == "PRUNED"
        assert last.nats == pytest.approx(record["trials"][number]["nats"])
    pruned = [number for number, state in enumerate(states) if state == "PRUNED"]
    assert any(seen[number][-1].done < 150 for number in pruned)
    assert seen[0][0].best is None
    assert seen[13][0].best == min(
        trial["nats"] for trial in record["trials"][:13] if trial["state"] == "COMPLETE"
    )
    assert [len(seen[k]) for k in (14, 15)] == [8, 8]  # those that confirm
    assert seen[15][-1].total == 300


class Fragile(nn.Module):
    """A model whose probabilities are lost once its bias has grown: what divergence comes to."""

    def __init__(self, bound):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(18))
        self.bound = bound

    def hidden(self, tokens, state=None):
        return torch.zeros(*tokens.shape, 18), None

    def logits(self, h):
        return h + self.bias + (torch.nan if self.bias.abs().max() > self.bound else 0.0)


def test_diverged_trials_are_given_up(stream, tmp_path):
    """Those of a large step break this model, others do not; no figure of any is NaN."""
    plan = replace(QUICK, trials=10, confirm=5, vary=("learning_rate",))
    row = Settings(10, "sgd", learning_rate=2.9)
    best, record = tuning.tune(
        "a", row, Fragile(0.5), None, whole(stream), plan, tmp_path / "journal"
    )
    first = record["trials"][0]
    assert first["state"] == "PRUNED"
    assert first["nats"] is None or math.isfinite(first["nats"])
    assert best.learning_rate < 2.9
    storage.write_json(tmp_path / "record.json", record)


def test_where_every_trial_diverges_there_is_no_best(stream, tmp_path):
    row = Settings(10, "sgd", learning_rate=1.0)
    with pytest.raises(ValueError, match="every trial of 'a' diverged; give lower rates"):
        tuning.tune("a", row, Fragile(0.0), None, whole(stream), QUICK, tmp_path / "journal")


def test_a_trial_may_diverge_behind_the_prefix(stream, tmp_path):
    """The bias grows past the bound only on the whole split."""
    plan = Plan(trials=3, prefix=10, confirm=3, vary=())
    row = Settings(10, "sgd", learning_rate=1.0)
    with pytest.raises(ValueError, match="diverged on the whole split"):
        tuning.tune("a", row, Fragile(0.15), None, whole(stream), plan, tmp_path / "journal")
    plan = replace(plan, vary=("learning_rate",))
    row = Settings(10, "sgd", learning_rate=3.0)
    best, record = tuning.tune(
        "b", row, Fragile(0.5), None, whole(stream), plan, tmp_path / "journal"
    )
    assert record["confirmed"]["0"] is None
    assert best.learning_rate < 3
    storage.write_json(tmp_path / "record.json", record)


# What is tried


def suggestions(row, vary=tuning.VARIED, count=200):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    return [tuning.suggest(study.ask(), row, vary) for _ in range(count)]


def test_no_decay_at_all_can_be_reached():
    """In every search space with a decay, by one trial in six."""
    for name in ("sgd+decay", "rms+decay", "rms+rms-decay"):
        rates = [row.decay_rate for row in suggestions(table_1(5)[name])]
        assert 15 < rates.count(0.0) < 55
        assert all(3e-4 <= rate <= 0.1 for rate in rates if rate)


def test_only_what_is_to_vary_does():
    row = table_1(5)["rms+rms-decay"]
    for found in suggestions(row, ("learning_rate",), 5):
        assert replace(found, learning_rate=row.learning_rate) == row
    varied = suggestions(row, tuning.MAY_VARY)
    assert {found.segment_length for found in varied} == {1, 2, 5, 10, 20, 50}
    assert all(2e-6 <= found.epsilon <= 2e-4 for found in varied)
    assert all(1e-5 <= found.learning_rate <= 5e-4 for found in varied)
    sgd = suggestions(table_1(5)["sgd"], tuning.MAY_VARY)
    assert all(1e-2 <= found.learning_rate <= 1 for found in sgd)
    assert {(found.decay_rate, found.epsilon) for found in sgd} == {(2e-3, 2e-5)}
    caches = suggestions(table_1(5)["cache"], ())
    assert len({found.cache_size for found in caches}) == 5
    assert all(0.01 <= found.cache_weight <= 0.5 for found in caches)
    assert all(0.03 <= found.cache_scale <= 3 for found in caches)


@pytest.mark.parametrize(
    "row",
    [
        *table_1(5).values(),
        table_1(7)["rms+rms-decay"],
        Settings(5, "rms+decay", learning_rate=0.1, decay_rate=0.9, epsilon=1e-2),
        Settings(5, "sgd+decay", learning_rate=50.0, decay_rate=1e-6),
        Settings(5, "sgd+decay", learning_rate=1e-9, decay_rate=0.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("vary", [(), tuning.VARIED, tuning.MAY_VARY], ids=len)
def test_the_first_trial_is_where_tuning_begins(row, vary):
    """Also far outside the usual ranges; Optuna warns of what it is given outside them."""
    study = optuna.create_study()
    study.enqueue_trial(tuning.start(row, vary))
    values = tuning.suggest(study.ask(), row, vary).to_json()
    expected = row.to_json()
    assert set(values) == set(expected)
    for key, value in expected.items():
        assert values[key] == (value if isinstance(value, str) else pytest.approx(value)), key


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trials": 0}, "at least 1 trial"),
        ({"confirm": 0}, "1 to confirm"),
        ({"prefix": 1}, "2 tokens"),
        ({"vary": ("momentum",)}, "momentum cannot be tuned"),
        ({"sampler": "random"}, "no sampler 'random'; give tpe or grid"),
        ({"sampler": "grid", "vary": ("epsilon",)}, "grid is of η and λ"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_plans_that_make_no_sense(changes, says):
    with pytest.raises(ValueError, match=says):
        Plan(**changes)


def test_the_authors_grid(checkpoint, checkpoints, stream, tmp_path):
    """Each pair of η and λ once, in order; nothing else changes, and nothing is tried twice."""
    stats = gradient_stats.load(checkpoints["words"] / gradient_stats.FILE)
    row = Settings(5, "rms+rms-decay", epsilon=3e-5)
    plan = Plan(prefix=40, confirm=1, sampler="grid")
    best, record = tuned(checkpoint, stream[:, :61], tmp_path / "journal", row, plan, stats)
    assert [trial["settings"] for trial in record["trials"]] == [
        replace(row, learning_rate=rate, decay_rate=decay).to_json()
        for rate in (3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 1e-4)
        for decay in (1e-3, 2e-3, 3e-3, 5e-3)
    ]
    assert best.to_json() in [trial["settings"] for trial in record["trials"]]
    assert record["plan"]["trials"] == 24


# Going on


def test_finished_tunings_are_not_tried_again(checkpoint, stream, tmp_path):
    first = tuned(checkpoint, stream, tmp_path / "journal")

    def report(at):
        raise AssertionError("something was read again")

    again = tuned(checkpoint, stream, tmp_path / "journal", report=report)
    assert again.settings == first.settings
    assert without_seconds(again.record) == without_seconds(first.record)


def test_stopped_at_any_trial_a_tuning_ends_with_the_same_record(checkpoint, stream, tmp_path):
    """Stopped by its own report: in a trial, at a trial's end, and while it confirms."""
    plan = replace(QUICK, trials=8, vary=(*tuning.VARIED, "segment_length"))
    expected = tuned(checkpoint, stream, tmp_path / "whole", plan=plan)

    class Stop(Exception):
        pass

    left = 0

    def report(at):
        nonlocal left
        left -= 1
        if left == 0:
            raise Stop

    for steps in range(1, 1000):
        left = 1 + 3 * steps
        try:
            found = tuned(checkpoint, stream, tmp_path / "journal", plan=plan, report=report)
            break
        except Stop:
            continue
    assert steps > 3
    assert found.settings == expected.settings
    assert without_seconds(found.record) == without_seconds(expected.record)


def test_killed_in_the_middle_a_tuning_ends_with_the_same_record(
    command, copied, shifted, tmp_path
):
    """By kill -9, in one of the trials that Optuna has a model for."""
    model, path, whole = copied("words"), tmp_path / "tuned.json", tmp_path / "whole.json"
    line = ["tune", model, shifted, "--split", "all", "--row", "rms+rms-decay", "--threads", 1]
    line += ["--trials", 12, "--prefix", 300, "--confirm", 2, "--quiet", "--out"]
    assert command(*line, whole).code == 0
    journal = path.with_suffix(".journal")

    def well_on():
        """The sixth trial has begun: operation 4 of Optuna's journal creates one."""
        return journal.exists() and journal.read_bytes().count(b'"op_code":4') >= 6

    killed(process(*line, path), well_on)
    assert not path.exists()
    lock = journal.with_name("tuned.journal.lock")
    lock.unlink(missing_ok=True)
    lock.symlink_to(journal)  # as if it had been killed while it wrote
    assert command(*line, path).code == 0
    found, expected = storage.read_json(path), storage.read_json(whole)
    assert found["settings"] == expected["settings"]
    assert without_seconds(found) == without_seconds(expected)
    assert len(found["tuning"]["rms+rms-decay"]["trials"]) == 12


def test_a_tuning_begun_otherwise_is_another(checkpoint, checkpoints, stream, tmp_path):
    """Another text, model, plan or statistics: its trials are no trials of this one."""
    journal = tmp_path / "journal"
    stats = gradient_stats.load(checkpoints["words"] / gradient_stats.FILE)
    row = replace(table_1(5)["rms+decay"], learning_rate=1e-3)
    plan = Plan(trials=1, prefix=20, confirm=1)
    tuned(checkpoint, stream[:, :30], journal, row, plan, stats)

    def refused(says, *arguments):
        with pytest.raises(ValueError, match=re.escape(f"begun with another {says}; ")) as caught:
            tuned(*arguments)
        assert str(journal) in str(caught.value)

    refused("text", checkpoint, stream[:, 1:31], journal, row, plan, stats)
    refused("plan", checkpoint, stream[:, :30], journal, row, replace(plan, seed=2), stats)
    other = replace(row, learning_rate=2e-3)
    refused("settings", checkpoint, stream[:, :30], journal, other, plan, stats)
    twice = gradient_stats.merge([stats, stats])
    refused("statistics", checkpoint, stream[:, :30], journal, row, plan, twice)


def test_a_damaged_journal_is_named(checkpoint, stream, tmp_path):
    journal = tmp_path / "journal"
    journal.write_text("no journal\nat all\n")
    with pytest.raises(ValueError, match=re.escape(f"{journal} is no whole journal")):
        tuned(checkpoint, stream, journal)


def test_a_rule_without_its_statistics_is_refused_before_a_trial(checkpoint, stream, tmp_path):
    with pytest.raises(ValueError, match="no gradient statistics were given"):
        tuned(checkpoint, stream, tmp_path / "journal", table_1(5)["rms+decay"])
    assert not (tmp_path / "journal").exists()


# Rows and their file


def test_rows_are_written_as_they_are_tuned(checkpoint, checkpoints, shifted, tmp_path):
    """Rows of before stay; a cache with a rule is tuned on the rule that was tuned."""
    path = tmp_path / "settings.json"
    stats = gradient_stats.load(checkpoints["words"] / gradient_stats.FILE)
    corpus = corpora.load(shifted, checkpoint.vocabulary)
    old = {"settings": {"mine": Settings(3).to_json()}, "tuning": {"mine": {"by": "hand"}}}
    storage.write_json(path, old)
    plan = Plan(trials=3, prefix=60, confirm=1)
    rows = {name: table_1(5)[name] for name in ("rms+rms-decay", "cache", "dynamic+cache")}
    seen = []
    found = tuning.tune_rows(
        *(rows, checkpoint, {ALL: stats}, corpus, "valid", plan, path),
        report=lambda name, at: seen.append((name, path.exists() and list(settings.read(path)))),
    )
    assert dict(seen) == {
        "rms+rms-decay": ["mine"],
        "cache": ["mine", "rms+rms-decay"],
        "dynamic+cache": ["mine", "rms+rms-decay", "cache"],
    }
    assert settings.read(path) == {"mine": Settings(3)} | {
        name: row.settings for name, row in found.items()
    }
    both, rule = found["dynamic+cache"].settings, found["rms+rms-decay"].settings
    assert replace(both, cache_size=0, cache_weight=0.1, cache_scale=1.0) == rule
    assert both.cache_size > 0
    record = storage.read_json(path)["tuning"]
    assert record["mine"] == {"by": "hand"}
    assert record["cache"]["corpus"] == shifted
    assert record["cache"]["checksum"] == corpus.checksum("valid")
    assert record["cache"]["model_hash"] == models.fingerprint(checkpoint.model)
    assert (record["cache"]["split"], record["cache"]["tokens"]) == (
        "valid",
        len(corpus.read("valid")),
    )


def test_statistics_that_nobody_reads_may_be_anyones(checkpoint, checkpoints, shifted, tmp_path):
    """Those in the folder of a model that was trained on, say."""
    others = gradient_stats.load(checkpoints["bytes"] / gradient_stats.FILE)
    corpus, plan = corpora.load(shifted, checkpoint.vocabulary), Plan(1, 20, 1)
    path = tmp_path / "settings.json"
    rows = {"sgd": table_1(5)["sgd"], "cache": table_1(5)["cache"]}
    assert set(
        tuning.tune_rows(rows, checkpoint, {ALL: others}, corpus, "valid", plan, path)
    ) == set(rows)
    rows = {"rms+decay": table_1(5)["rms+decay"]}
    with pytest.raises(ValueError, match="belong to other weights"):
        tuning.tune_rows(rows, checkpoint, {ALL: others}, corpus, "valid", plan, path)


def test_rows_that_cannot_be_tuned_are_refused_before_the_first_is(checkpoint, shifted, tmp_path):
    corpus = corpora.load(shifted, checkpoint.vocabulary)
    path = tmp_path / "settings.json"

    def refused(says, rows, to=path, plan=QUICK, **changes):
        with pytest.raises(ValueError, match=re.escape(says)):
            tuning.tune_rows(rows, checkpoint, {}, corpus, "valid", plan, to, **changes)
        assert not list(tmp_path.iterdir())

    refused("no gradient statistics", table_1(5))
    only_sgd = {"sgd": table_1(5)["sgd"]}
    refused("another ending", only_sgd, tmp_path / "settings.journal")
    refused("limit of 0 tokens", only_sgd, limit=0)
    refused("too short to tune on", only_sgd, limit=1)
    for name in ("sgd", "cache", "dynamic+cache"):
        row = {name: table_1(5)[name]}
        refused(f"rule with RMS, and {name} is none", row, plan=Plan(sampler="grid"))
