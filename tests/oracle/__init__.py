"""Traced truth: peaks of real PyTorch model code on fake CUDA tensors (torch 2.13.0, transformers 5.23.0).

`suite.json` holds well-known models, `random.json` random small configurations (odd head counts, grouped and single
key-value heads, short and long sequences, micro-batch 1, every precision and optimizer), both of GPT-2, Llama, Mistral,
Qwen2 and BERT. `families.json` holds both kinds of rows of all other model types, `optimizers.json` random small
configurations with optimizers of other libraries (bitsandbytes 0.50.2) and with what is done around a step.

`selective.json` holds random configurations under selective checkpointing: torch.utils.checkpoint's
create_selective_checkpoint_contexts with mm, addmm, bmm and the fused attention kernels, every K-th block, and the
attention function of Transformers as a checkpoint of its own. `losses.json` holds random configurations with torchtune
0.6.1's CEWithChunkedOutputLoss, liger-kernel 0.8.5's fused linear cross-entropy (its own Python, with Triton kernels
that compute nothing), and logits cast to fp32. No byte of them came from this program.

`returned.json` holds the forward pass and loss of Transformers 4.38's Llama, which casts the logits itself and returns
them in fp32, around the model of 5.23, with the output held through backward.

`half_logits.json` holds random configurations whose `loss_function` was replaced by one that shifts a copy of the
logits and casts nothing, as models do that bring their code with them (Qwen/Qwen-7B, modeling_qwen.py).

`moe.json` holds mixtures of experts: the models of the profiles, whole and cut to a few blocks, and random
configurations. The meta function of `_grouped_mm` takes bf16 alone; for the traces it takes what the CUDA kernel takes
(aten/src/ATen/native/GroupedMMUtils.h). Gradients of `index`, `gather` and `topk` are written in place, as autograd
does for all tensors but those of subclasses (torch/csrc/autograd/FunctionsManual.cpp).

`adapters.json` holds random small configurations of every model type with frozen parts (requires_grad_(False)), with
LoRA, DoRA, IA3 and modules to save of peft 0.21.2, and with LoRA over layers of bitsandbytes 0.50.2, whose operators
ran as the composites of its CUDA backend (int8 without outliers), and Llama 3 8B with LoRA in the dtype of the model.

`frozen.json` and `adapted.json` hold the same of the other model types: parts with requires_grad_(False), and adapters
of peft 0.21.2. Rows whose strategy leaves one block to each checkpoint are not among them unless Transformers' own
switch made the checkpoints: it asks embeddings for gradients, which other ways to make the same checkpoints do not.

`quantized.json` holds LoRA over GPTQ layers of gptqmodel 7.7.0 (TritonV2Linear in training, placed as optimum 2.3.0
does), LoRA over layers of bitsandbytes 0.50.2 of the other model types, DoRA and IA3 over them, and the fused loss of
liger-kernel 0.8.5 with a frozen head. The function of gptqmodel that dequantizes is compiled; Inductor makes one kernel
and one buffer of it, which stands for it in the traces.

`adapters_more.json` holds adapters of Falcon, ChatGLM, CLIP, ResNet, over the head of ViT, and of models with experts,
whose weights PEFT adapts through parametrizations; there batched products have the copies that cuBLAS makes of matrices
without a stride of 1 (aten/src/ATen/native/cuda/Blas.cpp, prepare_batch_matrix_for_cublas).

`peft_more.json` holds biases of the model that are trained beside an adapter, LoRA over the table of the tokens and
over the head, trained rows of that table, copies of norms, and BAdam over LoRA; `peft_more_shared.json` the first of
these under DDP, FSDP2 and ZeRO.
`adapter_kinds.json` holds the adapters of peft 0.21.2 that came after those, as `get_peft_model` puts them on without a
task: AdaLoRA, VeRA, LoHa, LoKr, MiSS, BOFT (without its extension for CUDA, and without the numbers of its
permutations), HRA, FourierFT and RandLoRA, of each over several families, precisions and, where PEFT has it, layers of
bitsandbytes 0.50.2.

`liger.json` holds liger-kernel 0.8.5 in the modules of models that are there (its own Python, with Triton kernels that
compute nothing, on a GPU of 132 multiprocessors), each beside random other techniques.

`fused_lora.json` holds axolotl 0.19.0's fused LoRA, put into models by its own code (with Triton kernels that compute
nothing), and `fused_lora_shared.json` the same under DDP, FSDP2 and ZeRO. `tiled_mlp.json` and `tiled_mlp_shared.json`
hold MLPs that run in tiles, by its function, and under ZeRO by DeepSpeed 0.19.8's. `taught.json` has trl 1.16.0's loss
of distillation over two models, and `taught_from_file.json` axolotl 0.19.0's from saved log-probabilities (its own
Python).

`tiled.json` holds the head of trl 1.16.0 (its own Python, with Triton kernels that compute nothing) and the loss of its
SFTTrainer over it; every position counts as one of a completion.

`tiles.json` holds Llama 3.2 Vision beside random other techniques, and `sharded_tiles.json` the same under FSDP2.

`linear.json` holds Qwen3-Next, Qwen3.5 (with images too) and Ministral 3, whose blocks with linear attention ran by
PyTorch's own operators; a convolution of one dimension has the copy of what does not lie row by row
(aten/src/ATen/native/Convolution.cpp, _convolution), and padding by nothing is the copy that it is
with data (PadNd.cpp).

`state_spaces.json` holds Granite 4, Nemotron-H, Falcon-H1 and Bamba, whose state spaces ran by PyTorch's own operators,
beside random other techniques; `short_convolutions.json` holds LFM2, by PyTorch's own convolution, and
`sharded_spaces.json` both under FSDP2.

`block_kinds.json` holds Gemma 4: blocks with heads of two sizes, with experts beside their feed-forward layer, and with
inputs of their own and keys of blocks before them.
`decoders.json` holds decoders that differ little from Llama. xIELU ran by Transformers' own operators.
`sharded_decoders.json` holds the same under FSDP2.

`turns.json` holds blocks that are trained in turns: the optimizer of badam 1.4 in the last step before a switch, and
what Axolotl's callback for LISA freezes when every block has been trained before.

`other_optimizers.json` holds optimizers of bitsandbytes 0.50.2 in 8 bits, paged and with three moments, AdaLomo of
lomo-optim 0.1.1, GaLore over Adafactor, and optimizers that project and step in backward.

`lora_parts.json` holds LoRA of peft 0.21.2 of which one of the two matrices is frozen, and models whose attention,
MLPs, embeddings or heads are.

`halves.json` holds models of those other types cast to 16 bits under torch.autocast.

`galore.json` holds galore-torch 1.0's GaLoreAdamW over random configurations of many model types: the step that makes
new projections, and the peak of one that keeps them (`step_without_svd`). Beside what it returns, the decomposition has
the tensors of its CUDA kernel (a copy of the matrix, and what matrices up to 32 x 32 need), without the library's own.

`master.json` holds a fused step over an fp32 master copy of 16-bit weights, whose gradients are clipped by PyTorch's
clip_grad_norm_, or summed in fp32 buffers as Megatron's data-parallel module does, and clipped by the functions of
megatron-core 0.16.1 with what Transformer Engine's kernels allocate.

`policy.json` holds the step of TRL 1.16.0's GRPO over random configurations with other techniques: its head, its loss
up to the metrics, and a reference model that lies beside the policy and does not run in a step.
`preference_shared.json` holds that and preference training under DDP, FSDP2, where the reference is one unit, and
FSDP1. There the reference of GRPO has scored completions once before the step that is traced. `preference_zero.json`
holds it under ZeRO. With stage 3 the reference has an engine of its own and has run twice before that step: in the
second pass its small parameters come to stay.

`stepped_shared.json` holds LOMO and GaLore under FSDP2.

`optimizers_more.json` holds Adagrad, NAdam, RAdam, Adamax, Adadelta and ASGD of torch.optim, and optimizers of
schedulefree 1.4.1, torch-optimi 0.3.3 (with Triton kernels that compute nothing), grokadamw 0.1.2, came-pytorch 0.1.3,
prodigyopt 1.1.2 and axolotl 0.19.0, each beside random other techniques, in a step that is none of the first;
`optimizers_more_shared.json` the same under FSDP1, FSDP2 and ZeRO.

`every_type_shared.json` holds two steps under FSDP2, and `every_type_zero.json` one under ZeRO-3, of the types that had
no row of these: full checkpoints over bf16, and, of FSDP2, autocast with accumulation and no checkpoints.
`types_more.json` holds classifiers of Mistral 4, GPT-BigCode and Hunyuan-A13B, and Falcon-Mamba on one device.

`met_shared.json` holds what met in drawn jobs on several devices: optimizers of small libraries, ASGD and Adagrad over
the flat parts of ZeRO, Prodigy under FSDP2, and virtual tokens under ZeRO and FSDP1.

`pairs.json` holds random small configurations with several techniques at once, as each of them was traced alone;
preference training with an adapter has the model without it as the reference (TRL's use_adapter), which stores no
checkpoints. Reentrant checkpoints over frozen weights have embeddings that were asked for a gradient. A checkpoint that
holds one block alone is one of Transformers' own switch. `pairs_beside.json` holds evaluations and generations.

`precisions.json` holds models cast to 16 bits under torch.autocast, bitsandbytes' 32-bit optimizers over such models,
and torch.amp.GradScaler. `checkpoints.json` holds checkpoints with use_reentrant=True, and
torch.autograd.graph.save_on_cpu around the forward pass, with the bytes that it packs; pinned blocks are those bytes
rounded to powers of two, which no trace shows. `steps.json` holds optimizers in backward and after it, side by side.

Quantized rows of `litgpt.json` have weights that Fabric 2.6.6 makes fp16 first. Those that name a release of
bitsandbytes ran through the MatMul4Bit of 0.49.2; where it is 0.41.1, that function kept its input as the older one
does, and the rest, which differs in nothing that is allocated, is that of 0.49.2.

Rows of `families.json` with several blocks in one checkpoint: each block has the arguments (mask, rotary positions) of
its own kind; of a block that returns more than its hidden state, the rest lives until the next one has returned.

`fp8.json` and `fp8_more.json` hold small configurations whose linear layers, but for the head, are torchao 0.18's
Float8Linear (its own Python on fake tensors; the products are `torch._scaled_mm`).

`compile.json` and `compile_more.json` hold steps of models under torch.compile: Dynamo, AOTAutograd, the min-cut
partitioner and Inductor run on fake CUDA tensors for compute capability 8.0 (triton 3.9), and the wrapper code that
Inductor generates is executed with kernels that compute nothing, so that every allocation, reuse and release is its
own. Padding of products by benchmark (`shape_padding`) is off, which needs a GPU to decide.
"""
