"""Families that megatron-core computes with the blocks of GPT-2, Llama and Mixtral, and that nobody traced there."""

from __future__ import annotations

from vramplan.engines.megatron.model import Megatron


class Alike(Megatron):
    """GPTModel of StarCoder2, Gemma, ChatGLM, Phi-3, Nemotron and Qwen's experts."""

    untraced = True


FORWARD = Alike
