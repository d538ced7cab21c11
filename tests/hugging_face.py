"""Tiny random models of Hugging Face with their tokenizers, always the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    BertConfig,
    BertLMHeadModel,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

os.environ["HF_HUB_OFFLINE"] = "1"  # of the processes that tests start
logging.disable_progress_bar()  # what a command says is to be its own

WIDE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = {"intermediate_size": 12, "num_key_value_heads": 1, "max_position_embeddings": 64} | WIDE
NONE = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
KINDS: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, LLAMA),
    "llama, tied": (LlamaForCausalLM, LlamaConfig, LLAMA | {"tie_word_embeddings": True}),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config,
        {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 64},
    ),
    "opt": (
        OPTForCausalLM,
        OPTConfig,
        {"ffn_dim": 12, "max_position_embeddings": 64, "word_embed_proj_dim": 4} | WIDE,
    ),
    "mistral": (MistralForCausalLM, MistralConfig, LLAMA | {"sliding_window": 6}),
    "gemma2": (  # windows and full layers in turn, and a soft cap
        Gemma2ForCausalLM,
        Gemma2Config,
        LLAMA | {"head_dim": 4, "sliding_window": 6, "final_logit_softcapping": 2.0},
    ),
    "gemma3": (  # with a rotation for each kind of layers
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        LLAMA
        | {"head_dim": 4, "sliding_window": 6}
        | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "cohere": (CohereForCausalLM, CohereConfig, LLAMA | {"logit_scale": 0.3}),
    "granite": (GraniteForCausalLM, GraniteConfig, LLAMA | {"logits_scaling": 3.0}),
    "mamba": (
        MambaForCausalLM,
        MambaConfig,
        {"hidden_size": 8, "num_hidden_layers": 2, "state_size": 4},
    ),
    "mamba2": (
        Mamba2ForCausalLM,
        Mamba2Config,
        {"hidden_size": 8, "num_hidden_layers": 2, "state_size": 4, "num_heads": 4}
        | {"head_dim": 4, "n_groups": 1, "chunk_size": 4},
    ),
    "bamba": (  # recurrent layers, and one that attends
        BambaForCausalLM,
        BambaConfig,
        LLAMA
        | {"mamba_n_heads": 4, "mamba_d_head": 4, "mamba_d_state": 4, "mamba_chunk_size": 4}
        | {"attn_layer_indices": [1]},
    ),
    "bert": (BertLMHeadModel, BertConfig, {"intermediate_size": 12} | WIDE),
}


def tiny(kind: str, vocabulary_size: int = 7, **settings: Any) -> Any:
    """Return a model in double precision that is sure of something."""
    architecture, config, usual = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = architecture(config(vocab_size=vocabulary_size, **NONE | usual | settings)).double()
        for weight in model.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.5)
    return model.eval()


TEXT = "The cat saw the dog, the dog saw the café. Él dijo: ¿qué niño? 🙂🎉 日本\n\n  x = 1\n" * 4


def byte_level(begin: bool = True, text: str = TEXT) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, as that of GPT-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>"] if begin else []
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    named = {"bos_token": "<s>"} if begin else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def sentence_piece() -> PreTrainedTokenizerFast:
    """Return a tokenizer that changes what it reads, as those made with SentencePiece."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<s>", *fallback],
        limit_alphabet=40,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


def written(folder: Path, kind: str, tokenizer: Any = None, **settings: Any) -> Path:
    """Write a model's folder, in float32, with a tokenizer."""
    tokenizer = tokenizer or byte_level()
    settings = {"vocabulary_size": len(tokenizer)} | settings
    tiny(kind, **settings).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
