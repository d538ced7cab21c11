"""Models of Hugging Face: read as they read themselves, whatever the state, and adapted as ours."""

import checks
import pytest
import torch
from checks import scores
from hugging_face import KINDS, tiny

from dyneval.evaluation import evaluate
from dyneval.models.huggingface import Loading, Transformer
from dyneval.predictors import Collector, Dynamic, Static
from dyneval.rules import Decay, Rms, RmsDecay, Sgd
from dyneval.targets import LastLayers, LowRank, Matching, NoEmbedding, NormsAndBiases

READ = [kind for kind in KINDS if kind != "bert"]
FULL = ["llama", "llama, tied", "cohere", "granite"]  # rotary, and attend to all they hold
ABSOLUTE = ["gpt2", "opt"]


def read(model, tokens, cuts=()):
    """Return the logits of tokens that are read in parts."""
    state, parts = None, []
    for start, end in zip((0, *cuts), (*cuts, tokens.shape[1]), strict=True):
        h, state = model.hidden(tokens[:, start:end], state)
        parts.append(model.logits(h))
    return torch.cat(parts, 1)


def close(found, expected, tolerance=1e-5):
    """Assert that two are equal, as far as models compute in float32 what they do there."""
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


@pytest.fixture
def tokens():
    """(2, 40)"""
    return torch.randint(7, (2, 40), generator=torch.Generator().manual_seed(6))


@torch.no_grad()
@pytest.mark.parametrize("kind", READ)
def test_it_reads_as_the_model_itself(kind, tokens):
    """Scales, soft caps and heads included; at once, in parts and one by one."""
    model = tiny(kind)
    own = model(tokens).logits
    reader = Transformer(model)
    for cuts in ((), (1, 5, 6, 30), tuple(range(1, 40))):
        close(read(reader, tokens, cuts), own)


@pytest.mark.parametrize("kind", READ)
def test_gradients_of_parts_are_those_of_the_whole(kind, tokens):
    reader = Transformer(tiny(kind))
    weights = list(reader.parameters())
    found = []
    for cuts in ((), (4, 5, 9), tuple(range(1, 12))):
        loss = torch.log_softmax(read(reader, tokens[:, :12], cuts), -1)[..., 3].mean()
        found.append(torch.autograd.grad(loss, weights, allow_unused=True))
    for gradients in found[1:]:
        for gradient, expected in zip(gradients, found[0], strict=True):
            if expected is not None:
                close(gradient, expected)


# The end of the context


def seen(count, context):
    """(T, T): which tokens each one sees that reads on when the oldest are dropped."""
    visible, held = torch.zeros(count, count, dtype=torch.bool), 0
    for token in range(count):
        if held == context:
            held -= max(1, context // 8)
        visible[token, token - held : token + 1] = True
        held += 1
    return visible


@torch.no_grad()
@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("context", [6, 17])
def test_carry_is_one_pass_with_the_mask_of_what_was_dropped(kind, context, tokens):
    model = tiny(kind)
    mask = seen(40, context)[None, None].expand(2, 1, 40, 40)
    own = model(tokens, attention_mask=mask).logits
    reader = Transformer(model, Loading(context, "carry"))
    for cuts in ((), (5, 6, 20), tuple(range(1, 40))):
        close(read(reader, tokens, cuts), own)


@torch.no_grad()
def test_layers_with_a_window_keep_it_where_others_have_a_context(tokens):
    """Gemma 2 has both; the mask of the last test is that of the full layers alone."""
    model = tiny("gemma2")
    places = torch.arange(40)
    visible = {
        "full_attention": seen(40, 9),
        "sliding_attention": seen(40, 40) & (places[:, None] - places < 6),
    }
    masks = {  # what is added before the softmax
        name: torch.zeros(2, 1, 40, 40).double().masked_fill(~mask, -1e30)
        for name, mask in visible.items()
    }
    own = model(tokens, attention_mask=masks).logits
    reader = Transformer(model, Loading(9))
    for cuts in ((), (5, 6, 20)):
        close(read(reader, tokens, cuts), own)


def windows(model, tokens, context):
    """Return the logits of tokens, each window of the context read from scratch."""
    parts, start, done = [], 0, 0
    while done < tokens.shape[1]:
        logits = model(tokens[:, start : start + context]).logits
        parts.append(logits[:, done - start :])
        done = start + logits.shape[1]
        start = done - context // 2
    return torch.cat(parts, 1)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", *ABSOLUTE])
@pytest.mark.parametrize("context", [5, 16])
def test_recompute_is_each_window_from_scratch(kind, context, tokens):
    model = tiny(kind)
    own = windows(model, tokens, context)
    reader = Transformer(model, Loading(context, "recompute"))
    for cuts in ((), (5, 6, 20), tuple(range(1, 40))):
        close(read(reader, tokens, cuts), own)


@torch.no_grad()
def test_recompute_has_the_weights_of_its_time_and_carry_those_before(tokens):
    found = {}
    for policy in ("carry", "recompute"):
        model = tiny("llama")
        reader = Transformer(model, Loading(8, policy))
        _, state = reader.hidden(tokens[:, :8])
        for weight in model.parameters():
            weight.mul_(1.1)
        h, _ = reader.hidden(tokens[:, 8:12], state)
        found[policy] = reader.logits(h)
        own = model(tokens[:, 4:12]).logits[:, 4:]
    close(found["recompute"], own)
    assert (found["carry"] - own).abs().max() > 0.01


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_rows_may_stand_at_different_places(kind, tokens):
    """One has dropped more than the other, and is read with it all the same."""
    reader = Transformer(tiny(kind), Loading(8, None if kind == "llama" else "recompute"))
    stream = torch.cat([tokens, torch.full((1, 40), -1)])
    stream[2, :17] = tokens[0, 3:20]
    for cut in (7, 16):
        together, alone = Static(reader), Static(reader)
        together.predict(torch.cat([tokens[:, :cut], tokens[:1, :cut]]))
        together.learn(torch.cat([tokens[:, 1 : cut + 1], tokens[:1, 1 : cut + 1]]))
        together.reset(torch.tensor([2]))
        found = scores(together, stream, 3)
        alone.predict(tokens[:, :cut])
        alone.learn(tokens[:, 1 : cut + 1])
        close(found[:2], scores(alone, tokens, 3))
        close(found[2, :16], scores(Static(reader), tokens[:1, 3:20], 3)[0])


def test_models_say_what_their_context_is():
    assert (Transformer(tiny("llama")).context, Transformer(tiny("llama")).policy) == (64, "carry")
    assert Transformer(tiny("llama", max_position_embeddings=5000)).context == 1024
    for kind in ABSOLUTE:
        model = Transformer(tiny(kind), Loading(32))
        assert (model.context, model.policy) == (32, "recompute")
        assert "has absolute positions: whenever its context of 32 tokens is full" in model.note
        assert not Transformer(tiny(kind), Loading(32, "recompute")).note
    for kind in ("mistral", "mamba2"):
        assert Transformer(tiny(kind)).context is None
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert Transformer(tiny("llama", rope_parameters=scaled)).policy == "recompute"


@pytest.mark.parametrize(
    ("kind", "loading", "message"),
    [
        ("llama", (65,), "a context of 65 is more than the 64 tokens"),
        ("gpt2", (32, "carry"), "GPT2LMHeadModel has absolute positions.*--context-policy reco"),
        ("mistral", (32,), "MistralForCausalLM has no end of its context"),
        ("mamba2", (None, "carry"), "Mamba2ForCausalLM has no end of its context"),
        ("llama", (1,), "a context of 1 tokens cannot be read; give 2 or more"),
        ("llama", (None, "drop"), "policy 'drop' is not known; give one of carry, recompute"),
        ("llama", (None, None, "int8"), "dtype 'int8' is not known; give one of float32, bfloat"),
        ("bert", (), "BertLMHeadModel reads a text in parts in another way.* looks ahead"),
    ],
)
def test_what_cannot_be_read(kind, loading, message):
    with pytest.raises(ValueError, match=message):
        Transformer(tiny(kind), Loading(*loading))


# Predictors


def small(kind, context=4):
    """Return a model of three symbols, whose context ends before a text of six does."""
    if kind in ("mistral", "mamba", "mamba2"):
        return Transformer(tiny(kind, 3, **{"sliding_window": 3} if kind == "mistral" else {}))
    return Transformer(tiny(kind, 3), Loading(context, None if kind == "llama" else "recompute"))


def makers(model, rule=None):
    """Return what makes a predictor that reads, and one that learns with each engine."""
    rule = rule or Sgd(0.3) + Decay(0.05)
    return [
        lambda: Static(model),
        lambda: Dynamic(model, rule),
        lambda: Dynamic(model, rule, engine="reference"),
        lambda: Dynamic(LowRank(2).of(model), rule),
        lambda: Dynamic(NormsAndBiases().of(model), rule),
    ]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "mamba", "mamba2"])
def test_scores_are_a_probability(kind):
    for make in makers(small(kind)):
        checks.check_scores_are_a_probability(make)


def test_a_model_in_double_precision_keeps_to_the_protocol():
    """GPT-2 computes nothing in float32, so it can be asked for all digits."""
    for make in makers(small("gpt2")):
        checks.check_predictor(make)


@pytest.mark.parametrize("kind", ["llama", "mistral", "mamba2"])
def test_others_keep_to_it_as_far_as_float32_goes(kind, monkeypatch):
    monkeypatch.setattr(checks, "same", lambda found, expected: close_or_none(found, expected))
    for make in makers(small(kind)):
        checks.check_predictor(make)


def close_or_none(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("kind", ["llama, tied", "gpt2", "mistral", "mamba"])
def test_the_fused_engine_agrees_with_the_reference(kind, tokens):
    """Products of a parameter with its inputs are captured, GPT-2's transposed ones as well."""
    model = Transformer(tiny(kind), Loading(policy="recompute") if kind == "gpt2" else None)
    stats = collected(model, tokens)
    rule = Rms(0.01, 0.01) + RmsDecay(0.01)
    fused, reference = (
        Dynamic(model, rule, stats.priors(model), engine) for engine in ("generic", "reference")
    )
    close(scores(fused, tokens[:1], 6), scores(reference, tokens[:1], 6))
    for name, theta in reference.weights().items():
        close(fused.weights()[name], theta)


def collected(model, tokens):
    collector = Collector(model)
    for _ in evaluate(collector, tokens, 6):
        pass
    return collector.stats()


def test_the_models_own_weights_never_change(tokens):
    model = tiny("llama")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    dynamic = Dynamic(Transformer(model), Sgd(0.5))
    scores(dynamic, tokens[:1], 6)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert model.training is False


# Targets and precision


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (NormsAndBiases(), 5),
        (LastLayers(1), 9),
        (LastLayers(2), 18),
        (NoEmbedding(), 19),
        (Matching("*self_attn*"), 8),
    ],
    ids=str,
)
def test_targets(target, expected, tokens):
    """Of 20 weights, a tied embedding among them."""
    model = Transformer(tiny("llama, tied"))
    assert len(list(model.parameters())) == 20
    own = target.of(model)
    names = [name for name, _ in own.named_parameters()]
    assert len(names) == expected
    assert not any("embed" in name or "lm_head" in name for name in names)
    dynamic = Dynamic(own, Sgd(0.3))
    moved = scores(dynamic, tokens[:1], 6)
    assert not torch.equal(moved, scores(Static(model), tokens[:1], 6))


def test_too_many_last_layers():
    with pytest.raises(ValueError, match="last-layers:3 are more than the 2 layers"):
        LastLayers(3).of(Transformer(tiny("llama")))


def test_low_rank_streams_share_one_base(tokens):
    own = LowRank(2, "*proj*").of(Transformer(tiny("llama")))
    dynamic = Dynamic(own, Sgd(0.3))
    assert dynamic.engine.startswith("batched")
    together = scores(dynamic, tokens, 6)
    for row, text in zip(together, tokens, strict=True):
        close(row, scores(Dynamic(own, Sgd(0.3)), text[None], 6)[0])


@pytest.mark.parametrize("target", [None, LowRank(2)], ids=str)
def test_updates_do_not_vanish_in_16_bits(target, tokens):
    """Steps of 1e-5 of a weight add up to what they do in float32; in 16 bits they are nothing."""
    moved = []
    for dtype in (torch.bfloat16, torch.float32):
        model = Transformer(tiny("llama").bfloat16().to(dtype))
        own = target.of(model) if target else model
        dynamic = Dynamic(own, Sgd(3e-5))
        nats = scores(dynamic, tokens[:1].repeat(1, 5), 6)
        assert nats.dtype == torch.float32
        moved.append(
            {
                name: theta.float() - dynamic.priors[name].theta.float()
                for name, theta in dynamic.weights().items()
            }
        )
    name = "model.model.layers.1.mlp.down_proj.weight"
    if target:
        assert all(change.any() for name, change in moved[0].items() if name.endswith(".u"))
        return
    trained = dynamic.priors[name].theta
    assert torch.equal((trained + moved[1][name] / 34).bfloat16().float(), trained)
    change = torch.linalg.vector_norm(moved[0][name] - moved[1][name])
    assert change < 0.1 * torch.linalg.vector_norm(moved[1][name])


def test_a_state_of_16_bits_is_resumed_with_all_digits(tokens):
    """What adapts is kept in float32, though it is read with in fewer."""
    model = Transformer(tiny("llama").bfloat16())
    first, second = Dynamic(model, Sgd(0.01)), Dynamic(model, Sgd(0.01))
    scores(first, tokens[:1, :13], 6)
    second.load_state_dict(first.state_dict())
    assert torch.equal(*(scores(each, tokens[:1, 12:], 6) for each in (first, second)))
    first.reset()
    assert torch.equal(
        *(scores(each, tokens[:1], 6) for each in (first, Dynamic(model, Sgd(0.01))))
    )


def test_statistics_of_16_bits_are_gathered_in_float32(tokens):
    model = Transformer(tiny("llama").bfloat16())
    stats = collected(model, tokens)
    assert {rms.dtype for rms in stats.rms.values()} == {torch.float32}
    dynamic = Dynamic(model, Rms(1e-4) + RmsDecay(1e-3), stats.priors(model))
    assert torch.isfinite(scores(dynamic, tokens[:1], 6)).all()
