"""The model: built from its configuration or loaded from the user's directory, with or without LoRA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import tokenizers
import torch
from transformers import AutoConfig, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from examples.gpt2_advertisegen.options import ModelShape
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with at most `vocabulary` tokens, trained on the texts."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, vocab_size=vocabulary, min_frequency=2, show_progress=False, special_tokens=[END_OF_TEXT]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )


def build_model(shape: ModelShape, end_of_text: int, seed: int) -> GPT2LMHeadModel:
    """A GPT-2 of this shape with random weights, the same for the same seed."""
    torch.manual_seed(seed)
    config = GPT2Config(
        n_layer=shape.layers,
        n_head=shape.heads,
        n_embd=shape.width,
        n_positions=shape.positions,
        vocab_size=shape.vocabulary,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        pad_token_id=end_of_text,
    )
    return GPT2LMHeadModel(config)


def check_pretrained(directory: Path, max_length: int) -> str:
    """Make sure that the user's directory holds a GPT-2 and a tokenizer; its end-of-text token, for padding.

    Raises:
        ConfigError: CONFIG_UNREADABLE or CONFIG_BAD_VALUE.
    """
    remedy = "--model names a directory written by save_pretrained: config.json, weights and tokenizer of a GPT-2."
    if not (directory / "config.json").is_file():
        raise ConfigError(ErrorCode.CONFIG_UNREADABLE, f"{directory} has no config.json.", remedy)
    try:
        config = AutoConfig.from_pretrained(directory)
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(ErrorCode.CONFIG_UNREADABLE, f"cannot load {directory}: {error}.", remedy) from error
    if config.model_type != "gpt2" or tokenizer.eos_token is None:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE, f"{directory} holds a {config.model_type!r}, not a usable GPT-2.", remedy
        )
    if max_length > config.n_positions:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"--max-length {max_length} is more than the {config.n_positions} positions of the model.",
            "Lower --max-length.",
        )
    return str(tokenizer.eos_token)


def load_whole_model(directory: str) -> torch.nn.Module:
    """For full tuning: the model as FATE-LLM's model zoo loads it, every parameter trainable."""
    from fate_llm.model_zoo.hf_model import HFAutoModelForCausalLM

    model: torch.nn.Module = HFAutoModelForCausalLM(directory).load()
    return model


def trainable_state(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """The parameters that training changes, by name, contiguous and on the CPU."""
    return {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
