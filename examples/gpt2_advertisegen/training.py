"""One silo's part in the FATE-LLM job: its runner, and what is watched while it trains."""

from __future__ import annotations

import hashlib
from typing import Any

from fate.arch import Context
from fate.components.core import Role
from fate_llm.runner.homo_seq2seq_runner import Seq2SeqRunner
from fate_utils.secure_aggregation_helper import RandomMix
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from examples.gpt2_advertisegen.plan import CLIENTS, SiloConfig
from examples.gpt2_advertisegen.runner_settings import lora_settings, runner_settings
from fedrdma_fate.obs.trace import Trace


class WatchedRunner(Seq2SeqRunner):  # type: ignore[misc]  # FATE has no types
    """FATE-LLM's Seq2SeqRunner with callbacks of our own on the client's trainer."""

    def __init__(self, callbacks: list[TrainerCallback], **settings: Any) -> None:
        super().__init__(**settings)
        self._callbacks = callbacks

    def client_setup(self, *args: Any, **kwargs: Any) -> Any:
        """FATE-LLM's trainer; our callbacks come behind FATE's, so that they see what those have done."""
        trainer = super().client_setup(*args, **kwargs)
        for callback in self._callbacks:
            trainer.add_callback(callback)
            if isinstance(callback, Masking):
                callback.trainer = trainer
        return trainer


class RoundEvents(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Reports rounds, steps and losses. A round is an epoch: steps, aggregation, aggregation of the loss."""

    def __init__(self, events: Trace) -> None:
        self._events = events
        self._round = 0

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, _: TrainerControl, **__: Any) -> None:
        """A round begins."""
        self._events.emit("round-begin", round=self._round, steps=state.max_steps // args.num_train_epochs)

    def on_step_end(self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any) -> None:
        """An optimizer step is done."""
        self._events.emit("step", round=self._round, step=state.global_step)

    def on_log(self, _: TrainingArguments, state: TrainerState, *__: Any, **___: Any) -> None:
        """A training loss ends the round; an evaluation loss comes after it."""
        latest = state.log_history[-1]
        if "loss" in latest:
            self._events.emit("round-end", round=self._round, loss=latest["loss"])
        if "eval_loss" in latest:
            self._events.emit("evaluated", round=self._round, loss=latest["eval_loss"])
            self._round += 1


class Masking(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Sets up the masks of secure aggregation, once FATE has made its aggregators.

    With a seed, masks come from it: FATE draws its Diffie-Hellman keys from the operating system, and nothing can seed
    them. The masks cancel, but only up to the last bits of a float64, so that two runs with the same seeds may differ
    in the last bit of a weight. The key exchange still takes place; only its result is put aside.
    """

    def __init__(self, seed: int | None) -> None:
        """
        Args:
            seed: where masks come from; None leaves FATE's own.
        """
        self._seed = seed
        self.trainer: Any = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Behind FATE's callbacks, which make the aggregators."""
        client = self.trainer.aggregator._aggregator
        if self._seed is not None:
            rank = self.trainer.ctx.local.rank
            client.model_aggregator._mixer = seeded_mixer(self._seed, "model", rank)
            client.loss_aggregator._mixer = seeded_mixer(self._seed, "loss", rank)
        frugal = FrugalMixer(client.model_aggregator._mixer)
        client.model_aggregator._mixer = frugal
        self.trainer.ctx.federation.before_get = frugal.drop_sent


def seeded_mixer(seed: int, purpose: str, rank: int) -> RandomMix:
    """FATE's mixer for the client of this rank, with secrets that both ends of each pair derive from the seed."""
    secrets = {}
    for peer in range(len(CLIENTS)):
        if peer != rank:
            text = f"{seed}/{purpose}/{min(rank, peer)}/{max(rank, peer)}"
            secrets[peer] = hashlib.sha256(text.encode()).digest()
    return RandomMix(secrets, rank)


class FrugalMixer:
    """Masks array by array, lets go of each as soon as it is masked, and of the masked ones once they are sent.

    FATE would hold all of them until the aggregate has come. The masks are the same; for full GPT-2 it saves a silo
    1 GB while it masks and 3 GB while it waits.
    """

    def __init__(self, mixer: Any) -> None:
        self._mixer = mixer
        self._masked: list[Any] = []

    def mix(self, arrays: list[Any], weight: float) -> list[Any]:
        """Masked pairs; `arrays` is emptied, which FATE does not look at again."""
        self._masked = []
        for index, array in enumerate(arrays):
            arrays[index] = None
            self._masked.append(self._mixer.mix_one(array, weight))
        return self._masked

    def drop_sent(self) -> None:
        """Empty the list that `mix` returned, once FATE has sent it."""
        self._masked.clear()


def run_client(config: SiloConfig, context: Context, events: Trace) -> Any:
    """Train as guest or host; the trained model."""
    masking = Masking(config.training.seed if config.training.masks == "seeded" else None)
    runner = _runner(config, context, [RoundEvents(events), masking])
    runner.train(str(config.files.train), str(config.files.held_out), output_dir=None)
    return runner.trainer.model


def run_server(config: SiloConfig, context: Context) -> None:
    """Aggregate as arbiter."""
    _runner(config, context, []).train()


def _runner(config: SiloConfig, context: Context, callbacks: list[TrainerCallback]) -> WatchedRunner:
    settings = runner_settings(config.training, config.model, _model_settings(config))
    runner = WatchedRunner(callbacks, **settings)
    runner.set_context(context)
    runner.set_role(Role.from_str(config.party.role))
    return runner


def _model_settings(config: SiloConfig) -> dict[str, Any]:
    if config.training.tuning == "full":
        return {
            "module_name": "examples.gpt2_advertisegen.model",
            "item_name": "load_whole_model",
            "kwargs": {"directory": config.model.directory},
        }
    return {
        "module_name": "fate_llm.model_zoo.pellm.gpt2",
        "item_name": "GPT2CLM",
        "kwargs": {
            "pretrained_path": config.model.directory,
            "peft_type": "LoraConfig",
            "peft_config": lora_settings(config.training.lora_rank),
        },
    }
