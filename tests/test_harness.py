"""lm-evaluation-harness with our model, beside its own; and what its scores are made of."""

import json
import os
import string
import sys

import pytest
import torch
from hugging_face import TEXT, byte_level, written
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

os.environ["HF_DATASETS_OFFLINE"] = "1"
pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed (the extra eval)")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from dyneval import generation
from dyneval.harness import Adapting
from dyneval.run import Run
from dyneval.settings import Settings

DOCUMENTS = ["The cat saw the dog. " * 6, "¿Qué niño? 🙂 " * 5, "x = 1\n" * 9 + "the dog"]
QUESTIONS = [
    {"question": "The cat saw the", "choices": ["dog", "café. Él", "cat saw"], "gold": 0},
    {"question": "Él dijo: ¿qué", "choices": ["niño", "the dog saw"], "gold": 1},
]
LEARNING = {"rule": "sgd", "learning_rate": 0.5, "segment_length": 4}


def tokenizer(begins=False):
    """Return a tokenizer with an end; some put the token that begins a text before each."""
    made = byte_level()
    made.add_special_tokens({"eos_token": "</s>"})
    if begins:
        made.backend_tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", made.bos_token_id)]
        )
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    wide = {"max_position_embeddings": 512}
    return written(tmp_path_factory.mktemp("models") / "llama", "llama", tokenizer(), **wide)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A model whose tokenizer puts a token before each text."""
    wide = {"max_position_embeddings": 512}
    return written(tmp_path_factory.mktemp("models") / "begun", "llama", tokenizer(True), **wide)


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A model whose tokens are letters, so that what it writes can be read again."""
    symbols = ["<s>", "</s>", "Ġ", *string.ascii_lowercase]
    made = Tokenizer(BPE({symbol: k for k, symbol in enumerate(symbols)}, []))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **named)
    return written(tmp_path_factory.mktemp("models") / "letters", "llama", tokenizer)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder of tasks of the harness, with what they ask."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = {
        "texts": [{"text": text} for text in DOCUMENTS],
        "choices": QUESTIONS,
        "answers": [{"text": question["question"]} for question in QUESTIONS],
    }
    kinds = {
        "texts": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}, {"metric": "word_perplexity"}],
        },
        "choices": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_target": "gold",
            "doc_to_choice": "choices",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_mutual_info"}],
        },
        "answers": {
            "output_type": "generate_until",
            "doc_to_text": "{{text}}",
            "doc_to_target": "{{text}}",
            "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, kind in kinds.items():
        data = folder / f"{name}.json"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[name]), "utf-8")
        files = {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")}
        task = {"task": name, "dataset_path": "json", "test_split": "test"}
        # JSON is YAML
        (folder / f"{name}.yaml").write_text(json.dumps(task | {"dataset_kwargs": files} | kind))
    return folder


@pytest.fixture
def harness(tasks):
    """Run tasks with a model -> its results, and the answers to each document of a task."""

    def run(names, model, arguments, **options):
        manager = TaskManager(include_path=str(tasks), include_defaults=False)
        found = simple_evaluate(
            model=model,
            model_args=arguments,
            tasks=names,
            task_manager=manager,
            device="cpu",
            bootstrap_iters=0,
            **options,
        )
        samples = {
            name: [sample["resps"] for sample in rows] for name, rows in found["samples"].items()
        }
        return found["results"], samples

    return run


def requests(pairs, kind="loglikelihood"):
    """Return the requests of documents, a list of arguments each."""
    return [
        Instance(kind, {"number": number}, arguments, idx, ("task", number, 1))
        for number, document in enumerate(pairs)
        for idx, arguments in enumerate(document)
    ]


@pytest.mark.parametrize("model", ["folder", "begun"])
def test_without_a_learning_rate_it_agrees_with_the_harness_s_own_model(model, harness, request):
    name = {"pretrained": str(request.getfixturevalue(model)), "dtype": "float32"}
    everything = ["texts", "choices", "answers"]
    expected, theirs = harness(everything, "hf", name)
    still = name | LEARNING | {"learning_rate": 0}
    for arguments in (still, still | {"reset": "stream"}, name | {"static": True}):
        found, ours = harness(everything, "dyneval", arguments)
        bits = found["texts"]["bits_per_byte,none"]
        assert bits == pytest.approx(expected["texts"]["bits_per_byte,none"], abs=1e-4)
        for metric in ("acc,none", "acc_mutual_info,none"):
            assert found["choices"][metric] == expected["choices"][metric]
        for own, other in zip(ours["choices"], theirs["choices"], strict=True):
            for ((score, likeliest),), ((nats, greedy),) in zip(own, other, strict=True):
                assert score == pytest.approx(nats, abs=1e-4)
                assert likeliest == greedy
        assert ours["answers"] == theirs["answers"]
        assert any(text for ((text,),) in ours["answers"])


def test_learning_changes_the_figures(folder, harness):
    name = {"pretrained": str(folder)}
    static, _ = harness(["texts"], "dyneval", name | {"static": True})
    bits = {
        reset: harness(["texts"], "dyneval", name | LEARNING | {"reset": reset})[0]
        for reset in ("document", "stream")
    }
    figures = [each["texts"]["bits_per_byte,none"] for each in (static, *bits.values())]
    assert len(set(figures)) == 3


def oracle(folder, context, continuation, rate):
    """Return the score of a continuation after one step of SGD on its whole context."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    tokens = torch.tensor([context + continuation])
    end = len(context) - 1
    read = model(tokens[:, :end], use_cache=True)
    loss = torch.nn.functional.cross_entropy(read.logits[0], tokens[0, 1 : end + 1])
    loss.backward()
    torch.optim.SGD(model.parameters(), rate).step()
    with torch.no_grad():
        rest = model(tokens[:, end:-1], past_key_values=read.past_key_values)
        log_probs = torch.log_softmax(rest.logits[0], -1)
    targets = tokens[0, end + 1 :]
    return (
        log_probs.gather(1, targets[:, None]).sum().item(),
        bool((log_probs.argmax(-1) == targets).all()),
    )


def test_a_candidate_is_scored_after_learning_from_the_context(folder):
    model = Adapting(folder, dtype="float64", rule="sgd", learning_rate=0.3, segment_length=64)
    context = model.tok_encode(TEXT[:40])
    document = [(TEXT[:40], text) for text in (" dog", " the café", " niño")]
    found = model.loglikelihood(requests([document]), disable_tqdm=True)
    for (_, text), (score, likeliest) in zip(document, found, strict=True):
        candidate = model.tok_encode(TEXT[:40] + text)[len(context) :]
        expected, greedy = oracle(folder, context, candidate, 0.3)
        assert score == pytest.approx(expected, rel=1e-9)
        assert likeliest == greedy


def test_no_candidate_is_learned_from(folder):
    context, texts = TEXT[:40], [" dog", " the café", " niño saw", " x = 1\n x = 1", ""]
    for reset in ("document", "stream"):

        def scores(order, reset=reset):
            model = Adapting(folder, reset, **LEARNING)
            before = requests([[(TEXT[:60], " dog")]])
            document = requests([[], [(context, text) for text in order]])
            found = model.loglikelihood(before + document, disable_tqdm=True)[1:]
            return dict(zip(order, found, strict=True)), model.predictor.weights()

        found, weights = scores(texts)
        again, same = scores(texts[::-1])
        alone, also = scores(texts[1:2])
        assert found == again
        assert alone[texts[1]] == found[texts[1]]
        for name, weight in weights.items():
            assert torch.equal(weight, same[name])
            assert torch.equal(weight, also[name])


def test_probabilities_add_up_to_one(folder):
    model = Adapting(folder, dtype="float64", **LEARNING)
    context = model.tok_encode(TEXT[:40])
    every = [((TEXT[:40], ""), context, [token]) for token in range(len(model.tokenizer))]
    scores = model._loglikelihood_tokens(every)
    assert sum(torch.tensor([score for score, _ in scores]).double().exp()) == pytest.approx(1)
    assert sum(likeliest for _, likeliest in scores) == 1


def test_candidates_that_stand_in_contexts_are_not_learned_from_either(folder):
    """Some tasks put each candidate before the same end."""

    def scores(*candidates):
        model = Adapting(folder, **LEARNING)
        pairs = [(f"The cat saw the dog, {one}", " saw the café") for one in candidates]
        found = model.loglikelihood(requests([pairs]), disable_tqdm=True)
        return dict(zip(candidates, found, strict=True)), model.predictor.position.item()

    found, learned = scores("Él", "niño")
    other, same = scores("x = 1", "Él", "日本")
    assert found["Él"] == other["Él"]
    assert learned == same == len(tokenizer().encode("The cat saw the dog, "[:-1])) - 1


def test_what_has_no_context_is_scored_before_one_is_learned_from(folder):
    pairs = [("", " dog"), (TEXT[:40], " dog"), ("", " niño")]
    model = Adapting(folder, **LEARNING)
    found = model.loglikelihood(requests([pairs]), disable_tqdm=True)
    static = Adapting(folder, static=True).loglikelihood(requests([pairs]), disable_tqdm=True)
    for k in (0, 2):
        assert found[k][0] == pytest.approx(static[k][0])
    assert found[1][0] != pytest.approx(static[1][0], rel=1e-3)


def test_a_text_is_read_as_evaluate_reads_it(folder, tmp_path):
    (tmp_path / "text.txt").write_text(DOCUMENTS[0], "utf-8")
    run = Run(folder, str(tmp_path / "text.txt"), {"dynamic": Settings(4, "sgd", 0.5)})
    expected = -run.execute().scores["dynamic"].nats.sum()
    model = Adapting(folder, **LEARNING)
    rolling = requests([[(text,)] for text in DOCUMENTS[:2]], "loglikelihood_rolling")
    assert model.loglikelihood_rolling(rolling, True)[0] == pytest.approx(expected, rel=1e-5)


def test_a_document_begins_afresh_or_where_the_one_before_it_ended(folder):
    def rolling(model, texts):
        asked = requests([[(text,)] for text in texts], "loglikelihood_rolling")
        return model.loglikelihood_rolling(asked, disable_tqdm=True)

    afresh, stream = (Adapting(folder, reset, **LEARNING) for reset in ("document", "stream"))
    first, second = rolling(afresh, DOCUMENTS[:2])
    assert rolling(afresh, DOCUMENTS[1::-1]) == [second, first]
    both = rolling(stream, DOCUMENTS[:2])
    assert both[0] == first
    assert both[1] != pytest.approx(second, rel=1e-3)
    assert rolling(stream, DOCUMENTS[:2]) == both  # another evaluation begins afresh


def test_a_stream_ends_with_its_task(folder, harness):
    arguments = {"pretrained": str(folder), "reset": "stream"} | LEARNING
    alone = {name: harness([name], "dyneval", arguments)[1] for name in ("choices", "texts")}
    for names in (["choices", "texts"], ["texts", "choices"]):
        _, together = harness(names, "dyneval", arguments)
        assert together == alone["choices"] | alone["texts"]


PROSE = "the cat saw the dog and the dog saw it"


def test_generation_ends_where_it_is_asked_to(letters):
    model = Adapting(letters, **LEARNING)

    def written_on(**how):
        return model.generate_until(requests([[(PROSE, how)]], "generate_until"), True)[0]

    whole = written_on(until=[], max_gen_toks=12)
    assert len(whole) == 12
    end = whole[3:5]
    assert written_on(until=[end], max_gen_toks=12) == whole.partition(end)[0]
    assert written_on(until=end, max_gen_toks=12) == whole.partition(end)[0]
    assert written_on(until=["never", ""], max_new_tokens=12) == whole
    assert written_on(until=[], max_gen_toks=5) == whole[:5]
    assert written_on(max_gen_toks=0) == ""
    third = model.tokenizer.encode(whole)[2]
    model.tokenizer.eos_token = model.tokenizer.convert_ids_to_tokens(third)
    assert written_on(max_gen_toks=12) == whole.partition(whole[2])[0]


def test_what_is_generated_is_the_likeliest_and_not_learned_from(letters):
    model = Adapting(letters, **LEARNING)
    contexts = [PROSE, PROSE[8:]]
    how = {"until": [], "max_gen_toks": 6}
    asked = requests([[(one, how)] for one in contexts], "generate_until")
    texts = model.generate_until(asked, disable_tqdm=True)
    pairs = [[(one, text)] for one, text in zip(contexts, texts, strict=True)]
    assert all(likeliest for _, likeliest in model.loglikelihood(requests(pairs), True))
    # as if each had been written alone, and any number of times
    again = requests([[(contexts[1], how)] * 3], "generate_until")
    assert model.generate_until(again, disable_tqdm=True) == [texts[1]] * 3


def test_sampling_follows_the_seed_and_the_temperature(folder, monkeypatch):
    model = Adapting(folder, static=True)

    def sampled(seed, **how):
        torch.manual_seed(seed)
        asked = {"until": [], "max_gen_toks": 8, "do_sample": True} | how
        return model.generate_until(requests([[(TEXT[:60], asked)]], "generate_until"), True)[0]

    greedy = sampled(1, do_sample=False, temperature=1.0)
    assert sampled(1, temperature=1.0) == sampled(1, temperature=1.0)
    assert len({sampled(seed, temperature=1.5) for seed in range(5)}) > 1
    assert sampled(3, temperature=1.0, top_k=1) == greedy
    assert sampled(3, temperature=1.0, top_p=1e-6) == greedy
    made = []
    monkeypatch.setattr(
        "dyneval.harness.Sampling", lambda *how: made.append(how) or generation.Sampling(*how)
    )
    sampled(1, temperature=0.7, top_k=0, top_p=0.9)
    assert made == [(0.7, None, 0.9)]


def test_a_cache_of_answers(folder, harness, tmp_path):
    arguments = {"pretrained": str(folder)} | LEARNING
    where = {"use_cache": str(tmp_path / "answers")}
    first = harness(["choices", "texts"], "dyneval", arguments, **where)
    assert harness(["choices", "texts"], "dyneval", arguments, **where)[0] == first[0]
    with pytest.raises(ValueError, match="leaves documents out that a stream has to read"):
        harness(["texts"], "dyneval", arguments | {"reset": "stream"}, **where)


def test_a_chat_is_shown_as_the_model_was_taught(folder):
    model = Adapting(folder, static=True)
    model.tokenizer.chat_template = (
        "{{ bos_token }}{% for one in messages %}[{{ one.role }}] {{ one.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    shown = model.apply_chat_template([{"role": "user", "content": "dog"}])
    assert shown == "<s>[user] dog[assistant]"
    assert model.tok_encode(shown).count(model.prefix_token_id) == 1


def test_the_command(folder, tasks, tmp_path, command, monkeypatch):
    # it would go on after this test
    monkeypatch.setattr("lm_eval.utils.setup_logging", lambda *_: None)
    arguments = ",".join(f"{name}={value}" for name, value in LEARNING.items())
    code, out, _ = command(
        *("lm-eval", "--model_args", f"pretrained={folder},{arguments}", "--tasks", "texts"),
        *("--include_path", tasks, "--output_path", tmp_path / "results.json"),
    )
    assert code == 0
    (path,) = tmp_path.glob("results*.json")
    found = json.loads(path.read_text())
    assert found["config"]["rule"] == "Sgd(learning_rate=0.5), n = 4"
    assert found["config"]["model"] == "dyneval"
    (row,) = [line for line in out.splitlines() if "bits_per_byte" in line]
    bits = float([cell.strip() for cell in row.split("|")][-4])
    assert bits == pytest.approx(found["results"]["texts"]["bits_per_byte,none"], abs=1e-4)


def test_a_wrong_flag(mistake):
    assert "lists the flags of the harness" in mistake("lm-eval", "--no-such-flag")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "no model is named"),
        ({"reset": "never"}, "reset='never' is not known"),
        ({"lr": 1}, "--model_args has no 'lr'"),
        ({"learning_rate": "fast"}, "learning_rate='fast' is no number"),
        ({"rule": "adam"}, "there is no rule 'adam'"),
        ({"context": 1}, "a context of 1 tokens"),
        ({"pretrained": "bundled"}, "predicts bytes, and the harness asks for the tokens"),
    ],
)
def test_a_wrong_model(arguments, said, folder):
    name = {"pretrained": str(folder)} if arguments else {}
    with pytest.raises(ValueError, match=said):
        Adapting(**name | arguments)


def test_a_tokenizer_without_a_beginning_or_an_end(tmp_path):
    written(tmp_path, "llama", byte_level(begin=False))
    with pytest.raises(ValueError, match="has no token that begins or ends a text"):
        Adapting(tmp_path)


def test_generation_that_is_not_supported(folder):
    model = Adapting(folder, static=True)
    asked = requests([[(TEXT[:60], {"until": [], "num_beams": 4})]], "generate_until")
    with pytest.raises(ValueError, match="generation with num_beams=4, which is not supported"):
        model.generate_until(asked, disable_tqdm=True)


def test_divergence(folder):
    model = Adapting(folder, rule="sgd", learning_rate=1e30, segment_length=4)
    with pytest.raises(ValueError, match="the model diverged"):
        model.loglikelihood(requests([[(TEXT[:60], " dog")]]), disable_tqdm=True)
    rolling = requests([[(TEXT[:60],)]], "loglikelihood_rolling")
    with pytest.raises(ValueError, match="the model diverged"):
        model.loglikelihood_rolling(rolling, disable_tqdm=True)


def test_without_the_extra(mistake, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert "pip install 'dyneval[eval]'" in mistake("lm-eval", "--tasks", "texts")
