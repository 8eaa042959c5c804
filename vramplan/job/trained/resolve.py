"""What a job trains: frozen parts, an adapter, quantized weights. Names are checked against those of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from vramplan.catalog.fields import Fields, nearest, shown
from vramplan.job.given.read import RawJob
from vramplan.job.trained import adapter_beside as beside
from vramplan.job.trained import adapter_ends, adapter_norms, virtual_tokens
from vramplan.job.trained.adapter_fit import check_bias, check_element_types, check_layers, check_shards, check_widths
from vramplan.job.trained.adapter_targets import (
    all_of,
    by_leaf,
    check_saved,
    check_targets,
    ends_of,
    fused_targets,
    is_known,
    joined_targets,
    known_targets,
    layers_of,
    peft_of,
)
from vramplan.job.trained.parts import resolve_parts
from vramplan.job.trained.quantized import check_gptq_layers, check_quantization
from vramplan.options import words
from vramplan.replay.models import is_own_code
from vramplan.replay.models.capable import may_miss_adapter, no_all_linear
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD, LAYERS
from vramplan.replay.techniques.adapters import (
    ALL_LINEAR,
    CLASSIFIERS,
    GPTQ,
    LORA_PARTS,
    SCORE,
    UNQUANTIZED,
    is_saved_as,
    leaf,
)
from vramplan.replay.techniques.evidence import adaptable, freezable, gptq_quantizable
from vramplan.replay.techniques.frozen import matches
from vramplan.replay.techniques.trained import Names, is_adapter_reached, is_reached, names_of
from vramplan.values.adapter_kinds import KINDS, lacks
from vramplan.values.job import Adapter, Assumption
from vramplan.values.model import ModelShape
from vramplan.values.parallel import ZERO_STAGES

Q_AND_V = ("q_proj", "v_proj")
Trained = tuple[tuple[str, ...], Adapter | None, list[Assumption]]


def resolve_trained(
    raw: RawJob,
    model: ModelShape | None,
    precision: str,
    loss: str,
    *,
    joined: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    usual: Sequence[str] = (),
    rank: int | None = None,
) -> Trained:
    """Frozen parts, the adapter, and what was assumed; what is wrong goes to the sink of the job's fields.

    `joined`: layers by other names of their parts. `usual`: the targets of the program, and `rank` its rank.
    """
    fields, told = raw.fields, list[Assumption]()
    if raw.quantization is not None:
        check_quantization(raw, model, precision, told)
    if model is None:
        return (), None, told
    if raw.activation_checkpointing == words.OPTIMAL:
        message = f"{words.OPTIMAL} is modelled only where every weight is trained"
        fields.refuse("activation_checkpointing", message, hint="use sqrt, full or every:K")
    if model.published_family is None and _not_traced(raw, model):
        return (), None, told
    if raw.checkpoint_reentrant:
        told.append(Assumption("checkpoint_reentrant", True, beside.ASKED))
    names = names_of(model)
    if raw.adapter is None:
        raw.frozen = resolve_parts(raw.frozen, model, names, told, raw.fields)
        _frozen(raw, model, names, loss)
        return raw.frozen, None, told
    if raw.quantization == GPTQ:
        check_gptq_layers(raw, model, names)
    frozen = _frozen_of_adapter(raw)
    if joined and raw.adapter_targets:
        raw.adapter_targets = joined_targets(layers_of(model, names), raw.adapter_targets, joined, told)
    reader = _Adapter(raw, raw.adapter, model, names, precision, told, tuple(usual), rank)
    if reader.kind in words.VIRTUAL_TOKENS:
        saved, dtype = reader.modules_to_save(), reader.dtype()
        made = virtual_tokens.adapter_of(raw, raw.adapter, model, loss, told, saved=saved, dtype=dtype)
        return frozen, made, told
    adapter = reader.adapter()
    adapter_ends.check(raw, raw.adapter, model, names, adapter, loss, told)
    is_foreign = model.engine is not None and not adapter.rank  # no engine's own code has a kind without a rank
    may_miss = may_miss_adapter(model.family) and not is_foreign
    if may_miss and not fields.sink.refusals and not is_adapter_reached(model, adapter, frozen):
        raw.adapter.refuse("targets", "nothing that the loss depends on is trained", hint="name a further layer")
    return frozen, adapter, told


def _frozen_of_adapter(raw: RawJob) -> tuple[str, ...]:
    """Of LoRA one of the two thin matrices; the model is frozen anyway. Blocks that wait for their turn are none."""
    fields = raw.fields
    assert raw.adapter is not None
    if raw.trained_blocks not in (None, "all"):
        return raw.frozen
    if any(word not in LORA_PARTS for word in raw.frozen):
        hint = f"leave frozen out; of lora itself {' or '.join(LORA_PARTS)} may be frozen"
        fields.refuse("frozen", "an adapter freezes the whole model", hint=hint)
    elif raw.frozen and raw.adapter_kind and not (raw.adapter_kind in KINDS and KINDS[raw.adapter_kind].is_lora):
        message = f"{', '.join(raw.frozen)} belongs to LoRA: {raw.adapter_kind} has none"
        fields.refuse("frozen", message, hint="leave it out, or kind lora")
    elif len(set(raw.frozen)) == len(LORA_PARTS):
        fields.refuse("frozen", "nothing is left to train", hint="leave one of the two out")
    return raw.frozen


def _not_traced(raw: RawJob, model: ModelShape) -> bool:
    """Refuse what the code of a training program was never traced with, as it may have none for it, and GPTQ's layers.

    What gptqmodel replaces depends on the code around it. In the code of Transformers parts of any model are frozen,
    and PEFT and bitsandbytes take any layer of a kind: what has no row there is answered, and said (never_traced.py).
    """
    is_own = model.engine is not None
    given = [
        ("frozen", "frozen parts are", freezable, is_own and bool(raw.frozen)),
        ("adapter", "an adapter is", adaptable, is_own and raw.adapter is not None),
        ("quantization", f"{raw.quantization} is", adaptable, is_own and raw.quantization not in (None, GPTQ)),
        ("quantization", f"{GPTQ} is", gptq_quantizable, raw.quantization == GPTQ),
    ]
    refused, model_type = False, model.transformers_model_type
    for key, what, known, asked in given:
        if asked and model_type not in known():
            raw.fields.refuse(key, f"{what} not modelled for {model_type} (modelled: {', '.join(known())})")
            refused = True
    return refused


def _frozen(raw: RawJob, model: ModelShape, names: Names, loss: str) -> None:
    """Every word names a part of the model, and something is left to train."""
    fields = raw.fields
    tied = model.tied_embeddings and model.task != "cls"
    for word in raw.frozen:
        if _is_out_of_range(fields, word, model, names) or any(matches(word, path) for path in names.paths):
            continue
        if word == HEAD and tied:
            if EMBEDDINGS not in raw.frozen:
                _tied(fields, model)
        else:
            _unknown(fields, "frozen", word, f"no part of {model.name}", names.parts(model.layers))
    if HEAD in raw.frozen and tied and EMBEDDINGS not in raw.frozen and not _refused(fields, "frozen"):
        _tied(fields, model)
    if fields.sink.refusals:
        return
    if all(any(matches(word, path) for word in raw.frozen) for path in names.paths):
        fields.refuse("frozen", "nothing is left to train", hint="leave a part out")
    elif not is_reached(model, raw.frozen):
        fields.refuse("frozen", "nothing that the loss depends on is left to train", hint="leave a part out")
    elif loss == "fused" and not feeds_head(names.paths, raw.frozen):
        message = (
            "Liger's fused loss gives the head a gradient only where its input needs one, and nothing else is trained"
        )
        fields.refuse("loss", message, hint="use standard or chunked:8")


def feeds_head(paths: Sequence[Sequence[str]], frozen: Sequence[str]) -> bool:
    """Whether something is trained that the head has its input from."""
    return any(path[0] != HEAD and not any(matches(word, path) for word in frozen) for path in paths)


def _tied(fields: Fields, model: ModelShape) -> None:
    message = f"the head of {model.name} is tied to its embeddings: neither can be frozen alone"
    fields.refuse("frozen", message, hint=f"freeze both: {EMBEDDINGS}, {HEAD}")


def _is_out_of_range(fields: Fields, word: str, model: ModelShape, names: Names) -> bool:
    """Refuse a word that names blocks which are not there, in the stack that it names if it names one."""
    parts = word.split(".")
    if LAYERS not in parts[:-1]:
        return False
    at = parts.index(LAYERS)
    first, dash, last = parts[at + 1].partition("-")
    last = last if dash else first
    largest = max(_numbers(names, tuple(parts[:at])), default=model.layers - 1)
    beyond = first.isdecimal() and last.isdecimal() and int(last) > largest
    if beyond:
        message = f"{shown(word)} is out of range: the blocks of {model.name} are 0 to {largest}"
        fields.refuse("frozen", message)
    return beyond


def _numbers(names: Names, outer: tuple[str, ...]) -> list[int]:
    """The numbers of the blocks of a stack, or of all."""
    inside = [path for path in names.paths if LAYERS in path]
    return [
        int(path[path.index(LAYERS) + 1])
        for path in inside
        if path[: path.index(LAYERS)][-len(outer) :] == outer or not outer
    ]


def _refused(fields: Fields, key: str) -> bool:
    return any(problem.key == key for problem in fields.sink.refusals)


def _unknown(fields: Fields, key: str, word: str, what: str, known: Sequence[str]) -> None:
    near = nearest(word, known)
    listed = "known: " + ", ".join(known)
    fields.refuse(key, f"{shown(word)} names {what}", hint=f"{near} {listed}" if near else listed)


class _Adapter:
    """Reads one adapter against one model."""

    def __init__(
        self,
        raw: RawJob,
        fields: Fields,
        model: ModelShape,
        names: Names,
        precision: str,
        told: list[Assumption],
        usual: tuple[str, ...] = (),
        usual_rank: int | None = None,
    ) -> None:
        self.of_program, self.usual_rank = usual, usual_rank
        self.usual = usual or Q_AND_V
        self.raw, self.fields, self.model, self.names = raw, fields, model, names
        self.precision, self.told = precision, told
        self.kind = raw.adapter_kind or "lora"  # of what is no word too, which was refused where it was read
        self.known = known_targets(model, names, self.kind)

    def adapter(self) -> Adapter:
        """The adapter with every default explicit."""
        fields = self.fields
        check_layers(self.raw, self.kind)
        check_shards(self.raw, self.kind)
        check_bias(self.raw)
        targets, feedforward = self.own_targets()
        without = lacks(self.kind)
        for key in without:
            if fields.given(key):
                fields.refuse(key, f"has no meaning for {self.kind}", hint="leave it out")
        rank = 0 if "rank" in without else self.rank()
        alpha = None if "alpha" in without else self.raw.adapter_alpha
        dropout = None if "dropout" in without else self.raw.adapter_dropout
        if dropout:
            dropout = beside.dropout_of(self.raw, fields, self.kind, dropout, self.model, self.told)
        adapter = Adapter(
            kind=self.kind,
            rank=rank,
            targets=targets,
            feedforward_targets=feedforward,
            modules_to_save=() if "modules_to_save" in without else self.modules_to_save(),
            alpha=alpha,
            dropout=dropout or 0.0,
            dtype=self.dtype(),
            decompose_factor=None if "decompose_factor" in without else self.raw.adapter_decompose_factor,
            frequencies=self.usual_number("frequencies", self.raw.adapter_frequencies),
            trainable_tokens=adapter_ends.tokens_of(self.raw, fields, self.model, self.names, self.kind),
            bias="none" if "bias" in without else self.raw.adapter_bias or "none",
        )
        check_element_types(self.raw, adapter, self.precision)
        check_widths(fields, self.names, adapter)
        return adapter

    def own_targets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The targets as the kind has them, and for ia3 those of them that are feedforward."""
        kind = KINDS[self.kind]
        if kind.of_norms:
            return adapter_norms.targets_of(self.raw, self.fields, self.model, self.names, self.told), ()
        return ((), ()) if kind.of_table else self.targets()

    def usual_number(self, key: str, given: int | None) -> int | None:
        """A number that one kind has, or PEFT's default of it; None where the kind has none."""
        usual = KINDS[self.kind].usual.get(key)
        if usual is None or given is not None:
            return None if usual is None else given
        self.told.append(Assumption(f"adapter.{key}", usual, "PEFT's default"))
        return usual

    def rank(self) -> int:
        """The rank, or the size of a block; where it is left out that of the program, or PEFT's default."""
        rank, usual = self.raw.adapter_rank, KINDS[self.kind].rank
        if rank is None:
            rank = self.usual_rank or usual
            whose = "PEFT's default" if self.usual_rank is None else "the default of the runtime"
            self.told.append(Assumption("adapter.rank", rank, whose))
        return rank or usual

    def targets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The targets, and for ia3 those of them that are feedforward."""
        fields, model_type = self.fields, self.model.transformers_model_type
        given, feedforward = self.raw.adapter_targets, self.raw.adapter_feedforward_targets
        if given is None:
            peft = peft_of(self.model)
            of_kind = peft.of_kind.get(self.kind, peft.lora)
            known = (peft.ia3, peft.ia3_feedforward) if self.kind == "ia3" else (of_kind, ())
            whose = f"PEFT's own for {model_type}"
            if self.model.published_family is not None:  # LitGPT's and torchtune's recipes name them alike
                known, whose = (self.usual, ()), "those of the recipes of the runtime"
            elif self.of_program and self.kind != "ia3":
                known = tuple(word for word in self.of_program if self.is_linear(word)), ()
                whose = "the default of the runtime"
            if not known[0] and self.kind != "ia3" and no_all_linear(self.model, self.kind) is None:
                known, whose = ((ALL_LINEAR,), ()), f"PEFT has none of its own for {model_type}: every linear layer"
            is_of_peft = not is_own_code(self.model.family)  # what has code of its own says itself what it adapts
            if not known[0] or (is_of_peft and not any(map(self.is_linear, known[0]))):  # PEFT raises where none is
                message = f"is missing: PEFT has no targets of its own for {model_type}"
                if known[0]:
                    usual = f"PEFT's own for {model_type} are {', '.join(known[0])}"
                    message = f"is missing: {usual}, which name no layer of {self.model.name}"
                fields.refuse("targets", message, hint=all_of(self.model, self.names, self.known))
                return (), ()
            self.told.append(Assumption("adapter.targets", list(known[0]), whose))
            if feedforward is None and known[1]:
                self.told.append(Assumption("adapter.feedforward_targets", list(known[1]), "PEFT's own"))
            targets, own = known
        elif not given:
            fields.refuse(
                "targets", "is an empty list: no layer would have an adapter", hint="name one, or leave it out"
            )
            return (), ()
        else:
            given = tuple(dict.fromkeys(self.by_leaf(word) for word in given))
            targets, own = fused_targets(fields, self.model, self.kind, given, self.told), ()
            ends = filter(self.is_linear, ends_of(self.model, self.names))
            self.check("targets", targets, (*self.known, *ends), self.is_linear)
        check_targets(fields, self.model, self.names, self.kind, targets, self.raw.quantization)
        if feedforward is not None:
            self.check("feedforward_targets", feedforward, targets, lambda word: word in targets)
        return targets, own if feedforward is None else tuple(feedforward)

    def by_leaf(self, word: str) -> str:
        """The name of the layers alone, which is told where it is not the whole word."""
        name = by_leaf(self.model, self.names, self.kind, word)
        if name != word:
            module = leaf(word.rpartition(".")[0])
            self.told.append(Assumption("adapter.targets", name, f"{word}: the layers of {module} called {name}"))
        return name

    def is_linear(self, word: str) -> bool:
        """Whether a word names what may be a target."""
        return is_known(self.model, self.names, self.kind, word)

    def check(self, key: str, given: Sequence[str], known: Sequence[str], right: Callable[[str], bool]) -> None:
        """Refuse the words that name nothing."""
        for word in given:
            if not right(word):
                _unknown(self.fields, key, word, f"no linear layer of {self.model.name}", known)

    def no_copies(self) -> str:
        """Where PEFT's copies of a table and of its tied head are not modelled; empty where they are."""
        known = self.names.tied_head and self.model.task != "seq2seq"  # whose table is three modules
        return "" if known else f"in the code of {self.model.code}"

    def modules_to_save(self) -> tuple[str, ...]:
        """The modules to save; the head of a classification is always one."""
        fields, model = self.fields, self.model
        given = self.raw.adapter_modules_to_save
        for word in given or ():
            check_saved(fields, self.names, word)
            paths = (*self.names.paths, self.names.tied_head) if self.names.tied_head else self.names.paths
            named = [path for path in paths if path not in self.names.bare and is_saved_as(".".join(path), word)]
            if not named and not (model.task == "cls" and word in CLASSIFIERS):  # which PEFT names for every model
                leaves = tuple(dict.fromkeys(path[-1] for path in self.names.paths if path not in self.names.bare))
                _unknown(fields, "modules_to_save", word, f"no module of {model.name}", leaves)
            elif (
                model.tied_embeddings
                and model.task != "cls"
                and {self.names.table, self.names.tied_head} & {*named}
                and self.no_copies()
            ):
                other = "the head" if self.names.table in named else "the embeddings"
                message = f"{shown(word)} is tied to {other} of {model.name}, and PEFT would untie them, which is not"
                fields.refuse("modules_to_save", f"{message} modelled {self.no_copies()}", hint="leave it out")
            elif self.raw.quantization is not None and any(
                is_saved_as(name, word) for name in self.names.linears if name not in (*UNQUANTIZED, SCORE)
            ):
                message = f"{shown(word)} is quantized and cannot be trained"
                fields.refuse("modules_to_save", message, hint="name embeddings, heads or norms")
        saved = tuple(given or ())
        if model.task == "cls":
            missing = tuple(name for name in CLASSIFIERS if name not in saved)
            if missing and given is None:
                self.told.append(
                    Assumption("adapter.modules_to_save", list(missing), "PEFT trains classifiers in full")
                )
            saved += missing
        return saved

    def dtype(self) -> str:
        """The element type of the adapter's weights: fp32, as PEFT has them, or that of the model's.

        A precision that says of every state that it has 16 bits is taken at its word.
        """
        fields, precision = self.fields, self.precision
        policy = precision.startswith("fsdp-")  # accelerate, utils/fsdp_utils.py: what is trained is made fp32
        own = "fp32" if precision == "fp32" or precision.startswith("amp-") or policy else precision.rpartition("-")[2]
        mixed = precision.startswith("mixed-")
        if precision.startswith("amp-") and self.raw.cells.get("weight_dtype") == precision.rpartition("-")[2]:
            own = precision.rpartition("-")[2]  # autocast over a model in 16 bits
        if KINDS[self.kind].of_norms:  # tuners/ln_tuning/model.py, _cast_adapter_dtype: a copy is as the original
            return own
        known = (own,) if mixed or own == "fp32" else ("fp32", own)
        given = self.raw.adapter_dtype
        if self.raw.loss in words.PREFERENCE_LOSSES and self.raw.quantization is not None:
            if given is None:
                return beside.dtype_of_trl(fields, precision, self.told)
            known = tuple(dict.fromkeys((*known, "bf16"))) if own != "fp16" else known
        if given == "bf16" and self.raw.quantization is not None and precision == "amp-bf16":
            known = ("fp32", "bf16")  # as TRL's SFTTrainer has it, whatever the other weights are
        if given is None:
            pure = precision.startswith("pure-")
            chosen, why = "fp32", "PEFT keeps adapters in fp32"
            if mixed or pure:
                chosen = own
                why = f"all of {precision}; PEFT's own default is fp32"
                if mixed:
                    why = f"{precision} has a master copy of it"
            self.told.append(Assumption("adapter.dtype", chosen, why))
            return chosen
        if mixed and given == "fp32" and self.raw.sharding in ZERO_STAGES:  # runtime/engine.py casts the whole module
            self.told.append(Assumption("adapter.dtype", own, f"DeepSpeed casts it, as all of the model, to {own}"))
            return own
        if given not in known:
            fields.refuse("dtype", f"{given} is not modelled with {precision} (modelled: {', '.join(known)})")
        return given
