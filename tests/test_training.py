import dataclasses
import json
import math
import random
import re
import signal
import subprocess
import sys

import pytest
import torch

from dyneval import corpora, models, storage, training
from dyneval.evaluation import evaluate
from dyneval.predictors import Static
from dyneval.recipes import Recipe
from dyneval.streams import parallel
from dyneval.training import Training, start

LSTM = Recipe(
    "lstm",
    {"embedding_size": 8, "units": 16, "layers": 2, "dropout": 0.1, "initial_range": 0.3},
    "sgd",
    learning_rate=1.0,
    epochs=3,
    batch_size=8,
    sequence_length=10,
    decay=1.2,
    constant_epochs=2,
)
AWD_LSTM = Recipe(
    "awd-lstm",
    {
        "embedding_size": 12,
        "units": 16,
        "layers": 2,
        "row_dropout": 0.02,
        "input_dropout": 0.1,
        "layer_dropout": 0.1,
        "output_dropout": 0.1,
        "recurrent_dropout": 0.1,
    },
    "adam",
    learning_rate=2e-2,
    epochs=3,
    batch_size=8,
    sequence_length=10,
)
# averages once a validation is no better, and from the start of its fine-tuning
NT_ASGD = dataclasses.replace(
    AWD_LSTM,
    optimizer="nt-asgd",
    learning_rate=20.0,
    random_lengths=True,
    clip=0.25,
    weight_decay=1e-6,
    activation=2.0,
    temporal_activation=1.0,
    nonmonotone=1,
    fine_tune_epochs=1,
)
MLSTM = Recipe(
    "mlstm",
    {"embedding_size": 8, "units": 16, "hidden_dropout": 0.1, "embedding_dropout": 0.1},
    "adam",
    learning_rate=2e-2,
    final_learning_rate=1e-3,
    epochs=3,
    batch_size=8,
    sequence_length=10,
    clip=1.0,
    weight_normalisation=True,
    precision="bfloat16",
)
RECIPES = {"lstm": LSTM, "awd-lstm": AWD_LSTM, "mlstm": MLSTM}


@pytest.fixture(autouse=True)
def _one_thread():
    """The numbers of a training are those of its number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=RECIPES)
def recipe(request):
    return RECIPES[request.param]


@pytest.fixture
def text(tmp_path):
    """A file of 4 kB in a language of a few words."""
    chance = random.Random(0)
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "then"]
    lines = (" ".join(chance.choices(words, k=9)) + "\n" for _ in range(110))
    path = tmp_path / "text.txt"
    path.write_text("".join(lines)[:4000])
    return path


@pytest.fixture
def corpus(text):
    return corpora.load(text, "characters")


def finished(training):
    return [*training.run()]


def assert_equal(ours, theirs):
    """Two trainings stand at the same numbers, to the last bit."""
    assert ours.step == theirs.step
    for name, value in ours.model.state_dict().items():
        assert torch.equal(value, theirs.model.state_dict()[name]), name
    mine, other = (run.optimizer.state_dict()["state"] for run in (ours, theirs))
    assert mine.keys() == other.keys()
    for k, values in mine.items():
        for name, value in values.items():
            assert torch.equal(value, other[k][name]), (k, name)
    for name in ("epoch", "train_nats", "valid_nats"):
        assert [entry[name] for entry in ours.history] == [entry[name] for entry in theirs.history]
    kept = [models.fingerprint(models.load(run.folder).model) for run in (ours, theirs)]
    assert kept[0] == kept[1]


# What is learned


def test_the_loss_falls(recipe, corpus, tmp_path):
    run = start(dataclasses.replace(recipe, epochs=5), corpus, tmp_path / "run")
    progress = finished(run)
    assert [step.step for step in progress] == [*range(1, run.steps + 1)]
    assert [step.epoch for step in progress] == [k // run.starts[1] for k in range(run.steps)]
    ends = [step for step in progress if step.validation_nats is not None]
    assert [step.step for step in ends] == run.starts[1:]
    assert all(step.steps == run.steps and step.tokens_per_second > 0 for step in progress)
    assert progress[0].nats == pytest.approx(math.log(len(corpus.vocabulary)), abs=0.3)
    assert ends[-1].nats < 0.9 * ends[0].nats
    assert ends[-1].validation_nats < 0.85 * math.log(len(corpus.vocabulary))


def test_the_best_model_is_kept(corpus, tmp_path):
    # from the second epoch on it gets worse
    recipe = dataclasses.replace(LSTM, decay=0.02, constant_epochs=1, epochs=4)
    run = start(recipe, corpus, tmp_path / "run")
    finished(run)
    scores = [entry["valid_nats"] for entry in run.history]
    assert scores[-1] > min(scores)
    kept = models.load(tmp_path / "run")
    assert kept.vocabulary == corpus.vocabulary
    assert kept.about["recipe"] == dataclasses.asdict(recipe)
    assert kept.about["checksum"] == corpus.checksum("train")
    stream = parallel(torch.from_numpy(corpus.read("valid").tokens).long(), 8)
    nats = torch.cat([*evaluate(Static(kept.model), stream, 100)], 1)
    assert nats.double().mean().item() == pytest.approx(min(scores), rel=1e-6)


def test_training_is_the_seed_s(recipe, corpus, tmp_path):
    runs = []
    for k, seed in enumerate((1, 1, 2)):
        changed = dataclasses.replace(recipe, epochs=1, seed=seed)
        runs.append(start(changed, corpus, tmp_path / str(k)))
        finished(runs[-1])
    assert_equal(runs[0], runs[1])
    assert runs[0].history[0]["valid_nats"] != runs[2].history[0]["valid_nats"]


def test_a_step_is_that_of_torch(corpus, tmp_path):
    """One step of SGD: the mean loss over rows, summed over time, clipped."""
    plain = dataclasses.replace(LSTM, model=LSTM.model | {"dropout": 0.0}, clip=0.01)
    run = start(plain, corpus, tmp_path / "run")
    model = models.ARCHITECTURES["lstm"](len(corpus.vocabulary), **plain.model)
    model.load_state_dict(run.model.state_dict())
    next(run.run())
    tokens = parallel(torch.from_numpy(corpus.read("train").tokens).long(), 8)
    log_probs = model.logits(model.hidden(tokens[:, :10])[0]).log_softmax(-1)
    (-log_probs.gather(-1, tokens[:, 1:11, None]).sum() / 8).backward()
    norm = torch.stack([weight.grad.norm() for weight in model.parameters()]).norm()
    assert norm > 0.01
    for ours, weight in zip(run.model.parameters(), model.parameters(), strict=True):
        expected = weight.detach() - 1.0 * weight.grad * 0.01 / norm
        torch.testing.assert_close(ours.detach(), expected, rtol=0, atol=1e-7)


def test_learning_rates_of_sgd(corpus, tmp_path):
    recipe = dataclasses.replace(LSTM, learning_rate=1.0, decay=2.0, constant_epochs=2, epochs=4)
    run = Training(recipe, corpus, tmp_path)
    rates = [run.learning_rate(step) for step in range(run.steps)]
    expected = [1.0, 1.0, 0.5, 0.25]
    assert rates == [rate for rate in expected for _ in range(run.starts[1])]


def test_learning_rates_of_adam(corpus, tmp_path):
    run = Training(MLSTM, corpus, tmp_path)
    rates = [run.learning_rate(step) for step in range(run.steps)]
    assert rates[0] == pytest.approx(2e-2, rel=1e-12)
    assert rates[-1] == pytest.approx(1e-3, rel=1e-12)
    falls = [before - after for before, after in zip(rates, rates[1:], strict=False)]
    assert falls == pytest.approx([1.9e-2 / (run.steps - 1)] * (run.steps - 1), rel=1e-9)
    run._step()
    assert run.optimizer.param_groups[0]["lr"] == rates[0]
    run._step()
    assert run.optimizer.param_groups[0]["lr"] == rates[1]


# Weight normalisation


def test_folded_weights_compute_the_same(corpus, tmp_path):
    run = start(MLSTM, corpus, tmp_path)
    next(run.run())
    model = run.model.double().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded = training.folded(model)
    tokens = torch.randint(len(corpus.vocabulary), (3, 9))
    expected, state = model.hidden(tokens)
    hidden, same = folded.hidden(tokens)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(same[0][1], state[0][1], rtol=0, atol=1e-14)
    plain = models.ARCHITECTURES["mlstm"](len(corpus.vocabulary), **MLSTM.model)
    assert set(dict(folded.named_parameters())) == set(dict(plain.named_parameters()))
    assert type(folded.layers[0]) is type(plain.layers[0])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weight_normalisation_is_per_row_of_the_layers_matrices(corpus, tmp_path):
    run = Training(MLSTM, corpus, tmp_path)
    names = {name for name, _ in run.model.named_parameters() if "parametrizations" in name}
    assert names == {
        f"layers.0.parametrizations.weight_{kind}.original{k}"
        for kind in ("mx", "mh", "ih", "hh")
        for k in (0, 1)
    }
    layer = run.model.layers[0]
    norms = layer.parametrizations.weight_hh.original0
    assert norms.shape == (64, 1)
    torch.testing.assert_close(layer.weight_hh.norm(dim=1, keepdim=True), norms)


# Stopped and resumed


@pytest.mark.parametrize("stop", [1, 47, 90])
def test_resumed_as_if_never_stopped(recipe, corpus, tmp_path, stop):
    whole = start(recipe, corpus, tmp_path / "whole")
    finished(whole)
    assert whole.starts == [0, 45, 90, 135]
    stopped = start(recipe, corpus, tmp_path / "stopped")
    for progress in stopped.run():
        if progress.step == stop:
            break
    stopped.save()
    torch.manual_seed(99)
    resumed = start(recipe, corpus, tmp_path / "stopped", resume=True)
    assert resumed.step == stop
    assert resumed.nats == stopped.nats
    steps = finished(resumed)
    assert [progress.step for progress in steps] == [*range(stop + 1, whole.steps + 1)]
    assert_equal(resumed, whole)


def run_until(step, sign, recipe, text, folder, save_every):
    """Train in a process of its own and send it a signal after a step -> its exit status."""
    code = """
import json, sys, time
import torch
from dyneval import corpora
from dyneval.recipes import Recipe
from dyneval.training import start

torch.set_num_threads(1)
recipe, text, folder, save_every = json.loads(sys.argv[1])
run = start(Recipe(**recipe), corpora.load(text, "characters"), folder)
try:
    for progress in run.run(save_every):
        print(progress.step, flush=True)
        time.sleep(0.02)
except KeyboardInterrupt:
    sys.exit(130)
"""
    arguments = json.dumps([dataclasses.asdict(recipe), str(text), str(folder), save_every])
    with subprocess.Popen(
        [sys.executable, "-c", code, arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        for line in process.stdout:
            if int(line) == step:
                process.send_signal(sign)
    return process.returncode


def test_interrupted_in_mid_epoch_and_resumed(corpus, text, tmp_path):
    status = run_until(60, signal.SIGINT, LSTM, text, tmp_path / "run", 300)
    assert status == 130  # a KeyboardInterrupt, after what was done was saved
    resumed = start(LSTM, corpus, tmp_path / "run", resume=True)
    assert 60 <= resumed.step < 90
    finished(resumed)
    whole = start(LSTM, corpus, tmp_path / "whole")
    finished(whole)
    assert_equal(resumed, whole)


@pytest.mark.parametrize(("save_every", "earliest"), [(300, 45), (0, 59)])
def test_killed_and_resumed_from_the_last_checkpoint(corpus, text, tmp_path, save_every, earliest):
    assert run_until(60, signal.SIGKILL, MLSTM, text, tmp_path / "run", save_every) == -9
    resumed = start(MLSTM, corpus, tmp_path / "run", resume=True)
    assert earliest <= resumed.step < 90
    finished(resumed)
    whole = start(MLSTM, corpus, tmp_path / "whole")
    finished(whole)
    assert_equal(resumed, whole)


def test_a_finished_training_stays_finished(corpus, tmp_path):
    recipe = dataclasses.replace(LSTM, epochs=1)
    run = start(recipe, corpus, tmp_path / "run")
    finished(run)
    again = start(recipe, corpus, tmp_path / "run", resume=True)
    assert finished(again) == []
    assert_equal(again, run)


def test_resume_with_nothing_there_begins(corpus, tmp_path):
    assert start(LSTM, corpus, tmp_path / "run", resume=True).step == 0


def test_signals_are_given_back(corpus, tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run = start(dataclasses.replace(LSTM, epochs=1), corpus, tmp_path / "run")
    steps = run.run()
    next(steps)
    assert signal.getsignal(signal.SIGINT) != before[0]
    steps.close()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.fixture
def stopped(corpus, tmp_path):
    run = start(LSTM, corpus, tmp_path / "run")
    next(run.run())
    run.save()
    return tmp_path / "run"


def test_a_folder_is_not_trained_over(corpus, stopped):
    with pytest.raises(ValueError, match=re.escape(f"{stopped} already holds a training")):
        start(LSTM, corpus, stopped)


@pytest.mark.parametrize(
    "recipe",
    [
        dataclasses.replace(LSTM, learning_rate=0.4),
        dataclasses.replace(LSTM, model=LSTM.model | {"dropout": 0.2}),
        dataclasses.replace(LSTM, seed=2),
        MLSTM,
    ],
    ids=["learning rate", "dropout", "seed", "architecture"],
)
def test_another_recipe_is_refused(corpus, stopped, recipe):
    with pytest.raises(ValueError, match=re.escape(f"{stopped} holds a training with another re")):
        start(recipe, corpus, stopped, resume=True)


def test_another_text_is_refused(corpus, stopped, tmp_path):
    (tmp_path / "other.txt").write_bytes(corpus.raw("all").replace(b"cat", b"dog"))
    other = corpora.load(tmp_path / "other.txt", "characters")
    with pytest.raises(ValueError, match="holds a training with another checksum"):
        start(LSTM, other, stopped, resume=True)


@pytest.mark.parametrize("part", [0, 0.5, 0.99])
def test_a_training_cut_off(corpus, stopped, part):
    path = stopped / training.STATE
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(ValueError, match=re.escape(f"{path} is no whole safetensors file")):
        start(LSTM, corpus, stopped, resume=True)


def test_a_file_that_holds_no_training(corpus, stopped):
    storage.write_tensors(stopped / training.STATE, {"a": torch.zeros(2)})
    with pytest.raises(ValueError, match=re.escape(f"{stopped} holds a training with another")):
        start(LSTM, corpus, stopped, resume=True)


# The recipe of the AWD-LSTM: random lengths, AR and TAR, averaged weights, fine-tuning


def test_the_loss_falls_and_random_lengths_read_every_token(corpus, tmp_path):
    run = start(dataclasses.replace(NT_ASGD, epochs=4), corpus, tmp_path / "run")
    progress = finished(run)
    assert [step.step for step in progress] == [*range(1, run.steps + 1)]
    ends = [step for step in progress if step.validation_nats is not None]
    assert [step.step for step in ends] == run.starts[1:]
    assert [step.epoch for step in ends] == [0, 1, 2, 3, 4]
    assert ends[-1].nats < 0.95 * ends[0].nats
    for epoch, step in enumerate(run.starts[1:]):
        assert run.place(step - 1)[0] == epoch
        assert sum(run.place(step - 1)[1:]) == run.train.shape[1] - 1


def test_the_learning_rate_is_in_proportion_to_the_length(corpus, tmp_path):
    run = Training(NT_ASGD, corpus, tmp_path)
    lengths = {run.place(step)[2]: run.learning_rate(step) for step in range(run.steps)}
    assert len(lengths) > 5
    for length, rate in lengths.items():
        assert rate == pytest.approx(20.0 * length / 10, rel=1e-12)


def test_a_step_descends_the_mean_with_ar_and_tar(corpus, tmp_path):
    plain = {name: 0.0 for name in NT_ASGD.model if name.endswith("dropout")}
    recipe = dataclasses.replace(NT_ASGD, model=NT_ASGD.model | plain, clip=1e9, weight_decay=0.01)
    run = start(recipe, corpus, tmp_path / "run")
    model = models.ARCHITECTURES["awd-lstm"](len(corpus.vocabulary), **recipe.model)
    model.load_state_dict(run.model.state_dict())
    _, _, length = run.place(0)
    assert length != 10
    hidden, _ = model.hidden(run.train[:, :length])
    log_probs = model.logits(hidden).log_softmax(-1)
    loss = -log_probs.gather(-1, run.train[:, 1 : length + 1, None]).mean()
    loss = loss + 2 * (hidden**2).mean() + ((hidden[:, 1:] - hidden[:, :-1]) ** 2).mean()
    loss.backward()
    next(run.run())
    for ours, weight in zip(run.model.parameters(), model.parameters(), strict=True):
        gradient = weight.grad + 0.01 * weight.detach()
        expected = weight.detach() - 20.0 * length / 10 * gradient
        torch.testing.assert_close(ours.detach(), expected, rtol=1e-5, atol=1e-6)


def test_averaging_begins_when_the_loss_is_stuck(corpus, tmp_path):
    """From then on what is scored and kept are the averaged weights."""
    recipe = dataclasses.replace(NT_ASGD, learning_rate=60.0, epochs=7, fine_tune_epochs=0)
    run = start(recipe, corpus, tmp_path / "run")
    finished(run)
    losses = [entry["valid_nats"] for entry in run.history]
    counts = [entry["averaged"] for entry in run.history]
    begun = next(k for k in range(2, 7) if losses[k] > min(losses[: k - 1]))
    assert begun < 6
    assert counts == [max(0, step - run.starts[begun + 1]) for step in run.starts[1:]]
    best = losses.index(min(losses))
    assert best > begun  # the mean is better than any that it is over
    kept = models.load(tmp_path / "run").model
    with run.average.in_place():
        for ours, weight in zip(kept.parameters(), run.model.parameters(), strict=True):
            assert torch.equal(ours, weight) == (best == 6)


def test_fine_tuning_begins_again_at_the_best_weights(corpus, tmp_path):
    recipe = dataclasses.replace(NT_ASGD, nonmonotone=9)
    run = start(recipe, corpus, tmp_path / "run")
    for progress in run.run():
        if progress.step == run.starts[3]:
            break
    assert [entry["averaged"] for entry in run.history] == [0, 0, 0]
    best = models.load(tmp_path / "run").model
    for ours, weight in zip(run.model.parameters(), best.parameters(), strict=True):
        assert torch.equal(ours, weight)
    assert run.average.on
    finished(run)
    assert run.history[-1]["averaged"] == run.starts[4] - run.starts[3]


@pytest.mark.parametrize("stop", [1, 50, 140, 155])
def test_averages_are_resumed_as_if_never_stopped(corpus, tmp_path, stop):
    """Also among steps that are averaged, and in fine-tuning."""
    whole = start(NT_ASGD, corpus, tmp_path / "whole")
    finished(whole)
    stopped = start(NT_ASGD, corpus, tmp_path / "stopped")
    for progress in stopped.run():
        if progress.step == stop:
            break
    stopped.save()
    torch.manual_seed(99)
    resumed = start(NT_ASGD, corpus, tmp_path / "stopped", resume=True)
    assert (resumed.step, resumed.nats) == (stop, stopped.nats)
    finished(resumed)
    assert_equal(resumed, whole)
    for name, mean in whole.average.state_dict().items():
        assert torch.equal(resumed.average.state_dict()[name], mean)


# What cannot be trained


def test_texts_that_are_too_short(tmp_path):
    (tmp_path / "short").write_text("a cat sat")
    with pytest.raises(ValueError, match="cannot be cut into 8 streams"):
        Training(LSTM, corpora.load(tmp_path / "short"), tmp_path)


def test_a_training_that_diverges_says_so(corpus, tmp_path):
    recipe = dataclasses.replace(LSTM, learning_rate=1e38, clip=1e38)
    with pytest.raises(ValueError, match="no number .* lower the learning rate"):
        finished(start(recipe, corpus, tmp_path / "run"))
