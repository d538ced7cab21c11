"""Harness: dynamic evaluation as a model of lm-evaluation-harness, which knows it as `dyneval`.

Importing this module registers it there. A document is learned from as a stream of segments, and
only what all requests of the document begin with is learned from: their context. Candidates, and
what is generated, are read with the weights that this left behind, each from the same place.
"""

from __future__ import annotations

import os.path
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs  # and with it the harness's own models
from torch import Tensor
from tqdm import tqdm

from dyneval import devices, models
from dyneval.evaluation import evaluate
from dyneval.generation import Sampling
from dyneval.models.huggingface import Loading
from dyneval.settings import choose, default_length, find_statistics, rows_of
from dyneval.streams import PAD
from dyneval.subwords import Subwords

Reset = Literal["document", "stream"]
# what a rule is made of, as `dyneval evaluate` takes it
FLAGS: dict[str, type] = {
    "rule": str,
    "learning_rate": float,
    "decay_rate": float,
    "epsilon": float,
    "segment_length": int,
    "average": str,
    "target": str,
}
GENERATION = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")


@register_model("dyneval")
class Adapting(TemplateLM):  # type: ignore[misc]
    """A model of Hugging Face that learns from each document as it reads it.

    The arguments are those of `dyneval evaluate`. With `reset="document"` each document begins with
    the trained weights, with `"stream"` it begins with what those of its task before it left
    behind; the hidden state begins anew either way. Tokens are made as the harness's own model `hf`
    makes them, so that scores compare. Documents are read one by one, whatever the batch size.
    """

    def __init__(
        self,
        pretrained: str = "",
        reset: Reset = "document",
        static: bool = False,
        stats: str | None = None,
        settings: str | None = None,
        context: int | None = None,
        context_policy: Any = None,
        dtype: Any = "float32",
        engine: Any = "auto",
        device: str = "auto",
        add_bos_token: bool | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **flags: Any,
    ) -> None:
        super().__init__()
        if not pretrained:
            raise ValueError("no model is named; give --model_args pretrained=MODEL")
        if reset not in get_args(Reset):
            raise ValueError(f"reset={reset!r} is not known; give document or stream")
        name = str(pretrained)
        if not isinstance(vocabulary := models.load_vocabulary(name), Subwords):
            raise ValueError(
                f"{name} predicts {vocabulary.kind}, and the harness asks for the tokens of a "
                "tokenizer; give a model of Hugging Face"
            )
        files = [Path(settings)] if settings else None
        rows = rows_of(name, files, Path(stats) if stats else None)
        rows = choose(rows, default_length(vocabulary), _given(flags), None)
        row = rows.get("static" if static else "dynamic")
        if row is None:
            raise ValueError(f"the settings are of {', '.join(rows)}, not of dynamic; give a rule")
        loading = Loading(context, context_policy, dtype)
        checkpoint = models.load(name, devices.find(device), loading)
        found = find_statistics([row], checkpoint.model, models.folder_of(name), stats)
        self.settings, self.reset, self.about = row, reset, checkpoint.about
        self.predictor = row.predictor(checkpoint.model, row.reads(found), engine)
        self.tokenizer = vocabulary.tokenizer
        self.add_bos_token = add_bos_token
        if self.prefix_token_id is None:
            raise ValueError(
                f"the tokenizer of {name} has no token that begins or ends a text, so the first "
                "token of a document cannot be scored; give it a bos_token"
            )

    @property
    def eot_token_id(self) -> Any:
        """The token that ends a text."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> Any:
        """The token that is read before a text."""
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def max_gen_toks(self) -> int:
        """How many tokens are generated where a task does not say."""
        return 256

    @property
    def tokenizer_name(self) -> str:
        """What tells tokenizers apart."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """Return what the harness writes into its results beside the arguments."""
        return {
            "dyneval": sys.modules["dyneval"].__version__,  # not imported, as in `provenance`
            "rule": str(self.settings),
            "settings": self.settings.to_json(),
            "reset": self.reset,
            "engine": self.predictor.engine,
        } | self.about

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Take the harness's cache of answers."""
        if self.reset == "stream":
            raise ValueError(
                "--use_cache leaves documents out that a stream has to read; leave it out, or "
                "give reset=document"
            )
        super().set_cache_hook(cache_hook)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as the model was taught to read one."""
        shown = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return str(shown)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Return the tokens of a text, with those that the tokenizer puts around one."""
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        begin = self.tokenizer.decode(self.prefix_token_id)
        if add_special_tokens is None and string.startswith(begin):
            special = False  # it is there already
        named = {} if special is None else {"add_special_tokens": special}
        tokens: list[int] = self.tokenizer.encode(string, verbose=False, **named)
        return tokens

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the nats of each continuation after its context, as −nats, and if it is likeliest.

        A document's candidates are all scored with the same weights.
        """
        found: list[tuple[float, bool]] = []
        for document in self._documents("loglikelihood", requests, disable_tqdm):
            answers = super().loglikelihood(document, disable_tqdm=True)
            found += self._noted("loglikelihood", document, answers)
        return found

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """Score the continuations of one document.

        Those without a context come first, before its context is learned from.
        """
        answers: dict[int, tuple[float, bool]] = {}
        for conditional in (False, True):
            chosen = [k for k, ((text, _), *_) in enumerate(requests) if bool(text) is conditional]
            if chosen:
                scores = self._scores([requests[k][1:] for k in chosen])
                answers |= zip(chosen, scores, strict=True)
        return [answers[k] for k in range(len(requests))]

    def _scores(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[tuple[float, bool]]:
        """Yield the score of each pair of a context and a continuation."""
        start, rewind = self._learn([context for context, _ in pairs])
        found: dict[tuple[int, ...], Tensor] = {}
        for context, continuation in pairs:
            if not continuation:
                yield 0.0, True
                continue
            # candidates of one token are read all at once
            read = tuple((context + continuation)[start:-1])
            if read not in found:
                if found:
                    rewind()
                found[read] = self._read(read)
            targets = torch.tensor(continuation, dtype=torch.long)
            expected = found[read][len(read) - len(targets) :]
            score = expected.gather(1, targets[:, None]).double().sum()
            yield float(score), bool((expected.argmax(-1) == targets).all())

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return −nats of each text, learning from every segment once it is scored."""
        found: list[float] = []
        for document in self._documents("loglikelihood_rolling", requests, disable_tqdm):
            scores = []
            for request in document:
                self.predictor.reset(weights=self.reset == "document")
                (text,) = request.args
                scores.append(-self._evaluate([self.prefix_token_id, *self.tok_encode(text)]))
            found += self._noted("loglikelihood_rolling", document, scores)
        return found

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return what the model writes after each context; it does not learn from that."""
        found: list[str] = []
        for document in self._documents("generate_until", requests, disable_tqdm):
            contexts = [
                self.tok_encode(request.args[0]) if request.args[0] else [self.prefix_token_id]
                for request in document
            ]
            start, rewind = self._learn(contexts)
            texts = []
            for k, (request, context) in enumerate(zip(document, contexts, strict=True)):
                if k:
                    rewind()
                texts.append(self._write(context[start:], request.args[1]))
            found += self._noted("generate_until", document, texts)
        return found

    def _write(self, unread: list[int], given: dict[str, Any]) -> str:
        """Go on from some tokens until one of the given ends."""
        how = normalize_gen_kwargs(given, self.max_gen_toks)
        if unknown := sorted(how.keys() - set(GENERATION)):
            raise ValueError(
                f"a task asks for generation with {unknown[0]}={how[unknown[0]]!r}, which is not "
                f"supported; known are {', '.join(GENERATION)} (--gen_kwargs)"
            )
        temperature = float(how.get("temperature", 0)) if how["do_sample"] else 0.0
        sampling = Sampling(temperature, how.get("top_k") or None, how.get("top_p"))
        ends = [end for end in how["until"] if end]
        tokens: list[int] = []
        for _ in range(how["max_gen_toks"]):
            token = sampling.draw(self._read(unread)[-1])
            unread = [token]
            if token == self.eot_token_id:
                break
            tokens.append(token)
            text = self.tokenizer.decode(tokens)
            if any(end in text for end in ends):
                break
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return min((text.partition(end)[0] for end in ends), key=len, default=str(text))

    def _documents(self, kind: str, requests: list[Any], disable_tqdm: bool) -> Iterator[list[Any]]:
        """Yield the requests of each document, with the predictor where the document begins."""
        task = None
        with tqdm(
            total=len(requests), desc=f"Running {kind} requests", disable=disable_tqdm
        ) as bar:
            # what was not made by the harness may lack numbers
            for key, group in groupby(requests, lambda one: (one.task_name, one.doc_id, one.doc)):
                document = list(group)
                goes_on = self.reset == "stream" and task == key[:1]
                self.predictor.reset(weights=not goes_on)
                task = key[:1]
                yield document
                bar.update(len(document))

    def _learn(self, contexts: list[list[int]]) -> tuple[int, Callable[[], None]]:
        """Learn from what all contexts of a document begin with.

        Return where to go on from in each of them, and what brings the predictor back there.
        """
        self.predictor.reset(weights=False)
        shared = list(os.path.commonprefix(contexts))
        if len(shared) < 2:  # nothing follows on anything
            return 0, partial(self.predictor.reset, weights=False)
        self._evaluate(shared)
        return len(shared) - 1, partial(self.predictor.load_state_dict, self.predictor.state_dict())

    def _evaluate(self, tokens: list[int]) -> float:
        """Return the nats of all tokens but the first, learning from them."""
        total = 0.0
        for nats in evaluate(self.predictor, torch.tensor([tokens]), self.settings.segment_length):
            total += float(nats.double().sum())
            if not torch.isfinite(nats).all():
                _diverged()
        return total

    def _read(self, tokens: Sequence[int]) -> Tensor:
        """Return the log-probabilities (T, V) of what follows each token, learning nothing."""
        read = torch.tensor([tokens])
        found = self.predictor.predict(read).log_probs[0].cpu()
        self.predictor.learn(torch.full_like(read, PAD))  # without a target the segment just ends
        if found.isnan().any():
            _diverged()
        return found

    def _noted(self, kind: str, document: list[Any], answers: list[Any]) -> list[Any]:
        """Return answers once the harness's cache has them."""
        for request, answer in zip(document, answers, strict=True):
            self.cache_hook.add_partial(kind, request.args, answer)
        return answers


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of a rule, as what they are."""
    found = {}
    for name, value in flags.items():
        if name not in FLAGS:
            raise ValueError(
                f"--model_args has no {name!r}; give pretrained, reset, static, stats, settings, "
                f"context, context_policy, dtype, engine, add_bos_token, {', '.join(FLAGS)}"
            )
        try:
            found[name] = FLAGS[name](value)
        except (TypeError, ValueError):
            raise ValueError(f"{name}={value!r} is no number; give one") from None
    return found


def _diverged() -> NoReturn:
    raise ValueError(
        "the model diverged: its probabilities left all bounds; lower learning_rate or raise "
        "epsilon in --model_args"
    )
