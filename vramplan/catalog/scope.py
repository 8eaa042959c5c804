"""Names of models and devices that vramplan does not model, and what to do instead: only a name that is not found reads
this."""

from __future__ import annotations

import re

from vramplan.tuples import NamedTuple


class Scope(NamedTuple):
    """Names that mean one kind of thing, which is not modelled."""

    pattern: str  # of a name in small letters, with - between its parts
    hint: str


DIFFUSION = (
    "diffusion models are not modelled; for these try the memory guides of diffusers, or kohya's sd-scripts and "
    "SimpleTuner, which list the memory of their presets"
)
SPEECH = (
    "of speech models Whisper, Wav2Vec2, HuBERT and WavLM are modelled, and models of text and images are, also from a "
    "config.json: "
    "`accelerate estimate-memory` gives the weights and Adam's states of any model of the hub"
)
RECURRENT = (
    "of state-space and recurrent models Mamba, Falcon-Mamba, Jamba, Granite 4, Nemotron-H, Nemotron 3, Falcon-H1 and "
    "Bamba are modelled, also from a config.json: "
    "`accelerate estimate-memory` gives the weights and Adam's states of any model of the hub"
)
HYBRID = (
    "its blocks have linear attention, short convolutions or a state space in the place of most attention, which is "
    "not modelled but for Qwen3-Next, Qwen3.5, Granite 4, Nemotron-H, Nemotron 3, Falcon-H1, Bamba, Jamba and LFM2; "
    "these are, and transformers, also from a config.json: "
    "`accelerate estimate-memory` gives its weights and Adam's states"
)
VISION_LANGUAGE = (
    "of models that take images and text together LLaVA, LLaVA-NeXT, LLaVA-OneVision, Llama 3.2 Vision, Qwen2-VL, "
    "Qwen2.5-VL, Qwen3-VL, Qwen3.5, Gemma 3, PaliGemma, InternVL, Idefics3, SmolVLM and Mistral 3 are modelled; give "
    "the config.json of the text part, or the text model of the same size"
)
GGUF = "vramplan plans training only, and a GGUF file is for serving: try gguf-parser, or llama.cpp's llama-fit-params"
DETECTION = (
    "detectors and segmenters are not modelled; of models of images ViT, DeiT, DINOv2, BEiT, Swin, "
    "ConvNeXt and ConvNeXt V2, ResNet, CLIP and SigLIP are"
)
ENCODER = (
    "of encoders of text BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA, ALBERT, MPNet, Nomic BERT, "
    "EuroBERT, DeBERTa v2 and v3, ModernBERT and ESM-2 are modelled: ask about one of the same sizes, as "
    "bert-base-uncased"
)
PAIR = (
    "of encoder-decoders T5, mT5, BART, mBART, M2M100, PEGASUS, Marian and Whisper are modelled: ask about one of the "
    "same sizes, as t5-base"
)
LATER_GEMMA = "Gemma 3n and Gemma 4 are modelled, whose text is gemma3n_text and gemma4_text"
PROTEINS = "of models of proteins ESM-2 is modelled"
CLOSED = "its weights are not public; models that can be trained are listed by `vramplan models`"

MODELS = (
    Scope(r".*\.gguf|.*-gguf(-.*)?|.*\bq[2-8]-(k|0|1)(-[sml])?", GGUF),
    Scope(
        r"(.*/)?(sd(xl|3|-?1|-?2|-turbo)?([-.\d].*)?|.*stable-?(video-)?diffusion.*|flux([-.\d].*)?|pixart.*|kandinsky.*"
        r"|sana-.*|wan-?2.*|hunyuan-?(video|dit).*|cogvideo.*|ltx-.*|qwen-image.*|auraflow.*|wuerstchen.*|.*controlnet.*"
        r"|.*diffusion.*|z-image.*)",
        DIFFUSION,
    ),
    Scope(
        r"(.*/)?(wav2vec(?!2).*|wav2vec2-(bert|conformer).*|unispeech.*|moonshine.*|voxtral-(?!mini-3b).*|seamless.*|.*-tts.*|parakeet.*|canary.*|bark.*|musicgen.*"
        r"|xtts.*)",
        SPEECH,
    ),
    Scope(
        r"(.*/)?(lfm-?[23](?!-vl-(450m|1\.6b)|-8b-a1b).*(vl|audio|a[12]b|moe|colbert|retriever).*|lfm-?3.*|kimi-linear.*|minimax-text.*|plamo-2.*|olmo-hybrid.*|ring-.*linear.*)",
        HYBRID,
    ),
    Scope(
        r"(.*/)?((?!mamba-(130m|370m|790m|1\.4b|2\.8b)|jamba-(v0\.1|1\.5-large)|falcon-mamba-7b$)(.*mamba.*|jamba.*)|rwkv.*"
        r"|.*recurrentgemma.*|hyena.*|xlstm.*|zamba.*)",
        RECURRENT,
    ),
    Scope(
        r"(.*/)?(?!qwen(2(\.5)?|3)-vl-\d|llama-?3\.2-\d+b-vision|lfm2-vl-(450m|1\.6b)|paddleocr-vl$"
        r"|smolvlm2?(-(256m|500m|2\.2b))?$|idefics3-8b(-llama3)?$"
        r"|pixtral-12b|internvl3(\.5)?-\d+b$|paligemma(-3b|2-(3b|10b|28b))-(pt|mix)-\d+$)(.*[-.\d]vl\b.*|.*-vision.*|paligemma.*|idefics.*|smolvlm.*|pixtral.*|blip.*|internvl.*"
        r"|.*[-.\d]vl\d.*|minicpm-?[vo]-?.*|janus.*|cogvlm.*|ovis.*|.*-omni.*|florence.*|molmo.*|openvla.*|.*-vla(-.*)?|pi0.*)",
        VISION_LANGUAGE,
    ),
    Scope(
        r"(.*/)?(yolo.*|(rt-?|deformable-?|conditional-?)?detr.*|(mask|faster)-?r-?cnn.*|retinanet.*|sam2?(-.*)?"
        r"|segment-anything.*|segformer.*|mit-b[0-5]|upernet.*|dpt-.*|depth-anything.*|mask2?former.*|grounding-dino.*|owlv?i?t?2?-.*)",
        DETECTION,
    ),
    Scope(
        r"(.*/)?(longformer-.*|layoutlm.*|big-?bird-(?!pegasus).*|canine-.*|mobilebert.*|squeezebert.*|funnel-.*"
        r"|luke-.*|fnet-.*|xlnet-.*)",
        ENCODER,
    ),
    Scope(r"(.*/)?(led-.*|long-?t5-.*|umt5-.*|prophetnet-.*|blenderbot.*|plbart-.*|big-?bird-pegasus.*)", PAIR),
    Scope(r"(.*/)?(gpt-?(3\.5|4|5).*|chatgpt.*|o[134](-.*)?|claude.*|gemini.*|grok-?[34].*)", CLOSED),
)

APPLE = "Apple's GPUs are not modelled: PyTorch's MPS allocator and the kernels of MLX differ from CUDA's"
TPU = "TPUs are not modelled: XLA plans memory for the whole program, and no caching allocator serves it"
GAUDI = "Gaudi is not modelled: its graph compiler plans memory, and no CUDA allocator serves it"
INTEL = "Intel's GPUs are not modelled: the allocator and the context of PyTorch's XPU backend are not known here"
RADEON = (
    "AMD's APUs and Radeon cards are not modelled, its Instinct MI100 to MI355X are; a size such as '24 GiB' gives an "
    "estimate with the context of an NVIDIA card"
)
_OLD = "a size such as '12 GiB' with --precision fp32 --attention efficient gives an estimate"
MAXWELL = f"Maxwell cards have no profile, and only builds of PyTorch for CUDA 12.6 and before run on them; {_OLD}"
KEPLER = f"Kepler cards have no profile, and neither CUDA 12 nor present builds of PyTorch run on them; {_OLD}"
TRAINIUM = "Trainium and Inferentia are not modelled: the Neuron compiler plans their memory"

GPUS = (
    Scope(r"(google-?)?colab(-?(free|t4))?", "Colab's free GPU is a T4 with 16 GB: --gpu t4; paid ones: l4, a100-40gb"),
    Scope(r"colab-?(pro|plus).*", "Colab's paid GPUs: --gpu l4, --gpu a100-40gb or --gpu t4"),
    Scope(r"kaggle.*", "Kaggle has two T4 or one P100: --gpu 2xt4 or --gpu p100"),
    Scope(r"(apple.*|mps|mlx|m[1-5](-?(pro|max|ultra))?([- ].*)?|mac.*)", APPLE),
    Scope(r"(google-?)?(cloud-?)?(tpu.*|v[2-6][ep]?-\d+|trillium.*|ironwood.*)", TPU),
    Scope(r"(intel-?)?(habana.*|gaudi.*|hpu.*)", GAUDI),
    Scope(r"(intel.*|arc-?[ab]\d+.*|arc|xpu|max-?1[15]\d\d.*|ponte-?vecchio.*|flex-?1[47]0.*|b5[78]0|a7[57]0)", INTEL),
    Scope(
        r"(amd-?)?(radeon.*|(rx-?)?[5-9]\d\d\d-?xtx?|rx-?[5-9]\d\d\d.*|w[67][689]00.*|rdna.*|vega.*|strix.*|ryzen.*"
        r"|80[56]0s|(instinct-?)?mi-?(6|8|25|50|60)(-\d+gb)?)",
        RADEON,
    ),
    Scope(
        r"(nvidia-)?((geforce-)?gtx-?)?(9[5-8]0(-?ti)?m?)(-\d+gb)?|(nvidia-)?(tesla-)?m(4|6|40|60)(-\d+gb)?", MAXWELL
    ),
    Scope(r"(nvidia-)?(tesla-)?k(10|20|40|80)[cmx]?(-\d+gb)?|((geforce-)?gtx-?)?7[5-8]0(-?ti)?", KEPLER),
    Scope(r"(nvidia-)?(cmp-?\d+hx|p10[246]-\d+)(-\d+gb)?", "cards for mining have no profile: --gpu '8 GiB' is a size"),
    Scope(r"(aws-?)?(trn\d.*|inf\d.*|trainium.*|inferentia.*)", TRAINIUM),
    Scope(
        r"(.*\bmig\b.*|.*\d+g\.\d+gb(\+.*)?)",
        "the part of a GPU that MIG gives is a size: --gpu '19.5 GiB', as nvidia-smi has it",
    ),
    Scope(r"cuda(:\d+)?|gpu(:?\d+)?", "the GPU of this machine is --gpu local, the second of several local:1"),
    Scope(r"cpu", "training on a CPU is not modelled; states that live on the host are: --offload optimizer"),
    Scope(r"(g4dn|p3)([-.].*)?", "an AWS instance: g4dn has --gpu t4, p3 has --gpu v100-16gb"),
    Scope(
        r"(g5|g6e?|p4de?|p5e?n?)([-.].*)?",
        "an AWS instance: g5 has --gpu a10g, g6 l4, g6e l40s, p4d a100-40gb, p4de a100-80gb, p5 h100, p5e h200",
    ),
    Scope(
        r"(a[2-4]x?|g[24])-(standard|high|mega|ultra|edge).*",
        "a machine type of Google Cloud: a2-highgpu has --gpu a100-40gb, a2-ultragpu a100-80gb, a3-highgpu h100, "
        "a3-ultragpu h200, g2 l4; the number at the end of a2 and a3 is that of the GPUs",
    ),
    Scope(
        r"(standard-)?n[cdgv]\d+.*v\d+",
        "a size of Azure: NC with A100 has --gpu a100-pcie-80gb, ND96asr a100-40gb, ND96amsr a100-80gb, ND H100 h100",
    ),
    Scope(
        r"(huawei-)?ascend.*|910[abc].*", "Ascend NPUs are not modelled: their kernels and their allocator are others"
    ),
)

KINDS = {"models": MODELS, "gpus": GPUS}


def out_of(kind: str, name: str) -> str | None:
    """Why a name is not modelled, and what to do; None where nothing is known of it."""
    word = re.sub(r"[\s_]+", "-", name.strip().lower())[:200]
    return next((one.hint for one in KINDS.get(kind, ()) if re.fullmatch(one.pattern, word)), None)
