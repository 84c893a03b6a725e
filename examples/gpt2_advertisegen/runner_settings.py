"""The configuration of FATE-LLM's Seq2SeqRunner, which a silo of this host and a job of FATE Flow are given alike."""

from __future__ import annotations

from typing import Any

from examples.gpt2_advertisegen.plan import ModelFacts, TrainingPlan

_OPTIMIZERS = {"adamw": "adamw_torch", "adafactor": "adafactor", "sgd": "sgd"}


def runner_settings(training: TrainingPlan, model: ModelFacts, model_settings: dict[str, Any]) -> dict[str, Any]:
    """What a FATE pipeline hands to a party.

    Args:
        training: hyper-parameters.
        model: where it lies, with its tokenizer.
        model_settings: how FATE's loader makes the model: module, item, arguments.
    """
    tokenizer = {"tokenizer_name_or_path": model.directory, "pad_token": model.pad_token}
    return {
        "algo": "fedavg",
        "model_conf": model_settings,
        "dataset_conf": {
            "module_name": "fate_llm.dataset.prompt_dataset",
            "item_name": "PromptDataset",
            "kwargs": {
                **tokenizer,
                "text_max_length": training.max_length,
                "max_prompt_length": training.max_length // 2,
                "num_proc": None,
            },
        },
        "data_collator_conf": {
            "module_name": "fate_llm.data.data_collator.cust_data_collator",
            "item_name": "get_seq2seq_data_collator",
            "kwargs": tokenizer,
        },
        "training_args_conf": _training_settings(training),
        "fed_args_conf": {"aggregate_strategy": "epoch", "aggregate_freq": 1, "aggregator": "secure_aggregate"},
        "task_type": "causal_lm",
        "save_trainable_weights_only": True,
    }


def _training_settings(training: TrainingPlan) -> dict[str, Any]:
    return {
        "num_train_epochs": training.rounds,
        "per_device_train_batch_size": training.micro_batch,
        "gradient_accumulation_steps": training.batch_size // training.micro_batch,
        "per_device_eval_batch_size": training.micro_batch,
        "learning_rate": training.learning_rate,
        "optim": _OPTIMIZERS[training.optimizer],
        "seed": training.seed,
        "data_seed": training.seed,
        "use_cpu": True,
        "evaluation_strategy": "epoch",
        "prediction_loss_only": True,
        # PELLM's forward takes **kwargs, so the trainer cannot tell which columns it needs
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "report_to": [],
    }


def lora_settings(rank: int) -> dict[str, Any]:
    """LoRA on the attention projections (c_attn), as FATE-LLM's PELLM takes it."""
    return {
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.05,
        "target_modules": ["c_attn"],
        "fan_in_fan_out": True,
    }
