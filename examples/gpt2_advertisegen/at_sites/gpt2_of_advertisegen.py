"""What every site's FATE loads the model by; its directory is on FATE Flow's PYTHONPATH. Needs FATE-LLM alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers


def whole(directory: str) -> torch.nn.Module:
    """For full tuning: FATE-LLM's runner does not call `load` of its model zoo's class."""
    from fate_llm.model_zoo.hf_model import HFAutoModelForCausalLM

    model: torch.nn.Module = HFAutoModelForCausalLM(directory).load()
    return model


def with_lora(directory: str, peft_config: Mapping[str, Any], seed: int) -> torch.nn.Module:
    """For LoRA: its first weights are drawn before FATE's trainer sets its seed; all clients start from the same."""
    from fate_llm.model_zoo.pellm.gpt2 import GPT2CLM

    transformers.set_seed(seed)
    model: torch.nn.Module = GPT2CLM(pretrained_path=directory, peft_type="LoraConfig", peft_config=dict(peft_config))
    return model
