import json
import math
import re
import shutil
import signal
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from processes import killed, one_line, process
from torch import nn

from dyneval import corpora, gradient_stats, models, storage
from dyneval.evaluation import evaluate
from dyneval.predictors import Dynamic, Static
from dyneval.rules import Rms, RmsDecay
from dyneval.run import Run, _Reading
from dyneval.settings import Settings, table_1
from dyneval.waves import Carry, Waves

FINAL = Settings(7, "rms+rms-decay", learning_rate=1e-3)
PREDICTORS = {
    "static": Settings(7),
    "dynamic": FINAL,
    "dynamic+cache": Settings(7, "sgd", learning_rate=0.5, cache_size=30),
}


def run_of(checkpoints, shifted, kind="words", **changes):
    return Run(checkpoints[kind], shifted, **({"predictors": PREDICTORS, "limit": 120} | changes))


def test_scores_are_those_of_the_loop(checkpoints, shifted):
    """The static ones are the cross-entropy of torch, the others those of the same predictors."""
    found = run_of(checkpoints, shifted).execute()
    checkpoint = models.load(checkpoints["words"])
    text = corpora.load(shifted, checkpoint.vocabulary).read()[:120]
    tokens = torch.from_numpy(text.tokens).long()
    with torch.no_grad():
        h, _ = checkpoint.model.hidden(tokens[None, :-1])
        logits = checkpoint.model.logits(h)[0]
    expected = nn.functional.cross_entropy(logits, tokens[1:], reduction="none").numpy()
    np.testing.assert_allclose(found.scores["static"].nats, expected, rtol=2e-6)

    stats = gradient_stats.load(checkpoints["words"] / gradient_stats.FILE)
    dynamic = Dynamic(checkpoint.model, Rms(1e-3) + RmsDecay(2e-3), stats.priors(checkpoint.model))
    nats = torch.cat([*evaluate(dynamic, tokens[None], 7)], 1)[0]
    assert np.array_equal(found.scores["dynamic"].nats, nats.double().numpy())

    for name in ("tokens", "words", "characters", "bytes"):
        assert np.array_equal(getattr(found.scored, name), getattr(text, name)[1:])


def test_the_first_token_is_scored_as_a_guess_or_not_at_all(checkpoints, shifted):
    unscored = run_of(checkpoints, shifted).execute()
    uniform = run_of(checkpoints, shifted, first_token="uniform").execute()
    symbols = unscored.run["vocabulary"]["size"]
    for name in PREDICTORS:
        expected = [math.log(symbols), *unscored.scores[name].nats]
        assert uniform.scores[name].nats.tolist() == expected
    assert np.array_equal(uniform.scored.bytes[1:], unscored.scored.bytes)
    assert (unscored.run["first_token"], uniform.run["first_token"]) == ("unscored", "uniform")


def test_a_result_says_what_makes_it_comparable(checkpoints, shifted):
    run = run_of(checkpoints, shifted).execute().run
    checkpoint = models.load(checkpoints["words"])
    stats = gradient_stats.load(checkpoints["words"] / gradient_stats.FILE).collection
    assert run == json.loads(json.dumps(run))
    assert run["architecture"] == "LSTM"
    assert run["weights"] == sum(weight.numel() for weight in checkpoint.model.parameters())
    assert run["model_hash"] == models.fingerprint(checkpoint.model) == stats.model
    assert run["checksum"] == corpora.load(shifted).checksum()
    assert (run["tokens"], run["limit"], run["unknown"]) == (120, 120, None)
    assert run["device"] == "cpu"
    assert run["vocabulary"] == {"kind": "words", "size": len(checkpoint.vocabulary)}
    assert {name: Settings(**row) for name, row in run["predictors"].items()} == PREDICTORS
    assert run["statistics"] == {"all-weights": vars(stats)}
    without = run_of(checkpoints, shifted, predictors={"static": Settings(5)}).execute().run
    assert without["statistics"] is None


def test_every_row_of_table_1_learns(checkpoints, shifted):
    """The rules' defaults are made for large models; here they are too timid to do harm."""
    rows = table_1(5)
    found = run_of(checkpoints, shifted, predictors={"static": Settings(5)} | rows).execute()
    static = found.scores["static"].nats
    for name in rows:
        nats = found.scores[name].nats
        assert len(nats) == len(static)
        assert not np.array_equal(nats, static), name
        assert np.array_equal(nats[0], static[0])
        if "cache" not in name:
            assert nats.sum() < static.sum(), name


def test_no_learning_is_static_to_the_bit(checkpoints, shifted):
    """Whatever the model: the copy that learns is multiplied as the model itself is."""
    still = {"static": Settings(6)} | {
        rule: Settings(6, rule, learning_rate=0.0, decay_rate=0.0)
        for rule in ("sgd", "sgd+decay", "rms+decay", "rms+rms-decay")
    }
    for kind in checkpoints:
        found = run_of(checkpoints, shifted, kind, predictors=still).execute()
        for name, score in found.scores.items():
            assert np.array_equal(score.nats, found.scores["static"].nats), (kind, name)


def test_progress_is_reported_to_the_end(checkpoints, shifted):
    seen = []
    found = run_of(checkpoints, shifted).execute(seen.append)
    last = {at.name: at for at in seen}
    assert list(last) == list(PREDICTORS)
    for name, at in last.items():
        assert (at.done, at.total) == (119, 119)
        assert at.nats == pytest.approx(found.scores[name].nats.sum())
        assert at.seconds == found.scores[name].seconds > 0


# Documents


def test_documents_are_read_apart(checkpoints, shifted):
    """Each of them as if it were the whole text; a result knows which token is of which."""
    predictors = {name: PREDICTORS[name] for name in ("static", "dynamic")}
    found = run_of(
        checkpoints, shifted, predictors=predictors, documents="lines", streams=3, limit=33
    ).execute()
    checkpoint = models.load(checkpoints["words"])
    text = corpora.load(shifted, checkpoint.vocabulary).read()[:33]
    line_ends = text.tokens == checkpoint.vocabulary.ids["<eos>"]
    ends = [*(np.flatnonzero(line_ends) + 1), 33]
    stats = gradient_stats.load(checkpoints["words"] / gradient_stats.FILE)
    nats, begin = [], 0
    for end in ends:
        dynamic = FINAL.predictor(checkpoint.model, stats)
        nats += torch.cat([*evaluate(dynamic, text[begin:end].stream, 7)], 1)[0].tolist()
        begin = end
    assert found.scores["dynamic"].nats == pytest.approx(nats, rel=1e-5)
    first = np.isin(np.arange(33), [0, *ends])
    assert np.array_equal(found.scored.tokens, text.tokens[~first])
    assert found.by_document.tokens.tolist() == [k - 1 for k in np.diff([0, *ends])]
    assert found.by_document.labels[0] == checkpoint.vocabulary.show(text.tokens[: ends[0] - 1])
    told = {name: found.run[name] for name in ("documents", "carry", "streams", "limit")}
    assert told == {"documents": "lines", "carry": "none", "streams": 3, "limit": 33}


def test_the_first_token_of_each_document_is_a_guess_or_not_scored(checkpoints, shifted):
    changes = {"documents": "chunks:25", "limit": 60, "streams": 2}
    unscored, uniform, carried = (
        run_of(checkpoints, shifted, **changes, **more).execute()
        for more in ({}, {"first_token": "uniform"}, {"carry": "weights+state"})
    )
    symbols = unscored.run["vocabulary"]["size"]
    for name in PREDICTORS:
        expected = np.insert(unscored.scores[name].nats, (0, 24, 48), math.log(symbols))
        assert np.array_equal(uniform.scores[name].nats, expected)
        # the third follows on the first
        assert len(carried.scores[name].nats) == 58
    numbers = carried.by_document.numbers
    assert numbers.tolist() == [1] * 24 + [2] * 24 + [3] * 10
    assert uniform.by_document.tokens.tolist() == [25, 25, 10]


def test_a_document_that_diverges_is_named(checkpoints, shifted, tmp_path):
    """What was read before it is kept, in the order of the text; so is it in a resumed run."""
    settings = Settings(7, "sgd", learning_rate=1e6)
    plain = {"predictors": {"wild": settings, "static": Settings(7)}, "documents": "chunks:8"}
    for streams, token in ((1, 1), (3, 1)):
        run = run_of(checkpoints, shifted, **plain, carry="weights", streams=streams)
        folder = tmp_path / str(streams)
        first, again = run.execute(folder=folder), run.execute(folder=folder, resume=True)
        assert first.to_json() == again.to_json()
        wild = first.scores["wild"]
        said = re.match(r"wild diverged at token (\d+) of document (\d+): its prob", wild.diverged)
        assert int(said[1]) == token
        assert int(said[2]) == streams + 1
        assert len(wild.nats) == 7 * streams
        assert len(first.scores["static"].nats) == 7 * 15
        rows = first.documents()
        assert [row["nats.wild"] is None for row in rows] == [k >= streams for k in range(15)]
        assert not any(row["nats.static"] is None for row in rows)


# Mistakes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"limit": 0}, "limit of 0 tokens"),
        ({"first_token": "maybe"}, "give unscored or uniform"),
        ({"predictors": {"run": Settings(5)}}, "cannot be named 'run'"),
        ({"predictors": {"documents": Settings(5)}}, "cannot be named 'documents'"),
        ({"documents": "pages"}, "cannot be cut into 'pages'"),
        ({"documents": "chunks:1"}, "120 (documents: 120), and needed are 2 or more, since the f"),
        ({"carry": "weights"}, "carry='weights' is for documents"),
        ({"predictors": {"../a": Settings(5)}}, "cannot be named '../a'"),
        ({"unknown": "maybe"}, "give error, drop or unk"),
        ({"split": "dev"}, "has no split 'dev'"),
        ({"stats": "nowhere"}, "nowhere does not exist"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_runs_that_make_no_sense(checkpoints, shifted, changes, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        run_of(checkpoints, shifted, **changes).execute()


def test_a_predictor_that_diverges_does_not_stop_the_others(checkpoints, shifted, tmp_path):
    """Also when it is resumed: what has diverged stays so."""
    wild = {"wild": Settings(7, "rms+decay", learning_rate=10.0), "static": Settings(7)}
    run = run_of(checkpoints, shifted, predictors=wild)
    first = run.execute(folder=tmp_path)
    again = run.execute(folder=tmp_path, resume=True)
    for found in (first, again):
        assert len(found.scores["wild"].nats) == 7
        assert found.scores["wild"].diverged.startswith("wild diverged at token 8: ")
        assert "lower the learning rate" in found.scores["wild"].diverged
        assert len(found.scores["static"].nats) == 119
        assert not found.scores["static"].diverged
    assert first.to_json() == again.to_json()


class Breaking(nn.Module):
    """A model that says NaN from a given step on: what overflowing weights come to."""

    def __init__(self, steps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.steps = steps

    def hidden(self, tokens, state=None):
        start = 0 if state is None else int(state[0])
        numbers = torch.arange(start + 1, start + tokens.shape[1] + 1)
        broken = (numbers > self.steps)[None, :, None]
        h = torch.zeros(*tokens.shape, 3).masked_fill(broken, torch.nan)
        return h, numbers[-1:].float()

    def logits(self, h):
        return h + self.weight


def test_the_token_that_diverged_is_named():
    plan = Waves(torch.zeros(40, dtype=torch.long), np.array([0, 40]))
    score = _Reading("static", Static(Breaking(13)), None, None).score(plan, 5, 3)
    assert "static diverged at token 14: " in score.diverged
    assert score.nats[1:11].tolist() == pytest.approx([math.log(3)] * 10)


# Going on after a stop


def same_but_seconds(found, expected):
    """Whether two saved results agree to the bit."""
    a, b = (storage.read_json(path) for path in (found, expected))
    for result in (a, b):
        for name in set(result) - {"run"}:
            assert result[name].pop("seconds") > 0
    assert a == b
    with (
        np.load(found.with_suffix(".npz")) as ours,
        np.load(expected.with_suffix(".npz")) as theirs,
    ):
        assert set(ours) == set(theirs)
        for name in ours:
            assert np.array_equal(ours[name], theirs[name]), name


def ended(path):
    """Whether the predictor whose file this is has read to the end."""
    return storage.read_tensors(path)[1]["ended"]


def test_killed_at_several_points_a_run_ends_with_the_same_digits(
    command, checkpoints, shifted, tmp_path
):
    """In the middle of each predictor, and by Ctrl-C too; the last process is this one."""
    kept = tmp_path / "kept"
    line = ["evaluate", checkpoints["bytes"], shifted, "--threads", 1, "--quiet", "--json"]
    line += ["--limit", 1000, "--segment-length", 4, "--learning-rate", 0.001, "--cache"]
    line += ["--cache-size", 20]
    whole = tmp_path / "whole.json"
    assert command(*line, "--save", whole).code == 0
    line += ["--checkpoint", kept, "--checkpoint-every", 0]
    for name, flags in (("static", []), ("dynamic", ["--resume"]), ("dynamic+cache", ["--resume"])):
        path = kept / f"{name}.safetensors"
        killed(process(*line, *flags), path.exists)
        assert not ended(path)  # otherwise nothing was interrupted
    with process(*line, "--resume") as started:
        before = path.stat().st_mtime_ns
        while path.stat().st_mtime_ns == before:
            assert started.poll() is None
        started.send_signal(signal.SIGINT)
        out, err = started.communicate()
    assert (started.returncode, out) == (130, b"")
    assert one_line(err.decode()) == "dyneval: interrupted\n"
    (kept / ".partial-left-by-a-kill").touch()
    resumed = tmp_path / "resumed.json"
    assert command(*line, "--resume", "--save", resumed).code == 0
    same_but_seconds(resumed, whole)
    assert not list(kept.glob(".partial-*"))
    again = tmp_path / "again.json"  # of a finished run: nothing is read again
    files = {file: file.read_bytes() for file in kept.glob("*.safetensors")}
    assert command(*line, "--resume", "--save", again).code == 0
    assert storage.read_json(again) == storage.read_json(resumed)
    assert {file: file.read_bytes() for file in kept.glob("*.safetensors")} == files


@pytest.mark.parametrize(
    "changes",
    [{}, *({"documents": "lines", "streams": 2, "carry": carry} for carry in get_args(Carry))],
    ids=lambda changes: changes.get("carry", ""),
)
def test_a_stop_after_any_segment_changes_nothing(checkpoints, shifted, tmp_path, changes):
    """Stopped by the report of progress, which is called within the loop."""

    class Stop(Exception):
        pass

    run = run_of(checkpoints, shifted, "bytes", limit=90, **changes)
    expected = run.execute()
    steps = 0

    def stop(at):
        nonlocal steps
        steps += 1
        if steps == 3:
            raise Stop

    for _ in range(100):
        steps = 0
        try:
            found = run.execute(stop, folder=tmp_path, resume=True, save_every=-1)
            break
        except Stop:
            pass
    for name, score in expected.scores.items():
        assert np.array_equal(found.scores[name].nats, score.nats)


def test_a_folder_that_holds_a_run_is_not_written_over(mistake, checkpoints, shifted, tmp_path):
    line = ["evaluate", checkpoints["words"], shifted, "--limit", 40, "--checkpoint", tmp_path]
    run_of(checkpoints, shifted, limit=40).execute(folder=tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert "already holds a run; go on with it (--resume)" in mistake(*line)
    message = mistake(*line, "--resume", "--first-token", "uniform")
    assert "holds another run than this one" in message
    assert "first_token" in message
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_run_with_other_statistics_is_another_run(checkpoints, copied, shifted, tmp_path):
    model = copied("words")
    run = Run(model, shifted, PREDICTORS, limit=40)
    run.execute(folder=tmp_path / "kept")
    stats = gradient_stats.load(model / gradient_stats.FILE)
    gradient_stats.merge([stats, stats]).save(model / gradient_stats.FILE)
    with pytest.raises(ValueError, match="of another statistics"):
        run.execute(folder=tmp_path / "kept", resume=True)


def test_a_folder_that_is_damaged_is_named(checkpoints, shifted, tmp_path):
    run = run_of(checkpoints, shifted, limit=40)
    run.execute(folder=tmp_path / "whole")
    for name in ("run.json", "static.safetensors", "dynamic+cache.safetensors"):
        folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / name))
        path = folder / name
        path.write_bytes(path.read_bytes()[:30])
        with pytest.raises(ValueError, match=re.escape(f"{path} is no whole")):
            run.execute(folder=folder, resume=True)
    folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / "others"))
    shutil.copy(checkpoints["words"] / "model.safetensors", folder / "static.safetensors")
    with pytest.raises(ValueError, match=re.escape(f"{folder / 'static.safetensors'} holds no")):
        run.execute(folder=folder, resume=True)
    (folder / "run.json").write_text("[]")
    with pytest.raises(ValueError, match="holds another run"):
        run.execute(folder=folder, resume=True)


# A model of others, on a real text


@pytest.mark.corpora
def test_an_english_model_learns_spanish(corpora_folder, command, tmp_path):
    """The scores that were recorded when this was written, to a thousandth."""
    npz = corpora_folder.parent / "models" / "charrnn" / "charlotte_bronte.npz"
    if not npz.exists():
        pytest.skip(f"there is no {npz.name} beside the corpora")
    assert command("import-charrnn", npz, tmp_path / "model").code == 0
    line = ["evaluate", tmp_path / "model", "europarl-es", "--limit", 3000, "--unknown", "drop"]
    line += ["--rule", "sgd+decay", "--learning-rate", 0.05, "--decay-rate", 0.001]
    done = command(*line, "--segment-length", 20, "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["run"]["split"] == "test"
    recorded = {"static": 5.63406, "dynamic": 4.17643}
    for name, bits in recorded.items():
        assert found[name]["tokens"] == 2999
        assert found[name]["bits_per_character"] == pytest.approx(bits, rel=1e-3)
