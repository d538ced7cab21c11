import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from dyneval import corpora, models, storage
from dyneval.evaluation import evaluate
from dyneval.models import Checkpoint
from dyneval.models.awd_lstm import AWDLSTM
from dyneval.models.charrnn import import_charrnn
from dyneval.models.lstm import LSTM
from dyneval.models.mlstm import MLSTM
from dyneval.predictors import Static
from dyneval.vocabularies import Vocabulary

SYMBOLS = 11
DROPOUTS = ("row_dropout", "input_dropout", "layer_dropout", "output_dropout", "recurrent_dropout")
BUILD = {
    "lstm": lambda: LSTM(SYMBOLS, embedding_size=5, units=7, layers=2, dropout=0.5),
    "lstm-tied": lambda: LSTM(SYMBOLS, embedding_size=6, units=6, layers=3, tied=True),
    "awd-lstm": lambda: AWDLSTM(SYMBOLS, embedding_size=5, units=7, layers=3),
    "awd-lstm-untied": lambda: AWDLSTM(SYMBOLS, embedding_size=5, units=7, layers=2, tied=False),
    "mlstm": lambda: MLSTM(SYMBOLS, embedding_size=5, units=7, hidden_dropout=0.5),
    "mlstm-tied": lambda: MLSTM(SYMBOLS, embedding_size=6, units=6, tied=True),
    "mlstm-two": lambda: MLSTM(SYMBOLS, embedding_size=5, units=7, layers=2, embedding_dropout=0.5),
}


@pytest.fixture(params=BUILD)
def model(request):
    torch.manual_seed(0)
    return BUILD[request.param]().double().eval()


@pytest.fixture
def tokens():
    torch.manual_seed(1)
    return torch.randint(SYMBOLS, (3, 9))


def oracle_step(layer, x, h, c):
    """One step of an LSTM or mLSTM from its equations, gate by gate."""
    if hasattr(layer, "weight_mx"):
        previous = (layer.weight_mx @ x.T).T * (layer.weight_mh @ h.T).T
        bias = layer.bias
    else:
        previous, bias = h, layer.bias_ih + layer.bias_hh
    units = layer.units
    gates = []
    for k in range(4):
        rows = slice(k * units, (k + 1) * units)
        gates.append(x @ layer.weight_ih[rows].T + previous @ layer.weight_hh[rows].T + bias[rows])
    i, f, g, o = gates
    c = 1 / (1 + torch.exp(-f)) * c + 1 / (1 + torch.exp(-i)) * torch.tanh(g)
    return 1 / (1 + torch.exp(-o)) * torch.tanh(c), c


def oracle_hidden(model, tokens, mix=lambda layer, h: h):
    states = [(torch.zeros(len(tokens), layer.units).double(),) * 2 for layer in model.layers]
    outputs = []
    for column in tokens.T:
        x = model.embedding.weight[column]
        for k, layer in enumerate(model.layers):
            h, c = oracle_step(layer, x, *states[k])
            x = mix(k, h)
            states[k] = (x, c)
        outputs.append(x)
    return torch.stack(outputs, 1), states


def flat(state):
    return torch.cat([part.flatten() for layer in state for part in layer])


def test_hidden_and_logits_agree_with_the_equations(model, tokens):
    hidden, state = model.hidden(tokens)
    expected, states = oracle_hidden(model, tokens)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(flat(state), flat(states), rtol=0, atol=1e-13)
    logits = expected @ model.output.weight.T + model.output.bias
    torch.testing.assert_close(model.logits(hidden), logits, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["lstm", "lstm-tied", "awd-lstm", "awd-lstm-untied"])
def test_lstm_layers_equal_those_of_torch(name, tokens):
    torch.manual_seed(0)
    model = BUILD[name]().double().eval()
    x, state = model.embedding(tokens), []
    for layer in model.layers:
        theirs = nn.LSTM(layer.weight_ih.shape[1], layer.units, batch_first=True).double()
        theirs.load_state_dict({f"{k}_l0": weight for k, weight in layer.state_dict().items()})
        x, (h, c) = theirs(x)
        state.append((h[0], c[0]))
    hidden, ours = model.hidden(tokens)
    torch.testing.assert_close(hidden, x, rtol=0, atol=1e-13)
    torch.testing.assert_close(flat(ours), flat(state), rtol=0, atol=1e-13)


def test_gradients_equal_those_of_torch(tokens):
    torch.manual_seed(0)
    model = BUILD["lstm"]().double().eval()
    theirs = nn.LSTM(5, 7, 2, batch_first=True).double()
    theirs.load_state_dict(
        {f"{k}_l{n}": w for n in range(2) for k, w in model.layers[n].state_dict().items()}
    )
    weight = torch.randn(3, 9, 7).double()
    (model.hidden(tokens)[0] * weight).sum().backward()
    (theirs(model.embedding(tokens).detach())[0] * weight).sum().backward()
    for n in range(2):
        for name, parameter in model.layers[n].named_parameters():
            expected = theirs.get_parameter(f"{name}_l{n}").grad
            torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-12)


def test_one_token_at_a_time_equals_a_segment_at_a_time(model, tokens):
    whole, after = model.hidden(tokens)
    for length in (1, 4):
        state, parts = None, []
        for start in range(0, 9, length):
            hidden, state = model.hidden(tokens[:, start : start + length], state)
            parts.append(hidden)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-13)
        torch.testing.assert_close(flat(state), flat(after), rtol=0, atol=1e-13)


def test_rows_are_read_as_if_alone(model, tokens):
    whole, _ = model.hidden(tokens)
    for row in range(3):
        alone, _ = model.hidden(tokens[row : row + 1])
        torch.testing.assert_close(alone, whole[row : row + 1], rtol=0, atol=1e-13)


def test_float32_follows_float64(model, tokens):
    wide, _ = model.hidden(tokens)
    narrow, state = model.float().hidden(tokens)
    assert narrow.dtype == state[0][1].dtype == torch.float32
    torch.testing.assert_close(narrow.double(), wide, rtol=0, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same(model, tokens):
    here, _ = model.hidden(tokens)
    there, _ = model.cuda().hidden(tokens.cuda())
    torch.testing.assert_close(there.cpu(), here, rtol=0, atol=1e-12)


def test_mix_recurs_feeds_forward_and_stays_in_the_state(model, tokens):
    torch.manual_seed(2)
    matrices = [torch.randn(layer.units, layer.units).double() / 3 for layer in model.layers]
    calls = []

    def mix(layer, h):
        calls.append((layer, tuple(h.shape)))
        return h + h @ matrices[layer].T

    hidden, state = model.hidden(tokens, mix=mix)
    assert sorted(calls) == sorted(
        (k, (3, layer.units)) for k, layer in enumerate(model.layers) for _ in range(9)
    )
    expected, states = oracle_hidden(model, tokens, lambda k, h: h + h @ matrices[k].T)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(flat(state), flat(states), rtol=0, atol=1e-13)
    assert (hidden - model.hidden(tokens)[0]).abs().max() > 1e-3


def test_a_mix_that_does_nothing_changes_nothing(model, tokens):
    plain, state = model.hidden(tokens)
    mixed, same = model.hidden(tokens, mix=lambda layer, h: h)
    assert torch.equal(plain, mixed)
    assert torch.equal(flat(state), flat(same))


def test_no_dropout_outside_training(model, tokens):
    first, _ = model.hidden(tokens)
    assert torch.equal(first, model.hidden(tokens)[0])
    # the same weights in a model that has no dropout at all
    settings = {k: 0.0 if k.endswith("dropout") else v for k, v in model.settings.items()}
    plain = type(model)(**settings).double()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain.train().hidden(tokens)[0], first, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["lstm", "awd-lstm", "mlstm", "mlstm-two"])
def test_dropout_in_training(name, tokens):
    model = BUILD[name]().train()
    assert not torch.equal(model.hidden(tokens)[0], model.hidden(tokens)[0])


def awd(**dropouts):
    torch.manual_seed(0)
    every = dict.fromkeys(DROPOUTS, 0.0) | dropouts
    return AWDLSTM(SYMBOLS, embedding_size=5, units=7, layers=3, **every).double().train()


def test_awd_lstm_has_the_published_shape():
    with torch.device("meta"):
        model = AWDLSTM(10_000)
    assert [layer.units for layer in model.layers] == [1150, 1150, 400]
    assert [layer.weight_ih.shape[1] for layer in model.layers] == [400, 1150, 1150]
    assert model.output.weight is model.embedding.weight
    # 24M in the paper's table
    assert sum(weight.numel() for weight in model.parameters()) == 24_221_600


def test_awd_lstm_has_one_weight_of_each_kind(tokens):
    model = awd(recurrent_dropout=0.5)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    hidden, _ = model.hidden(tokens)
    hidden.sum().backward()
    gates = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    names = [f"layers.{k}.{gate}" for k in range(3) for gate in gates]
    assert list(before) == ["embedding.weight", *names, "output.bias"]
    assert list(model.state_dict()) == ["embedding.weight", *names, "output.weight", "output.bias"]
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
        assert (weight.grad is None) == (name == "output.bias")


def test_drop_connect_is_one_mask_a_call_on_the_recurrent_weights(tokens):
    model = awd(recurrent_dropout=0.5)
    used = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, args: used.append(args[3].detach()))
    hidden, _ = model.hidden(tokens)
    plain = awd().eval()
    for layer, weight in zip(plain.layers, used, strict=True):
        ratio = weight / layer.weight_hh
        assert ((ratio == 0) | (ratio == 2)).all()
        assert 0.3 < (ratio == 0).double().mean() < 0.7
        layer.weight_hh.data = weight
    torch.testing.assert_close(hidden, plain.hidden(tokens)[0], rtol=0, atol=1e-13)


def test_output_dropout_keeps_a_mask_over_time(tokens):
    model = awd(output_dropout=0.5)
    raw, _ = model.raw_hidden(tokens)
    ratio = model.dropped(raw) / raw  # (B, T, H)
    assert ((ratio - 2).abs().lt(1e-12) | (ratio == 0)).all()
    assert (ratio - ratio[:, :1]).abs().max() < 1e-12
    assert (ratio[0, 0] - ratio[1, 0]).abs().max() > 1
    assert torch.equal(raw, model.eval().hidden(tokens)[0])


def test_row_dropout_takes_a_symbol_wherever_it_stands(tokens):
    model = awd(row_dropout=0.5)
    seen = []
    model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.hidden(tokens)
    ratio = seen[0] / model.embedding.weight[tokens]  # (B, T, E)
    scales = {
        symbol: {round(value, 9) for value in ratio[tokens == symbol].flatten().tolist()}
        for symbol in tokens.unique().tolist()
    }
    assert all(len(scale) == 1 for scale in scales.values())
    assert set().union(*scales.values()) == {0.0, 2.0}


def test_input_and_layer_dropout_keep_a_mask_over_time(tokens):
    for number, name in ((0, "input_dropout"), (1, "layer_dropout"), (2, "layer_dropout")):
        model = awd(**{name: 0.5})
        seen, before = [], []
        model.layers[number].register_forward_pre_hook(lambda _, args, to=seen: to.append(args[0]))
        if number:
            model.layers[number - 1].register_forward_hook(
                lambda _, args, out, to=before: to.append(out[0])
            )
        model.hidden(tokens)
        ratio = seen[0] / (before[0] if number else model.embedding.weight[tokens])
        assert {round(value, 9) for value in ratio.flatten().tolist()} == {0.0, 2.0}
        assert (ratio - ratio[:, :1]).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("build", "setting"),
    [
        (LSTM, {"units": 0}),
        (LSTM, {"layers": 0}),
        (LSTM, {"dropout": 1.0}),
        (AWDLSTM, {"embedding_size": -1}),
        (AWDLSTM, {"recurrent_dropout": 1.5}),
        (MLSTM, {"hidden_dropout": -0.1}),
        (MLSTM, {"units": 0}),
    ],
)
def test_impossible_settings_are_refused(build, setting):
    with pytest.raises(ValueError, match=f"{next(iter(setting))} .*: give"):
        build(SYMBOLS, **setting)


@pytest.mark.parametrize("build", [LSTM, MLSTM])
def test_a_tied_softmax_needs_an_embedding_of_its_width(build):
    with pytest.raises(ValueError, match="as wide as .* got 5 and 7"):
        build(SYMBOLS, embedding_size=5, units=7, tied=True)


# Checkpoints

VOCABULARY = Vocabulary("characters", tuple("abcdefghij\n"))


@pytest.fixture
def folder(model, tmp_path):
    models.save(tmp_path / "model", Checkpoint(model.float(), VOCABULARY, {"made": "here"}))
    return tmp_path / "model"


@pytest.fixture
def kept(tmp_path):
    torch.manual_seed(0)
    model = LSTM(SYMBOLS, embedding_size=3, units=3, layers=1)
    models.save(tmp_path / "kept", Checkpoint(model, VOCABULARY))
    return tmp_path / "kept"


def test_checkpoints_round_trip(model, folder, tokens):
    loaded = models.load(folder)
    assert loaded.vocabulary == VOCABULARY
    assert loaded.about == {"made": "here"}
    assert not loaded.model.training
    assert loaded.model.settings == model.settings
    assert models.fingerprint(loaded.model) == models.fingerprint(model)
    assert torch.equal(loaded.model.hidden(tokens)[0], model.hidden(tokens)[0])
    tied = model.output.weight is model.embedding.weight
    assert (loaded.model.output.weight is loaded.model.embedding.weight) == tied
    weights, _ = storage.read_tensors(folder / "model.safetensors")
    assert ("output.weight" in weights) != tied


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_checkpoints_round_trip_in_fewer_bits(model, tmp_path, tokens, dtype):
    model = model.float()
    models.save(tmp_path, Checkpoint(model, VOCABULARY), dtype=dtype)
    weights, _ = storage.read_tensors(tmp_path / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {dtype}
    loaded = models.load(tmp_path).model
    for name, weight in model.named_parameters():
        assert loaded.get_parameter(name).dtype == torch.float32
        assert torch.equal(loaded.get_parameter(name), weight.to(dtype).float())
    # a second time nothing is lost
    models.save(tmp_path / "again", Checkpoint(loaded, VOCABULARY), dtype=dtype)
    assert models.fingerprint(models.load(tmp_path / "again").model) == models.fingerprint(loaded)


def test_fingerprint_follows_the_weights(kept):
    model = models.load(kept).model
    before = models.fingerprint(model)
    with torch.no_grad():
        model.layers[0].bias_hh[3] += 1e-6
    assert models.fingerprint(model) != before


def test_only_known_models_are_kept(tmp_path):
    with pytest.raises(ValueError, match="a Linear cannot be kept in a folder"):
        models.save(tmp_path, Checkpoint(nn.Linear(2, 2), VOCABULARY))


def refused(folder, file=""):
    """The message of the error that loading a folder gives, one line that names the file."""
    with pytest.raises(ValueError, match=re.escape(str(folder / file))) as caught:
        models.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "vocab.json"])
def test_a_missing_file(kept, file):
    (kept / file).unlink()
    needed = "has no config.json" if file == "config.json" else "does not exist"
    assert needed in refused(kept, "" if file == "config.json" else file)


def test_no_checkpoint_at_all(tmp_path):
    assert "is not a folder" in refused(tmp_path / "nothing")
    (tmp_path / "file").write_text("text")
    assert "is not a folder" in refused(tmp_path / "file")
    assert "has no config.json" in refused(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "vocab.json"])
@pytest.mark.parametrize("part", [0, 0.01, 0.1, 0.5, 0.9, -2])
def test_a_file_cut_off(kept, file, part):
    whole = (kept / file).read_bytes()
    (kept / file).write_bytes(whole[: part if part < 0 else int(part * len(whole))])
    kind = "safetensors" if file.endswith("safetensors") else "JSON"
    assert f"is no whole {kind} file" in refused(kept, file)


def test_a_vocabulary_of_another_size(kept):
    value = json.loads((kept / "vocab.json").read_text())
    value["symbols"].pop()
    (kept / "vocab.json").write_text(json.dumps(value))
    assert "predicts 11 symbols, but the vocab.json beside it has 10" in refused(kept)


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"kind": "letters", "symbols": []},
        {"kind": "characters", "symbols": "ab"},
        {"kind": "characters", "symbols": ["a", "a"]},
        {"kind": "characters", "symbols": ["a", "bc"]},
        {"kind": "characters", "symbols": ["a", 7]},
        {"kind": "characters", "symbols": [["a"]]},
    ],
    ids=str,
)
def test_a_vocabulary_that_is_none(kept, value):
    (kept / "vocab.json").write_text(json.dumps(value))
    assert "holds no vocabulary" in refused(kept, "vocab.json")


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": "gru"},
        {"architecture": ["lstm"]},
        {"architecture": None},
        {"settings": None},
        {"settings": {}},
        {"settings": {"vocabulary_size": 11, "colour": "red"}},
        {"settings": {"vocabulary_size": 11, "units": "many"}},
        {"settings": {"vocabulary_size": 11, "units": -3}},
        {"settings": {"vocabulary_size": 11, "units": 10**18}},
        {"settings": {"vocabulary_size": 11, "dropout": 2}},
        {"settings": {"vocabulary_size": 11, "embedding_size": 3, "units": 4, "tied": True}},
    ],
    ids=str,
)
def test_a_configuration_of_no_model(kept, change):
    config = json.loads((kept / "config.json").read_text())
    (kept / "config.json").write_text(json.dumps(config | change))
    assert "describes no known model" in refused(kept, "config.json")


@pytest.mark.parametrize("value", [[], "lstm", 3, None, {}, {"architecture": "lstm"}], ids=str)
def test_a_configuration_that_is_none(kept, value):
    (kept / "config.json").write_text(json.dumps(value))
    assert "describes no known model" in refused(kept, "config.json")


def test_weights_of_another_architecture(kept, tmp_path):
    other = MLSTM(SYMBOLS, embedding_size=3, units=3)
    models.save(tmp_path / "other", Checkpoint(other, VOCABULARY))
    shutil.copy(tmp_path / "other" / "model.safetensors", kept)
    assert "does not fit config.json" in refused(kept, "model.safetensors")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("layers.0.bias_ih", None, "layers.0.bias_ih is missing"),
        ("layers.7.bias_ih", torch.zeros(12), "layers.7.bias_ih is (12,), needed nothing"),
        ("output.bias", torch.zeros(12), "output.bias is (12,), needed (11,)"),
        ("output.bias", torch.full((11,), torch.nan), "NaN or infinity in output.bias"),
        ("output.bias", torch.full((11,), torch.inf), "NaN or infinity in output.bias"),
    ],
)
def test_a_tensor_that_does_not_fit(kept, name, value, says):
    weights, about = storage.read_tensors(kept / "model.safetensors")
    weights = {k: w.clone() for k, w in weights.items() if k != name}
    weights |= {} if value is None else {name: value}
    storage.write_tensors(kept / "model.safetensors", weights, about)
    assert says in refused(kept, "model.safetensors")


def test_a_folder_where_a_file_should_be(kept):
    (kept / "vocab.json").unlink()
    (kept / "vocab.json").mkdir()
    refused(kept, "vocab.json")
    (kept / "vocab.json").rmdir()
    (kept / "vocab.json").write_text("{}")
    (kept / "model.safetensors").unlink()
    (kept / "model.safetensors").mkdir()
    refused(kept)


# charRNN


def charrnn(path, symbols="abcde\né", units=4, embedding_size=3, **changes):
    """Write an .npz of random weights, as the published ones are laid out -> its arrays."""
    random = np.random.default_rng(0)
    shapes = {
        "embedding": (len(symbols), embedding_size),
        "kernel_0": (embedding_size + units, 4 * units),
        "bias_0": (4 * units,),
        "kernel_1": (2 * units, 4 * units),
        "bias_1": (4 * units,),
        "softmax_w": (units, len(symbols)),
        "softmax_b": (len(symbols),),
    }
    arrays = {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    kept = {name: value for name, value in (arrays | changes).items() if value is not None}
    np.savez(path, **kept)
    path.with_suffix(".vocab.json").write_text(json.dumps(list(symbols)))
    return arrays


def tensorflow_logits(arrays, tokens):
    """BasicLSTMCell, as TensorFlow documents it, in float64."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    arrays = {name: array.astype("f8") for name, array in arrays.items()}
    units = len(arrays["softmax_w"])
    states = [(np.zeros(units), np.zeros(units)) for _ in range(2)]
    rows = []
    for token in tokens:
        x = arrays["embedding"][token]
        for k, (h, c) in enumerate(states):
            z = np.concatenate([x, h]) @ arrays[f"kernel_{k}"] + arrays[f"bias_{k}"]
            i, j, f, o = np.split(z, 4)
            c = c * sigmoid(f + 1) + sigmoid(i) * np.tanh(j)
            x = np.tanh(c) * sigmoid(o)
            states[k] = (x, c)
        rows.append(x @ arrays["softmax_w"] + arrays["softmax_b"])
    return np.array(rows)


def test_an_imported_charrnn_computes_what_tensorflow_does(tmp_path):
    arrays = charrnn(tmp_path / "tiny.npz")
    made = import_charrnn(tmp_path / "tiny.npz", tmp_path / "model")
    loaded = models.load(tmp_path / "model")
    assert loaded.vocabulary == made.vocabulary == Vocabulary("characters", tuple("abcde\né"))
    assert loaded.about["source"] == "tiny.npz"
    assert models.fingerprint(loaded.model) == models.fingerprint(made.model)
    tokens = [0, 3, 6, 5, 1, 1, 4, 2]
    logits = loaded.model.logits(loaded.model.hidden(torch.tensor([tokens]))[0])[0]
    expected = tensorflow_logits(arrays, tokens)
    np.testing.assert_allclose(logits.detach().numpy(), expected, rtol=0, atol=1e-5)


def import_refused(npz):
    with pytest.raises(ValueError, match=re.escape(str(npz.parent))) as caught:
        import_charrnn(npz, npz.parent / "model")
    assert "\n" not in str(caught.value)
    assert not (npz.parent / "model").exists()
    return str(caught.value)


@pytest.mark.parametrize("part", [0, 0.05, 0.5, 0.99])
def test_a_charrnn_cut_off(tmp_path, part):
    npz = tmp_path / "tiny.npz"
    charrnn(npz)
    whole = npz.read_bytes()
    npz.write_bytes(whole[: int(part * len(whole))])
    assert "is no whole .npz file" in import_refused(npz)


def test_a_charrnn_damaged_inside(tmp_path):
    npz = tmp_path / "tiny.npz"
    charrnn(npz)
    whole = bytearray(npz.read_bytes())
    whole[len(whole) // 3] ^= 0xFF
    npz.write_bytes(whole)
    assert "is no whole .npz file" in import_refused(npz)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"embedding": None}, "no embedding"),
        ({"embedding": np.zeros(7)}, "no embedding"),
        ({"softmax_w": None}, "softmax_w"),
        ({"softmax_w": np.float32(1)}, "no charRNN model"),
        ({"softmax_b": np.zeros(8)}, "output.bias would be (8,), needed (7,)"),
        ({"kernel_0": None, "kernel_1": None}, "layers 0"),
        ({"kernel_1": None, "kernel_7": np.zeros((8, 16))}, "kernel_1"),
        ({"kernel_1": np.zeros((8, 12))}, "no charRNN model"),
        ({"kernel_1": np.zeros(16)}, "no charRNN model"),
        ({"bias_1": np.zeros(13)}, "no charRNN model"),
        ({"bias_0": np.full(16, np.nan)}, "NaN, infinity or no numbers in bias_0"),
        ({"bias_0": np.array(["text"])}, "NaN, infinity or no numbers in bias_0"),
        ({"bias_0": np.array([None])}, "is no whole .npz file of plain arrays"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_another_npz(tmp_path, changes, says):
    charrnn(tmp_path / "tiny.npz", **changes)
    assert says in import_refused(tmp_path / "tiny.npz")


def test_no_charrnn_there(tmp_path):
    npz = tmp_path / "tiny.npz"
    assert "does not exist" in import_refused(npz)
    npz.write_text("text")
    assert "is no whole .npz file" in import_refused(npz)
    with npz.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "is no whole .npz file" in import_refused(npz)
    npz.unlink()
    npz.mkdir()
    assert "is no whole .npz file" in import_refused(npz)


@pytest.mark.parametrize(
    ("symbols", "says"),
    [
        (None, "does not exist"),
        (list("abcdef"), "lists 6 characters, but"),
        ({"a": 1}, "is no list of characters"),
        (list("aacdefg"), "is no list of characters"),
        (["ab", *"cdefgh"], "is no list of characters"),
        ([1, *"cdefgh"], "is no list of characters"),
    ],
    ids=str,
)
def test_a_charrnn_vocabulary_that_does_not_belong(tmp_path, symbols, says):
    charrnn(tmp_path / "tiny.npz")
    file = tmp_path / "tiny.vocab.json"
    file.unlink()
    if symbols is not None:
        file.write_text(json.dumps(symbols))
    message = import_refused(tmp_path / "tiny.npz")
    assert says in message
    assert str(file) in message


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("text", "bits", "dropped"),
    [
        ("authors/bronte.txt.xz", 1.8558, 0),
        ("europarl-es/europarl_es_first_5000000_chars.txt.xz", 5.4641, 142),
    ],
)
def test_a_pretrained_charrnn_reproduces_its_scores(corpora_folder, tmp_path, text, bits, dropped):
    npz = corpora_folder.parent / "models" / "charrnn" / "charlotte_bronte.npz"
    if not npz.exists():
        pytest.skip(f"there is no {npz.name} beside the corpora")
    import_charrnn(npz, tmp_path)
    checkpoint = models.load(tmp_path)
    whole = corpora.load(corpora_folder / text).raw().decode()
    part = whole[500_000:510_000]
    tokens = checkpoint.vocabulary.read(part.encode(), text, unknown="drop").tokens
    assert len(part) - len(tokens) == dropped
    stream = torch.from_numpy(tokens).long()[None]
    nats = torch.cat([*evaluate(Static(checkpoint.model), stream, 100)], 1)
    assert nats.numel() == len(tokens) - 1
    assert nats.double().mean().item() / math.log(2) == pytest.approx(bits, abs=1e-3)
