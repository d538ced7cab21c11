import json
import math
from pathlib import Path

import pytest
import torch
from processes import json_of, process

from dyneval import models, storage
from dyneval.evaluation import evaluate
from dyneval.generation import Sampling, condition, count_known, generate, samples, words
from dyneval.neural_cache import NeuralCache
from dyneval.predictors import Dynamic, Static
from dyneval.reading import Categorical
from dyneval.rules import Decay, Rms, RmsDecay, Sgd


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


class Uniform:
    """Expects each of four symbols alike, and notes what it is asked to learn."""

    def __init__(self):
        self.learned = []

    def predict(self, tokens):
        shape = (*tokens.shape, 4)
        return Categorical(torch.full(shape, -math.log(4)), torch.zeros(*tokens.shape, 1))

    def learn(self, targets):
        self.learned.append(targets.tolist())


# What is sampled from


def plainly(log_probs, temperature, top_k, top_p):
    """The same by sorted lists of Python's numbers."""
    weights = [math.exp(value / temperature) for value in log_probs.tolist()]
    order = sorted(range(len(weights)), key=lambda k: (-weights[k], k))[:top_k]
    total, kept, so_far = sum(weights[k] for k in order), [], 0.0
    for k in order:
        if top_p is None or so_far < top_p * total:
            kept.append(k)
        so_far += weights[k]
    total = sum(weights[k] for k in kept)
    return [weights[k] / total if k in kept else 0.0 for k in range(len(weights))]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 3, 11, 50])
@pytest.mark.parametrize("top_p", [None, 0.01, 0.5, 0.9, 1.0])
def test_probabilities_are_those_of_a_plain_computation(temperature, top_k, top_p):
    log_probs = torch.log_softmax(2 * torch.randn(11, dtype=torch.double, generator=seeded()), 0)
    found = Sampling(temperature, top_k, top_p).probabilities(log_probs)
    expected = torch.tensor(plainly(log_probs, temperature, top_k, top_p), dtype=torch.double)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_symbols_that_are_alike_are_kept_in_their_order():
    log_probs = torch.log(torch.tensor([0.1, 0.3, 0.3, 0.3]))
    found = Sampling(top_k=2).probabilities(log_probs)
    assert found.tolist() == pytest.approx([0, 0.5, 0.5, 0])


@pytest.mark.parametrize("temperature", [0, 1e-300])
def test_no_temperature_takes_the_most_probable(temperature):
    log_probs = torch.log(torch.tensor([0.2, 0.5, 0.3]))
    for top_p in (None, 0.1):
        sampling = Sampling(temperature, None, top_p)
        assert sampling.probabilities(log_probs).tolist() == [0, 1, 0]


def test_a_uniform_model_writes_every_symbol_as_often():
    """χ² of three degrees of freedom: below 16.3 in 999 of 1000 cases."""
    tokens = list(generate(Uniform(), torch.tensor([[0]]), 4000, 5, generator=seeded()))
    counts = torch.bincount(torch.tensor(tokens), minlength=4)
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3


@pytest.mark.parametrize(
    ("message", "values"),
    [
        ("temperature of -1", {"temperature": -1}),
        ("temperature of nan", {"temperature": math.nan}),
        ("temperature of inf", {"temperature": math.inf}),
        ("top_k=0", {"top_k": 0}),
        ("top_p=0", {"top_p": 0}),
        ("top_p=1.1", {"top_p": 1.1}),
        ("top_p=nan", {"top_p": math.nan}),
    ],
)
def test_impossible_sampling_is_refused_at_once(lstm, text, message, values):
    with pytest.raises(ValueError, match=message):
        generate(Static(lstm), text[None], 3, 5, **values)


def test_impossible_amounts_are_refused(lstm, text):
    for count, segment_length in ((-1, 5), (3, 0)):
        with pytest.raises(ValueError, match="cannot be generated"):
            generate(Static(lstm), text[None], count, segment_length)
    for conditioning in (text[None, :0], text, torch.stack([text, text])):
        with pytest.raises(ValueError, match="at least one"):
            next(generate(Static(lstm), conditioning, 3, 5))


def test_a_model_that_lost_its_probabilities_says_so(lstm, text):
    with pytest.raises(ValueError, match="diverged.*lower the learning rate"):
        list(generate(Dynamic(lstm, Sgd(1e300)), text[None], 1, 5))


# Segments

RULES = {
    "sgd": Sgd(0.2) + Decay(0.1),
    "rms": Rms(0.01, 0.01) + RmsDecay(0.1),
}


def dynamic(model, rule, make_stats):
    return Dynamic(model, RULES[rule], make_stats(model).priors(model))


@pytest.mark.parametrize("engine", ["auto", "generic", "reference"])
@pytest.mark.parametrize("given", [1, 2, 5, 6, 43])
@pytest.mark.parametrize("segment_length", [1, 5])
def test_borders_do_not_restart(lstm, text, make_stats, given, segment_length, engine):
    """Conditioning and sample as one stream, evaluated: the same log-probabilities."""
    priors = make_stats(lstm).priors(lstm)

    def make():
        return Dynamic(lstm, RULES["rms"], priors, engine)

    told = []
    writer = make()
    predict = writer.predict

    def listen(tokens):
        told.append(predict(tokens))
        return told[-1]

    writer.predict = listen
    tokens = list(generate(writer, text[None, :given], 23, segment_length, generator=seeded()))
    stream = torch.cat([text[:given], torch.tensor(tokens)])[None]
    expected = torch.cat(list(evaluate(make(), stream, segment_length)), 1)[0, given - 1 :]
    said = torch.stack([prediction.log_probs[0, -1] for prediction in told[-23:]])
    nats = -said[torch.arange(23), tokens]
    torch.testing.assert_close(nats, expected, rtol=1e-10, atol=1e-10)


def test_segments_begin_in_the_conditioning_and_end_in_the_sample():
    predictor = Uniform()
    tokens = list(generate(predictor, torch.tensor([[3, 0, 1, 2, 3]]), 5, 3, generator=seeded()))
    assert predictor.learned == [[[0, 1, 2]], [[3, *tokens[:2]]], [tokens[2:5]]]


@pytest.mark.parametrize("segment_length", [1, 4])
def test_not_learning_is_static(model, text, make_stats, segment_length):
    priors = make_stats(model).priors(model)
    for rule in (Sgd(0.0), Rms(0.0) + RmsDecay(0.0)):
        still = Dynamic(model, rule, priors)
        found, expected = (
            list(generate(each, text[None, :30], 60, segment_length, generator=seeded(7)))
            for each in (still, Static(model))
        )
        assert found == expected


def test_learning_changes_what_is_written(lstm, text, make_stats):
    found, expected = (
        list(generate(each, text[None, :30], 60, 4, generator=seeded(7)))
        for each in (dynamic(lstm, "sgd", make_stats), Static(lstm))
    )
    assert found != expected


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_what_is_learned_knows_no_temperature(lstm, text, make_stats, temperature):
    writer, reader = (dynamic(lstm, "sgd", make_stats) for _ in range(2))
    stream = text[None, :11]
    tokens = list(
        generate(writer, stream, 10, 5, temperature=temperature, top_k=3, generator=seeded())
    )
    list(evaluate(reader, torch.cat([stream, torch.tensor([tokens])], 1), 5))
    for name, weight in reader.weights().items():
        torch.testing.assert_close(writer.weights()[name], weight, rtol=1e-10, atol=1e-12)


def test_nothing_to_write(lstm, text):
    predictor = Static(lstm)
    assert list(generate(predictor, text[None, :12], 0, 5)) == []
    assert predictor.position.tolist() == [10]  # the whole segments were read


# Several samples of one conditioning


@pytest.mark.parametrize("given", [1, 4, 23])
def test_samples_are_those_of_readings_of_their_own(lstm, text, make_stats, given):
    def make(cached):
        base = dynamic(lstm, "rms", make_stats)
        return NeuralCache(base, 9) if cached else base

    for cached in (False, True):
        seeds, stream = (3, 4, 3), text[None, :given]
        found = [
            (seed, list(tokens))
            for seed, tokens in samples(make(cached), stream, 17, 4, seeds, Sampling(0.9))
        ]
        for seed, tokens in found:
            how = {"temperature": 0.9, "generator": seeded(seed)}
            assert tokens == list(generate(make(cached), stream, 17, 4, **how))
        assert found[0][1] != found[1][1]


def test_the_end_of_a_conditioning_goes_on_from_a_stored_state(lstm, text, make_stats):
    first, second = (dynamic(lstm, "rms", make_stats) for _ in range(2))
    reports = []
    end = condition(first, text[None, :31], 4, lambda *at: reports.append(at))
    assert torch.equal(end, text[None, 28:31])
    assert reports[0] == (4, 28)
    assert reports[-1] == (28, 28)
    second.load_state_dict(first.state_dict())
    found = list(generate(second, end, 12, 4, generator=seeded()))
    whole = dynamic(lstm, "rms", make_stats)
    assert found == list(generate(whole, text[None, :31], 12, 4, generator=seeded()))


# Words


def test_words_of_a_text():
    assert words("bro Über 3 x's, (no) te") == ["über", "xs", "no"]
    assert words("one two") == words("") == []


def test_known_words_are_counted_over_all_texts():
    texts = ["a la mar a", "a LA casa, a", ""]
    assert count_known(texts, {"la", "casa"}) == {"words": 4, "known": 3, "share": 0.75}
    assert count_known([""], {"la"}) == {"words": 0, "known": 0, "share": None}


# The command


@pytest.fixture
def line(checkpoints, shifted):
    return lambda kind, *more: (
        *("generate", checkpoints[kind], "--conditioning", shifted, "--limit", 53),
        *("--length", 40, *more),
    )


@pytest.mark.parametrize("kind", ["bytes", "characters", "words"])
def test_what_is_printed_is_what_is_generated(command, line, checkpoints, shifted, kind):
    found = json_of(command(*line(kind, "--rule", "sgd", "--learning-rate", 0.5, "--json")))
    (sample,) = found["samples"]
    assert found["run"]["tokens"] == 53
    assert found["run"]["predictor"]["learning_rate"] == 0.5
    done = command(*line(kind, "--rule", "sgd", "--learning-rate", 0.5))
    assert (done.code, done.err) == (0, "")
    assert done.out == sample["text"] + "\n"
    checkpoint = models.load(checkpoints[kind])
    stream = checkpoint.vocabulary.read(Path(shifted).read_bytes()).stream[:, :53]
    n = 5 if kind == "words" else 20
    predictor = Dynamic(checkpoint.model, Sgd(0.5))
    tokens = generate(predictor, stream, 40, n, generator=seeded(1))
    assert "".join(checkpoint.vocabulary.spell(tokens)) == sample["text"]


def test_no_learning_is_static_on_the_command_line(command, line):
    still = ("--rule", "rms+rms-decay", "--learning-rate", 0, "--decay-rate", 0)
    found = [
        json_of(command(*line("characters", "--samples", 3, "--seed", 5, "--json", *flags)))
        for flags in (still, ("--static",))
    ]
    assert found[0]["samples"] == found[1]["samples"]
    assert [sample["seed"] for sample in found[0]["samples"]] == [5, 6, 7]


def test_samples_are_told_apart_and_their_words_counted(command, line, shifted, tmp_path):
    path = tmp_path / "written.json"
    known = ("--samples", 2, "--known", shifted, "--length", 300)
    done = command(*line("characters", *known, "--save", path))
    found = storage.read_json(path)
    texts = [sample["text"] for sample in found["samples"]]
    assert done.out.startswith(f"seed 1:\n{texts[0]}\nseed 2:\n{texts[1]}\n")
    assert done.out.endswith(f"{found['known']} of {found['words']} words are in {shifted}\n")
    text = Path(shifted).read_text("utf-8")
    rest = set(words(text[53:]))  # nothing but the conditioning stands before
    assert found == found | count_known(texts, rest)
    assert found["samples"][1] == {"seed": 2, "text": texts[1]} | count_known(texts[1:], rest)


def test_words_of_another_text_are_known_as_well(command, line, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("the a the\n")
    found = json_of(command(*line("words", "--known", path, "--temperature", 0, "--json")))
    (sample,) = found["samples"]
    assert found["known"] == sum(word == "a" for word in words(sample["text"]))


def test_a_part_of_standard_input_is_gone_on_from(checkpoints, line, command, shifted):
    flags = ("--skip", 7, "--limit", 30, "--length", 25, "--rule", "sgd", "--json")
    expected = json_of(command(*line("bytes", *flags)))
    command_ = ("generate", checkpoints["bytes"], "--conditioning", "-", *flags, "--threads", 1)
    with process(*command_, env={"PYTHONIOENCODING": "ascii"}) as started:
        out, err = started.communicate(Path(shifted).read_bytes())
    assert (started.returncode, err) == (0, b"")

    assert json.loads(out)["samples"] == expected["samples"]


def test_a_terminal_of_ascii_gets_question_marks(checkpoints, shifted):
    flags = ("--conditioning", shifted, "--limit", 30, "--rule", "sgd", "--length", 200)
    with process(
        "generate", checkpoints["bytes"], *flags, env={"PYTHONIOENCODING": "ascii"}
    ) as started:
        out, err = started.communicate()
    assert (started.returncode, err) == (0, b"")
    assert b"?" in out


def test_mistakes_of_the_command(mistake, line, checkpoints, tmp_path):
    assert "temperature of -1" in mistake(*line("bytes", "--temperature", -1))
    assert "top_k=0" in mistake(*line("bytes", "--top-k", 0))
    assert "top_p=2.0" in mistake(*line("bytes", "--top-p", 2))
    assert "0 samples" in mistake(*line("bytes", "--samples", 0))
    assert "samples of -1 tokens" in mistake(*line("bytes", "--length", -1))
    assert "skip 0 or more" in mistake(*line("bytes", "--skip", -1))
    assert "none to go on from behind 99999" in mistake(*line("bytes", "--skip", 99999))
    assert "another ending" in mistake(*line("bytes", "--save", tmp_path / "a.txt"))
    path = tmp_path / "empty"
    path.write_bytes(b"")
    message = mistake("generate", checkpoints["bytes"], "--conditioning", path)
    assert "0 tokens, and none to go on from" in message
    path = tmp_path / "settings.json"
    storage.write_json(path, {"settings": {"sgd": {"segment_length": 5, "rule": "sgd"}}})
    message = mistake(*line("bytes", "--settings", path))
    assert "the settings are of static, sgd, not of dynamic; give a --rule" in message
