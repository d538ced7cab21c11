"""Sessions: the model follows what was read, and is afterwards what it was."""

import copy

import pytest
import torch
from hugging_face import TEXT, byte_level, tiny

import dyneval
from dyneval import Decay, Dynamic, Rms, RmsDecay, Sgd, Static, evaluate, targets
from dyneval.models.huggingface import Transformer
from dyneval.predictors import Collector

RULE = Sgd(0.3) + Decay(0.05)
DENSE = ["all-weights", "no-embedding", "norms-and-biases", "last-layers:1", "matching:*bias*"]
TARGETS = [*DENSE[:4], "low-rank:2"]
KINDS = ["llama, tied", "gpt2", "mamba"]


@pytest.fixture
def ids():
    """(1, 30)"""
    return torch.randint(7, (1, 30), generator=torch.Generator().manual_seed(8))


def session_of(model, tokenizer=None, rule=RULE, **given):
    """Return a session of short segments; of a model with absolute positions without a word."""
    if model.config.model_type == "gpt2":
        given = {"context_policy": "recompute"} | given
    return dyneval.adapt(model, tokenizer, **{"rule": rule, "segment_length": 6} | given)


def photograph(model):
    """Return all that can be seen of a model, its values to the last bit."""
    tensors = [
        (name, id(tensor), tensor.data_ptr(), tensor.dtype, tensor.requires_grad, tensor._is_view())
        for named in (model.named_parameters, model.named_buffers)
        for name, tensor in named(remove_duplicate=False)
    ]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    modules = [(name, part.training, sorted(vars(part))) for name, part in model.named_modules()]
    return tensors, values, modules


def assert_unchanged(model, before):
    after = photograph(model)
    assert after[0] == before[0]
    assert after[2] == before[2]
    for name, value in before[1].items():
        bits = torch.uint8
        assert torch.equal(after[1][name].reshape(-1).view(bits), value.reshape(-1).view(bits))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_afterwards_what_it_was(kind, target, dtype, ids):
    model = tiny(kind).to(dtype)
    before = photograph(model)
    logits = model(ids).logits
    with session_of(model, target=target) as session:
        session.read(ids)
        assert not torch.equal(model(ids).logits, logits)
        session.generate(8, learn=True)
        model.generate(ids[:, :4], max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert_unchanged(model, before)
    assert torch.equal(model(ids).logits, logits)


@pytest.mark.parametrize("target", ["all-weights", "low-rank:2"])
def test_it_is_what_it_was_after_an_error_as_well(target, ids):
    model = tiny("llama, tied").train()
    model.config.use_cache = False
    before = photograph(model)

    def use(tokens):
        with session_of(model, target=target) as session:
            session.read(ids)
            assert not torch.equal(model(ids).logits, logits)
            model(tokens)

    logits = model(ids).logits
    with pytest.raises(IndexError):
        use(ids + 100)
    assert_unchanged(model, before)
    with pytest.raises(ValueError, match="input_ids"):
        use(None)
    assert_unchanged(model, before)


def expected_of(model, session):
    """Return a model of its own with the weights that a session has learned."""
    own = copy.deepcopy(model)
    theirs = {f"model.{name}": weight for name, weight in own.named_parameters()}
    with torch.no_grad():
        for name, value in session.predictor.weights().items():
            if name in theirs:
                theirs[name].copy_(value)
            else:
                matrix = name.removeprefix("changes.").removesuffix(".u")
                v = session._own.get_buffer(f"changes.{matrix}.v")
                theirs[matrix].add_((value @ v.to(value)).to(v))
    return own


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["llama, tied", "gpt2", "mistral", "mamba2"])
def test_inside_the_models_calls_follow(kind, target, ids):
    """Forward, loss and generation are those of a model with these weights."""
    model = tiny(kind)
    trained = copy.deepcopy(model)
    with session_of(model, target=target) as session:
        for part in ids.split(10, 1):
            session.read(part)
            own = expected_of(trained, session)
            found, expected = model(ids, labels=ids), own(ids, labels=ids)
            torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=1e-5)
        asked = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
        assert torch.equal(model.generate(ids, **asked), own.generate(ids, **asked))


def test_in_16_bits_the_model_reads_with_what_the_session_reads_with(ids):
    model = tiny("llama").bfloat16()
    trained = copy.deepcopy(model)
    with session_of(model) as session:
        session.read(ids)
        assert {theta.dtype for theta in session.predictor.weights().values()} == {torch.float32}
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
        assert torch.equal(model(ids).logits, expected_of(trained, session)(ids).logits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", DENSE)
def test_tensors_are_swapped_not_copied(target, dtype, ids):
    """The parameters are the predictor's tensors, from the beginning to the end."""
    model = tiny("gpt2").to(dtype)
    objects = dict(model.named_parameters())
    own = {name: weight.data_ptr() for name, weight in objects.items()}
    session = session_of(model, target=target)
    names = {name.removeprefix("model.") for name in session.predictor.priors}
    assert len(names) < len(own) or target == "all-weights"
    for _ in range(2):
        with session:
            for _ in range(2):
                read_with = session.predictor.weights(as_read=True)
                for name, weight in model.named_parameters():
                    assert weight is objects[name]
                    same = read_with[f"model.{name}"].data_ptr() if name in names else own[name]
                    assert weight.data_ptr() == same
                session.read(ids)
        assert {name: weight.data_ptr() for name, weight in objects.items()} == own
    for name, prior in session.predictor.priors.items():
        assert prior.theta.data_ptr() == own[name.removeprefix("model.")]


def test_a_tied_weight_stays_tied(ids):
    model = tiny("llama, tied")
    with session_of(model) as session:
        session.read(ids)
        assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("target", TARGETS)
def test_the_models_own_calls_never_learn(target, ids):
    found = []
    for calls in (False, True):
        model = tiny("llama")
        with session_of(model, target=target) as session:
            session.read(ids)
            before = session.predictor.state_dict()
            if calls:
                model(ids, labels=ids).loss.backward()
                model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
            after = session.predictor.state_dict()
            assert all(torch.equal(value, after[name]) for name, value in before.items())
            found.append(session.read(ids).nats)
    assert torch.equal(*found)


# Reading


@pytest.mark.parametrize("target", ["all-weights", "low-rank:2"])
def test_reading_is_that_of_the_loop(target, ids):
    """Text after text, each in segments of its own, the state carried on."""
    model = tiny("llama")
    reader = Transformer(copy.deepcopy(model))
    predictor = Dynamic(targets.parse(target).of(reader), RULE)
    with session_of(model, target=target) as session:
        for start, end in ((0, 10), (10, 11), (11, 30)):
            stream = ids[:, max(0, start - 1) : end]
            expected = torch.cat(list(evaluate(predictor, stream, 6)), 1)[0]
            scores = session.read(ids[:, start:end])
            torch.testing.assert_close(scores.nats, expected)
            assert torch.equal(scores.tokens, stream[0, 1:])
            assert scores.perplexity == pytest.approx(expected.mean().exp().item())


def test_reading_without_learning_is_static(ids):
    model = tiny("llama")
    with session_of(model) as session:
        scores = session.read(ids, learn=False)
        expected = torch.cat(list(evaluate(Static(Transformer(model)), ids, 6)), 1)[0]
        torch.testing.assert_close(scores.nats, expected, rtol=1e-5, atol=1e-5)
        trained = [prior.theta for prior in session.predictor.priors.values()]
        weights = session.predictor.weights().values()
        assert all(map(torch.equal, weights, trained))
    assert session.read(ids[0, :0]).nats.shape == (0,)


@pytest.mark.parametrize("begin", [True, False])
def test_a_text_begins_with_what_the_tokenizer_begins_one_with(begin):
    tokenizer = byte_level(begin)
    model = tiny("llama", len(tokenizer))
    own = tokenizer(TEXT, add_special_tokens=False).input_ids
    session = session_of(model, tokenizer, Sgd(0.05))
    scores = session.read(TEXT[:40]), session.read(TEXT[40:])
    tokens = torch.cat([each.tokens for each in scores]).tolist()
    assert tokenizer.decode(own if begin else own[1:]) == tokenizer.decode(tokens)
    session.reset(weights=False)
    assert session.read(TEXT).perplexity < session_of(model, tokenizer).read(TEXT).perplexity
    session.reset()
    assert torch.equal(session.read(TEXT[:40]).nats, scores[0].nats)


def test_grad_modes_of_the_caller_do_not_matter(ids):
    expected = session_of(tiny("llama")).read(ids).nats
    for mode in (torch.no_grad, torch.inference_mode):
        model = tiny("llama")
        before = photograph(model)
        with mode(), session_of(model) as session:
            assert torch.equal(session.read(ids.clone()).nats, expected)
            session.generate(5, learn=True)
            model.generate(ids, max_new_tokens=3, pad_token_id=0)
        assert_unchanged(model, before)
        model(ids).logits.sum().backward()


def test_under_autocast_the_session_reads_as_ever_and_the_model_follows(ids):
    model = tiny("llama").float()
    expected = session_of(model).read(ids).nats
    with torch.autocast("cpu", torch.bfloat16), session_of(model) as session:
        before = model(ids).logits
        assert torch.equal(session.read(ids).nats, expected)
        inside = model(ids).logits  # not by what autocast keeps of the weights
    with session, torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(ids).logits, inside)
    assert not torch.equal(inside, before)
    with torch.autocast("cpu", torch.bfloat16), session_of(model, target="low-rank:2") as session:
        session.read(ids)
        with pytest.raises(ValueError, match="low-rank change cannot be added under autocast"):
            model(ids)


def test_without_a_rule_it_is_the_one_for_models_that_nobody_tuned(ids):
    session = dyneval.adapt(tiny("llama"))
    assert (session.rule, session.segment_length) == (Sgd(0.01), 64)


def test_statistics(ids, tmp_path):
    """Given, from a file, or of what was read."""
    model, rule = tiny("llama"), Rms(0.01, 0.01) + RmsDecay(0.01)
    collector = Collector(Transformer(model))
    for _ in evaluate(collector, ids, 6):
        pass
    stats = collector.stats()
    stats.save(tmp_path / "stats.safetensors")
    predictor = Dynamic(Transformer(model), rule, stats.priors(Transformer(model)))
    expected = torch.cat(list(evaluate(predictor, ids, 6)), 1)[0]
    for given, tolerance in ((stats, 1e-12), (tmp_path / "stats.safetensors", 1e-5)):
        scores = session_of(model, rule=rule, stats=given).read(ids)
        torch.testing.assert_close(scores.nats, expected, rtol=tolerance, atol=tolerance)
    with session_of(model, rule=rule, stats="running") as session:
        trained = model(ids).logits
        session.read(ids[:, :20].repeat(1, 5))
        assert torch.equal(model(ids).logits, trained)  # there is too little of a past
        session.read(ids.repeat(1, 5))
        assert not torch.equal(model(ids).logits, trained)


# Generation


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("count", [0, 6, 15])
def test_generating_goes_on_from_what_was_read(learn, count, ids):
    """And learns from it just if asked; it is part of the text afterwards."""
    rule = RULE if learn else Sgd(0.0)
    predictor = Dynamic(Transformer(tiny("llama")), rule)
    for _ in evaluate(predictor, ids[:, :13], 6):
        pass
    expected = list(
        dyneval.generate(
            predictor, ids[:, 12:13], count, 6, generator=torch.Generator().manual_seed(1)
        )
    )
    model = tiny("llama")
    with session_of(model, rule=rule) as session:
        session.read(ids[:, :13])
        weights = {name: value.clone() for name, value in session.predictor.weights().items()}
        found = session.generate(count, learn=learn, generator=torch.Generator().manual_seed(1))
        after = session.predictor.weights()
        changed = not all(torch.equal(value, after[name]) for name, value in weights.items())
        assert changed == (learn and count > 0)
        assert found.tolist() == [expected]
        scores = session.read(ids[:, :1])
        assert scores.tokens.tolist() == ids[0, :1].tolist()
        whole = torch.cat([ids[:, :13], found, ids[:, :1]], 1)
        nats = -torch.log_softmax(model(whole).logits[0, -2].detach(), 0)[ids[0, 0]]
        if not learn:
            assert scores.nats.item() == pytest.approx(nats.item(), rel=1e-5)


def test_generating_without_learning_leaves_what_was_learned(ids):
    with session_of(tiny("llama")) as session:
        session.read(ids)
        weights = {name: value.clone() for name, value in session.predictor.weights().items()}
        session.generate(20)
        after = session.predictor.weights()
        assert all(torch.equal(value, after[name]) for name, value in weights.items())


def test_generating_ends_where_a_text_ends(ids):
    model = tiny("llama")
    model.generation_config.eos_token_id = [3, 5]
    with session_of(model) as session:
        session.read(ids)
        written = session.generate(500, learn=True)[0].tolist()
        assert written[-1] in (3, 5)
        assert not {3, 5} & set(written[:-1])
        session.read(ids)
    model.generation_config.eos_token_id = None
    assert session.generate(50, temperature=0).shape == (1, 50)


def test_there_is_something_to_go_on_from():
    tokenizer = byte_level()
    session = session_of(tiny("llama", len(tokenizer)), tokenizer)
    assert session.generate(3).shape == (1, 3)
    with pytest.raises(ValueError, match="nothing to go on from; read a text first"):
        session_of(tiny("llama")).generate(3)


# Several, and mistakes


@pytest.mark.parametrize("target", ["norms-and-biases", "low-rank:2"])
def test_one_session_in_another_is_refused(target, ids):
    model = tiny("llama")
    before = photograph(model)
    inner = session_of(model, target=target)
    with session_of(model, target=target) as session:
        session.read(ids)
        logits = model(ids).logits
        for second in (session, inner):
            with pytest.raises(ValueError, match="LlamaForCausalLM adapts in a session already"):
                second.__enter__()
        with pytest.raises(ValueError, match="leave that one first, or reset it"):
            session_of(model)
        assert torch.equal(model(ids).logits, logits)
        with session_of(tiny("llama")):  # another model's
            pass
    assert_unchanged(model, before)
    with session:
        assert torch.equal(model(ids).logits, logits)
    with inner:
        assert not torch.equal(model(ids).logits, logits)
    assert_unchanged(model, before)


def test_a_forward_of_the_instance_comes_back(ids):
    """Others put one there, too, to move tensors between devices for instance."""
    model = tiny("llama")
    calls, own = [], model.forward

    def forward(*args, **kwargs):
        calls.append(args)
        return own(*args, **kwargs)

    model.forward = forward
    with session_of(model, target="low-rank:2") as session:
        session.read(ids)
        calls.clear()
        model(ids)
        assert len(calls) == 1
    assert model.forward is forward


def test_a_model_in_training_stays_so(ids):
    model = tiny("gpt2").train()
    with session_of(model) as session:
        session.read(ids)
        assert all(part.training for part in model.modules())
    expected = session_of(tiny("gpt2")).read(ids).nats
    torch.testing.assert_close(session_of(model).read(ids).nats, expected)


def test_divergence_is_said(ids):
    model = tiny("llama")
    before = photograph(model)
    with session_of(model, rule=Sgd(1e30)) as session:
        with pytest.raises(ValueError, match=r"the model diverged.*Sgd\(learning_rate=1e\+30\)"):
            session.read(ids)
        session.reset()
        session.read(ids[:, :5])
    assert_unchanged(model, before)


@pytest.mark.parametrize("method", ["read", "generate"])
def test_an_interrupt_keeps_what_was_learned(method, ids, monkeypatch):
    """And the next text is the first one."""

    def interrupt(targets):
        raise KeyboardInterrupt

    session = session_of(tiny("llama"))
    session.read(ids)
    learned = {name: value.clone() for name, value in session.predictor.weights().items()}
    with monkeypatch.context() as patched:
        patched.setattr(session.predictor, "learn", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.read(ids) if method == "read" else session.generate(9, learn=True)
    after = session.predictor.weights()
    assert all(torch.equal(value, after[name]) for name, value in learned.items())
    assert session.read(ids).tokens.tolist() == ids[0, 1:].tolist()


def test_mistakes(ids):
    model, tokenizer = tiny("llama"), byte_level()
    for given, message in (
        ({"model": "gpt2"}, "given a str; load one with AutoModelForCausalLM.from_pretrained"),
        ({"model": torch.nn.Linear(2, 2)}, "given a Linear"),
        ({"tokenizer": tokenizer}, "tokenizer has 300 tokens, but the model predicts 7"),
        ({"segment_length": 0}, "a segment of 0 tokens cannot be read"),
        ({"rule": Rms(0.1)}, 'no gradient statistics were given; give stats: a .*or "running"'),
        ({"target": "everything"}, "there is no target 'everything'"),
        ({"target": "hidden-matrix:4"}, "takes no `mix`"),
        ({"context": 65}, "a context of 65 is more than the 64 tokens"),
        ({"rule": Rms(0.1), "stats": "nowhere"}, "nowhere does not exist"),
    ):
        with pytest.raises(ValueError, match=message):
            dyneval.adapt(**{"model": model} | given)
    session = session_of(model)
    for text, message in (
        ("text", "a text needs a tokenizer"),
        (ids - 1, "tokens of this model are 0 to 6; got -1 to 5"),
        (ids.repeat(2, 1), r"tokens to read are \(1, T\), one text; got \(2, 30\)"),
    ):
        with pytest.raises(ValueError, match=message):
            session.read(text)
    with pytest.warns(UserWarning, match="GPT2LMHeadModel has absolute positions"):
        dyneval.adapt(tiny("gpt2"))


def test_a_model_can_be_kept_as_it_is_inside(ids, tmp_path):
    """By its own method, with the adapted weights."""
    model = tiny("llama, tied").float()
    with session_of(model) as session:
        session.read(ids)
        model.save_pretrained(tmp_path)
        expected = model(ids).logits
    found = type(model).from_pretrained(tmp_path)(ids).logits
    assert torch.equal(found, expected)
