"""torchtune on tensors without data: its builders, its adapters, its losses and `fully_shard` as its recipes have them.

Source: torchtune 0.6.1, recipes/full_finetune_single_device.py, recipes/full_finetune_distributed.py and the two of
LoRA; recipes cannot be imported, so that what they do with the library is written anew.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.traces.fsdp2 import last_reduces
from tests.traces.programs import Program
from vramplan.errors import UsageError
from vramplan.values.job import Adapter, ResolvedJob
from vramplan.values.model import ModelShape
from vramplan.values.parallel import FSDP

IGNORED = -100  # a label
NAMES = {"o_proj": "output_proj"}  # of linear layers, where torchtune's are others
UNITS = {
    "blocks": None,
    "embedding": ["tok_embeddings"],
    "head": ["output"],
    "embedding-and-head": ["tok_embeddings", "output"],
}
"""What recipes have as `custom_sharded_layers`."""

DIVERGENCES = {"forward-kl": "ForwardKL", "reverse-kl": "ReverseKL", "symmetric-kl": "SymmetricKL"}
KD_RATIO = 0.5
MLP = {"gate_proj", "up_proj", "down_proj"}


class Torchtune(Program):
    """A recipe: full or LoRA, on one device or sharded."""

    PACKAGE = "torchtune"
    KINDS = (FSDP,)
    PRECISIONS = ("fp32", "pure-bf16")
    TYPES = ("llama", "mistral")
    COMPILES = True

    def check(self) -> None:
        """Beside what no program has, adapters that are no LoRA, and weights in 4 bits."""
        super().check()
        job = self.job
        if job.adapter is not None and (job.adapter.kind != "lora" or job.adapter.modules_to_save):
            raise UsageError(f"the rig has no {job.adapter.kind} of this kind", key="adapter")
        if job.adapter is not None and {*job.adapter.targets} & MLP not in (set(), MLP):
            raise UsageError("torchtune adapts all layers of an MLP or none", key="adapter")
        if job.quantization is not None:
            raise UsageError("the rig has no weights in 4 bits", key="quantization")
        if job.activation_checkpointing not in ("none", "full"):
            raise UsageError("a recipe checkpoints every block or none", key="activation_checkpointing")
        if job.teacher is not None and not (job.teacher.transformers_model_type in self.TYPES and job.adapter):
            raise UsageError("the rig has the recipe of LoRA, and teachers of the same types", key="teacher")
        if job.loss.partition(":")[0] not in ("standard", "chunked"):
            raise UsageError("the rig has the two losses of the recipes", key="loss")
        if job.compile and job.teacher is not None:
            raise UsageError("the rig compiles one model alone", key="compile")

    def skeleton(self) -> Any:
        """The builder's model, checkpointed; beside adapters all else is frozen."""
        import torch
        from torchtune import modules, training
        from torchtune.modules import peft

        job = self.job
        with training.set_default_dtype(self.dtype), torch.device("meta"):
            model = _rounded(job, self._built(job.model, job.adapter))
            self.teacher = None if job.teacher is None else self._built(job.teacher, None).eval()
        if job.model.tied_embeddings:  # of the builders here that of Llama 3.2 alone has it; it is the same for all
            del model.output
            model.output = modules.TiedLinear(model.tok_embeddings)
        if job.adapter is not None:
            peft.set_trainable_params(model, peft.get_adapter_params(model))
        if job.compile:  # each layer, inside of its checkpoint
            training.compile_model(model, verbose=False)
        if job.activation_checkpointing == "full":
            training.set_activation_checkpointing(model, auto_wrap_policy={modules.TransformerSelfAttentionLayer})
        return model

    def shard(self, skeleton: Any) -> Any:
        """Each layer that `get_shard_conditions` finds, and the whole; `no_sync` is not of the recipes of 0.6.1."""
        from torchtune import training

        assert self.job.sharding is not None
        for one in (skeleton, self.teacher):
            if one is None:
                continue
            names = UNITS[self.job.sharding.units]
            training.shard_model(
                model=one,
                shard_conditions=[partial(training.get_shard_conditions, names_to_match=names)],
                cpu_offload=False,
                reshard_after_forward=True,
                dp_mesh=self.mesh,
            )
        if self.job.sharding.no_sync:
            last_reduces(skeleton, self.micro_steps)
        return skeleton

    @property
    def dtype(self) -> Any:
        """Of all weights."""
        import torch

        return torch.float32 if self.job.precision == "fp32" else torch.bfloat16

    def _built(self, shape: ModelShape, adapter: Adapter | None) -> Any:
        from torchtune.models import llama2, mistral

        module = {"llama": llama2, "mistral": mistral}[shape.transformers_model_type]
        sizes = {
            "vocab_size": shape.vocabulary_size,
            "num_layers": shape.layers,
            "num_heads": shape.attention_heads,
            "num_kv_heads": shape.key_value_heads,
            "embed_dim": shape.hidden_size,
            "max_seq_len": shape.max_positions,
            "intermediate_dim": shape.intermediate_size,
        }
        name = shape.transformers_model_type.replace("llama", "llama2")
        if adapter is None:
            return getattr(module, name)(**sizes)
        inside = [NAMES.get(one, one) for one in adapter.targets if one not in MLP]
        return getattr(module, f"lora_{name}")(
            inside,
            apply_lora_to_mlp=bool({*adapter.targets} & MLP),
            **sizes,
            lora_rank=adapter.rank,
            lora_alpha=adapter.alpha or 2 * adapter.rank,
            lora_dropout=adapter.dropout,
        )

    def place(self, skeleton: Any) -> Any:
        """On the device, and rotary positions made there; the teacher too."""
        model = self._placed(skeleton)
        if self.teacher is not None:
            self.teacher = self._placed(self.teacher)
        return model

    def _placed(self, skeleton: Any) -> Any:
        import torch
        from torchtune import training

        model = skeleton.to_empty(device="cuda")
        with training.set_default_dtype(self.dtype), torch.device("cuda"):
            for module in model.modules():
                if hasattr(module, "rope_init"):
                    module.rope_init()
        return model

    def prepare(self, model: Any) -> None:
        """The loss, and the labels behind the last tokens."""
        import torch
        from torchtune import training
        from torchtune.modules.loss import CEWithChunkedOutputLoss

        super().prepare(model)
        word, _, chunks = self.job.loss.partition(":")
        self.loss: Any = torch.nn.CrossEntropyLoss(ignore_index=IGNORED)
        if word == "chunked":
            self.loss = CEWithChunkedOutputLoss(int(chunks))
            model.set_num_output_chunks(int(chunks))
        if self.job.compile:
            compiled = training.compile_loss(self.loss, verbose=False)
            # lora_finetune_single_device.py alone takes what compile_loss gives
            if self.job.adapter is not None and self.mesh is None:
                self.loss = compiled
        if self.teacher is not None:
            self._compare(word, chunks)
        self.behind = torch.full((self.tokens.shape[0], 1), IGNORED, device="cuda")

    def _compare(self, word: str, chunks: str) -> None:
        """The divergence from the teacher, in as many chunks."""
        from torchtune.modules import loss

        name = DIVERGENCES[self.job.distillation or ""]
        self.kd_loss: Any = getattr(loss, f"{name}Loss")()
        if word == "chunked":
            self.kd_loss = getattr(loss, f"{name}WithChunkedOutputLoss")(int(chunks))
            self.teacher.set_num_output_chunks(int(chunks))

    def _taught(self, labels: Any, logits: Any, teacher_logits: Any) -> Any:
        """Both losses: what the first of them counts is not nothing."""
        self.truth.value = False
        kd_loss = self.kd_loss(logits, teacher_logits, labels)
        self.truth.value = True
        class_loss = self.loss(logits, labels)
        return (1 - KD_RATIO) * class_loss + KD_RATIO * kd_loss

    def forward(self) -> tuple[Any, Any]:
        """`_loss_step`; that of several micro-steps is divided here, where recipes multiply by the number of tokens."""
        import torch

        logits, teacher_logits = self.model(tokens=self.tokens), None
        if self.teacher is not None:
            with torch.no_grad():
                teacher_logits = self.teacher(self.tokens)
        labels = torch.hstack((self.labels[..., 1:], self.behind[: self.labels.shape[0]]))
        if not isinstance(logits, list):
            labels = labels.reshape(-1)
            logits = logits.reshape(-1, logits.size(-1))
            if teacher_logits is not None:
                teacher_logits = teacher_logits.reshape(-1, teacher_logits.size(-1))
        if teacher_logits is not None:
            return logits, self._taught(labels, logits, teacher_logits)
        return logits, self.loss(logits, labels)


def _rounded(job: ResolvedJob, model: Any) -> Any:
    """Quantization-aware training, as the two recipes that have it prepare a model.

    QATLoRALinear asks for a class by the name that it had until torchao 0.13.
    """
    if job.qat is None:
        return model
    from torchao.quantization.qat import IntxFakeQuantizeConfig, api, fake_quantizer
    from torchtune.training import quantization

    api.FakeQuantizeConfig = IntxFakeQuantizeConfig
    fake_quantizer.FakeQuantizer = fake_quantizer.IntxFakeQuantizer

    kind = "Int4WeightOnlyQATQuantizer" if job.qat.activations is None else "Int8DynActInt4WeightQATQuantizer"
    quantizer = getattr(quantization, kind)(job.qat.group_size)
    quantizer.precision = next(model.parameters()).dtype
    if job.adapter is None:
        return quantizer.prepare(model)
    configs = quantizer.get_activation_fake_quantize_config(), quantizer.get_weight_fake_quantize_config()
    quantization.swap_lora_linear_with_qat(model, *configs)
    return model


PROGRAM = Torchtune
