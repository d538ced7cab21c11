"""What a session has learned, written and read: that alone, and for its model only."""

import json

import pytest
import torch
from hugging_face import tiny

import dyneval
from dyneval import Decay, Rms, RmsDecay, Sgd
from dyneval.deltas import CONFIG, TENSORS
from dyneval.storage import read_tensors

TARGETS = ["all-weights", "no-embedding", "norms-and-biases", "last-layers:1", "low-rank:2"]
RULE = Sgd(0.3) + Decay(0.05)


@pytest.fixture
def ids():
    """(1, 30)"""
    return torch.randint(7, (1, 30), generator=torch.Generator().manual_seed(8))


def session_of(model, rule=RULE, **given):
    return dyneval.adapt(model, rule=rule, segment_length=6, **given)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_another_session_goes_on_with_it(target, dtype, ids, tmp_path):
    """With the same weights, in the middle of its text; saved within or afterwards."""
    model = tiny("llama, tied").to(dtype)
    trained = model(ids).logits
    with session_of(model, target=target) as session:
        session.read(ids)
        logits = model(ids).logits
        session.save(tmp_path / "inside")
        assert torch.equal(model(ids).logits, logits)
    session.save(tmp_path / "outside")
    for name in (CONFIG, TENSORS):
        inside, outside = (tmp_path / where / name for where in ("inside", "outside"))
        assert inside.read_bytes() == outside.read_bytes()

    same = tiny("llama, tied").to(dtype)
    with session_of(same, target=target) as second:
        second.load(tmp_path / "inside")  # before anything was read
        torch.testing.assert_close(same(ids).logits, logits)
        second.reset()
        assert torch.equal(same(ids).logits, trained)
        second.read(ids)
        second.read(ids)
        second.load(tmp_path / "inside")
        torch.testing.assert_close(same(ids).logits, logits)
        second.read(ids)
        assert not torch.equal(same(ids).logits, logits)
    assert torch.equal(same(ids).logits, trained)


def test_the_text_goes_on_where_it_was(ids, tmp_path):
    session = session_of(tiny("llama"))
    session.read(ids[:, :10])
    session.save(tmp_path)
    expected = session.read(ids[:, 10:]).nats
    session.load(tmp_path)
    second = session_of(tiny("llama"))
    second.read(ids[:, :10])
    second.load(tmp_path)
    torch.testing.assert_close(second.read(ids[:, 10:]).nats, expected)


def test_added_to_the_model_it_makes_what_was_learned(ids, tmp_path):
    """By the model's own names; nothing of this package is needed for it."""
    for target in ("last-layers:1", "low-rank:2"):
        model = tiny("llama")
        with session_of(model, target=target) as session:
            session.read(ids)
            expected = model(ids).logits
            session.save(tmp_path)
        delta, _ = read_tensors(tmp_path / TENSORS)
        weights = model.state_dict()
        if target == "low-rank:2":
            names = {name.removesuffix(".u").removesuffix(".v") for name in delta}
            delta = {name: delta[f"{name}.u"] @ delta[f"{name}.v"] for name in names}
        for name, change in delta.items():
            weights[name] += change
        torch.testing.assert_close(model(ids).logits, expected)


def test_the_folder_says_what_it_is_and_holds_no_more(ids, tmp_path):
    session = session_of(tiny("llama"), target="norms-and-biases")
    session.read(ids)
    session.save(tmp_path, dtype=torch.bfloat16)
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIG, TENSORS]
    about = json.loads((tmp_path / CONFIG).read_text())
    assert len(about.pop("model")) == 64
    assert about == {
        "architecture": "LlamaForCausalLM",
        "target": "norms-and-biases",
        "rule": [{"term": "Sgd", "learning_rate": 0.3}, {"term": "Decay", "rate": 0.05}],
        "segment_length": 6,
        "tokens": 29,
    }
    delta, _ = read_tensors(tmp_path / TENSORS)
    assert {change.dtype for change in delta.values()} == {torch.bfloat16}
    assert sorted(delta) == [
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.norm.weight",
    ]


def test_statistics_of_the_past_stay(ids, tmp_path):
    model, rule = tiny("llama"), Rms(0.01, 0.01) + RmsDecay(0.01)
    session = session_of(model, rule, stats="running")
    session.read(ids.repeat(1, 10))
    session.save(tmp_path)
    expected = {name: value.clone() for name, value in session.predictor.weights().items()}
    session.read(ids)
    session.load(tmp_path)
    for name, value in session.predictor.weights().items():
        torch.testing.assert_close(value, expected[name])
    session.read(ids)
    fresh = session_of(model, rule, stats="running")
    fresh.load(tmp_path)
    assert fresh.read(ids).nats.isfinite().all()


def test_what_does_not_belong_together(ids, tmp_path):
    folder, other = tmp_path / "one", tmp_path / "other"
    model = tiny("llama")
    session = session_of(model)
    session.read(ids)
    session.save(folder)

    def refused(message, session=session, folder=folder):
        before = {name: value.clone() for name, value in session.predictor.weights().items()}
        with pytest.raises(ValueError, match=message):
            session.load(folder)
        after = session.predictor.weights()
        assert all(torch.equal(value, after[name]) for name, value in before.items())

    refused("delta.json does not exist", folder=tmp_path / "nowhere")
    low_rank = session_of(model, target="low-rank:2")
    refused("target all-weights, not with low-rank:2; adapt the model with target='all", low_rank)
    changed = tiny("llama")
    with torch.no_grad():
        changed.lm_head.weight[0, 0] += 1
    refused("of a LlamaForCausalLM with weights .*, and this is a LlamaForC", session_of(changed))
    refused(
        "this is a MistralForCausalLM with .*; give the model that", session_of(tiny("mistral"))
    )

    low_rank.save(other)
    whole = (folder / TENSORS).read_bytes()
    (folder / TENSORS).write_bytes((other / TENSORS).read_bytes())
    refused("delta.json and delta.safetensors in .* are of two deltas; save it again")
    (folder / TENSORS).write_bytes(whole[:-100])
    refused("delta.safetensors is no whole safetensors file")
    (folder / CONFIG).write_text('{"model": 1}')
    (folder / TENSORS).write_bytes(whole)
    refused("delta.json describes no delta; save it again")


def test_a_model_that_diverged_is_not_saved(ids, tmp_path):
    session = session_of(tiny("llama"), Sgd(1e30))
    with pytest.raises(ValueError, match="diverged"):
        session.read(ids)
    with pytest.raises(ValueError, match="weight is not finite in torch.float64"):
        session.save(tmp_path)
    assert not list(tmp_path.iterdir())
