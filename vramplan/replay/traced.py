"""A tape that also notes why: which rule allocated a storage, in which module, who keeps it, what ended it.

The notes are taken from outside, so that an ordinary replay pays nothing: rules and modules are read off the running
frames, births and deaths off the list of events. Nothing here holds a tensor: the events are the very same as without
notes (`tests/explain/`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from vramplan.replay.checkpoints import RECOMPUTED, Frame
from vramplan.replay.frames import code_of_the_model, is_model_code, local, names_of, rule_at, running
from vramplan.replay.ledger import Storage
from vramplan.replay.notes import BUFFERS, KEPT, Birth, Keep, NotedWeight, OperatorRun, Ref
from vramplan.replay.recorder import Backward, Path, Saved, Tape
from vramplan.replay.rules import rooms
from vramplan.replay.tensors import DType, Parameter, Shape, Tensor
from vramplan.results.explain import Blocks

TRAINING_LOOP = {"vramplan.replay.techniques.clipping": "clip", "vramplan.replay.techniques.scaling": "scaler"}
"""What tensors are named for that the training loop makes in its step; what it makes beside the model is the loss's."""

ENGINE = "vramplan.replay.autograd"
HELPERS = (
    *("output_embedding", "next_tokens", "head_and_loss", "causal_lm_output", "output_with_images", "project"),
    "words",
)
CORES = (
    "vramplan.replay.models.cores",
    "vramplan.replay.models.recomputed",
)  # what they run belongs to the module that asks
WALKS = ("run_blocks", "segment_of", *HELPERS)  # they lead to modules and are none of the original's code


class _Events(list[int]):
    """The list of events; storages write into it, so it sees every birth and every death."""

    def __init__(self, tape: TracedTape) -> None:
        super().__init__()
        self.tape = tape

    def append(self, event: int) -> None:
        """Note a birth or a death."""
        if event >= 0:
            self.tape.born(event, len(self))
        else:
            self.tape.died(~event, len(self))
        super().append(event)


class TracedTape(Tape):
    """A tape with notes: `steps`, `births` and `weights` in the order in which they came.

    It plays loops of a block one by one, because what they make is called by its number in the block.
    """

    loops = False

    def __init__(self, batch: int, *, direct: bool = False) -> None:
        super().__init__(batch, direct=direct)
        self.events = _Events(self)
        self.steps: list[OperatorRun] = []
        self.births: list[Birth] = []
        self.weights: dict[int, NotedWeight] = {}
        self.inputs: list[tuple[str, Shape, DType]] = []  # of the micro-batch
        self._named: dict[int, str] = {}
        self._pending: tuple[Shape | None, DType | None, str] = (None, None, "")
        self._relabels: int | None = None
        self._now: OperatorRun | None = None  # the last operator that began
        self._running: OperatorRun | None = None  # the node that backward runs
        self._nodes: dict[int, OperatorRun] = {}
        self._slots: dict[tuple[int, int], OperatorRun] = {}  # who owns a slot of a checkpoint
        self.leaf_notes: dict[int, NotedWeight] = {}  # no weights, but inputs that need a gradient
        self._roles: dict[int, list[str]] | None = None

    # --------------------------------------------------------------------------------------------------- births
    def new(
        self,
        operator: str,
        shape: Shape,
        dtype: DType,
        batched: int,
        strides: Shape | None = None,
        node: Any = None,
        category: str | None = None,
    ) -> Tensor:
        """Allocate a tensor."""
        self._pending = (shape, dtype, operator)
        return super().new(operator, shape, dtype, batched, strides, node, category)

    def several(self, operator: str, shape: Shape, dtype: DType, copies: int, category: str | None = None) -> Tensor:
        """Allocate several identical tensors that die together."""
        tensor = super().several(operator, shape, dtype, copies, category)
        self.births[-1].copies = copies
        return tensor

    def scratch_of(self, operator: str, size: Callable[[int], int], per_sample: int | None = None) -> Storage:
        """Scratch of one kernel."""
        self._pending = (None, None, operator)
        return super().scratch_of(operator, size, per_sample)

    def resize(
        self,
        index: int,
        fixed_bytes: int,
        per_sample_bytes: int = 0,
        size: Callable[[int], int] | None = None,
        *,
        is_affine: bool = True,
    ) -> None:
        """Give a storage another size than its tensor has, whose shape says nothing of it from now on."""
        super().resize(index, fixed_bytes, per_sample_bytes, size, is_affine=is_affine)
        self.births[index].shape = None

    def relabel(self, tensor: Tensor, category: str) -> None:
        """Count a living storage under another component from now on."""
        assert tensor.storage is not None
        self._relabels = tensor.storage.index
        super().relabel(tensor, category)
        self._relabels = None

    def parameter(self, name: str, shape: Shape, dtype: DType, *, trainable: bool = True) -> Parameter:
        """A weight of the model."""
        parameter = super().parameter(name, shape, dtype, trainable=trainable)
        self.weights[id(parameter)] = NotedWeight(parameter, self.blocks(self.path))
        return parameter

    def looked_up(self, tensor: Tensor, table: Parameter | None = None, module: tuple[Parameter, ...] = ()) -> Tensor:
        """What a table gave, which may become a leaf of the graph."""
        found = super().looked_up(tensor, table, module)
        if type(found.node) is Parameter:
            self.leaf_notes[id(found.node)] = NotedWeight(found.node, None)
        return found

    def born(self, index: int, position: int) -> None:
        """Note the birth of a storage."""
        if self._relabels is not None:
            old = self.births[self._relabels]
            birth = Birth(index, old.operator, old.step, position, self.path)
            birth.continues, birth.rules, birth.gradient_of = old.index, old.rules, old.gradient_of
            birth.shape, birth.dtype, birth.blocks = old.shape, old.dtype, old.blocks
            self.births.append(birth)
            return
        shape, dtype, operator = self._pending
        frames = running()
        rules, parts, frame = self._place(frames)
        if not rules:
            rules = code_of_the_model(frames)
        direction = self._direction()
        if direction == "backward":
            step = self._running or self._begin("ones_like", direction)
        else:
            last = self._now
            if last is not None and last.operator == operator and last.frame == frame != 0 and direction != "step":
                step = last
            else:
                step = self._begin(operator, direction)
                step.rules, step.parts, step.frame = rules, parts, frame
        birth = Birth(index, operator, step, position, self.path)
        birth.shape, birth.dtype = shape, dtype
        birth.rules = rules or (step.rules if direction == "backward" else ())
        if direction == "backward":
            if not step.rules:
                step.rules = rules
            birth.gradient_of = self._added_to(frames, step)
        elif operator == "to" or direction == "step":
            birth.source = self._cast_of(frames)
            if direction == "step" and isinstance(birth.source, str):
                step.blocks = birth.blocks = self.weights[int(birth.source[1:])].blocks
        self.births.append(birth)
        step.births.append(index)

    def died(self, index: int, position: int) -> None:
        """Note the death of a storage."""
        birth = self.births[index]
        birth.died_at, birth.died_path, birth.died_phase = position, self.path, self.phases[-1][1]
        if index == self._relabels:
            return
        direction = self._direction()
        birth.death_direction, birth.death_after = direction, self._now
        birth.death = self._running if direction == "backward" else None
        if self._now is not None:
            self._now.frees.append(index)

    # ---------------------------------------------------------------------------------------------------- graph
    def record(self, operator: str, inputs: Sequence[Tensor | None], fn: Backward, saves: Saved = ()) -> Any:
        """Make the node of an operator; its backward function is watched."""
        frames = running()
        step = self._begin(operator, self._direction())
        step.rules, step.parts, step.frame = self._place(frames)
        step.inputs = [self._ref(tensor) for tensor in inputs]
        step.edges = [(0, 0) if t is None or t.node is None else (id(t.node), t.output_index) for t in inputs]
        self._roles = names_of(frames[0], saves)
        del frames
        node = super().record(operator, inputs, fn, saves)
        self._roles = None
        if node is not None:
            step.kept = True
            if node is not RECOMPUTED:
                self._nodes[id(node)] = step
                node.fn = self._watch(node.fn, step)
        return node

    def abandon(self, first: int, last: int) -> None:
        """These nodes go, and their identities may come back."""
        for node in self.nodes[first:last]:
            self._nodes.pop(id(node), None)
            del node
        super().abandon(first, last)

    def save(self, node: Any, *tensors: Any) -> None:
        """Keep tensors for backward."""
        if node is not None and node is not RECOMPUTED:
            roles = self._roles if self._roles is not None else names_of(running()[0], tensors)
            step = self._nodes.get(id(node), self._now)
            assert step is not None
            for number, tensor in enumerate(tensors):
                ref, frame = self._ref(tensor), self.frame
                keep = Keep(ref, roles.get(id(tensor), ()), tensor, frame is not None, step)
                step.saves.append(keep)
                if frame is not None:
                    self._slots[id(frame), frame.saves + number] = step
                elif isinstance(ref, int):
                    self.births[ref].keeps.append(keep)
            tensor = frame = None
        elif node is not None and self._roles is None:
            self._roles = names_of(running()[0], tensors)
            try:
                super().save(node, *tensors)
            finally:
                self._roles = None
            return
        super().save(node, *tensors)

    def keep(self, product: bool, *results: Tensor) -> None:
        """Let a selective checkpoint keep the results of an operator."""
        super().keep(product, *results)
        step = self._now
        assert step is not None
        if self.frame is not None and self.frame.kept[-1] is not None:
            for tensor in results:
                keep = Keep(self._ref(tensor), (KEPT,), tensor, False, step)
                step.saves.append(keep)
                self.births[int(keep.ref)].keeps.append(keep)
                del tensor  # nothing here may hold it

    def _pack(self, frame: Frame, tensors: Saved) -> None:
        step, roles = self._now, self._roles or {}
        assert step is not None
        assert frame.taken is not None
        for number, tensor in enumerate(tensors):
            slot = len(frame.taken) + number
            if slot >= frame.saves:
                break
            ref = self._ref(tensor)
            keep = Keep(ref, roles.get(id(tensor), ()), tensor, True, self._slots[id(frame), slot])
            step.saves.append(keep)
            if isinstance(ref, int):
                self.births[ref].keeps.append(keep)
        tensor = None
        super()._pack(frame, tensors)

    def _watch(self, fn: Backward, of: OperatorRun) -> Backward:
        """The backward function of an operator, with a note of what runs and of what its results are."""

        def run(grad: Any, saved: Saved) -> Sequence[Tensor | None]:
            self._running = step = self._begin(of.operator, "backward")
            step.of, step.blocks, step.rules, step.parts = of, of.blocks, of.rules, of.parts
            results = fn(grad, saved)
            for ref, result in zip(of.inputs, results, strict=False):
                if result is not None and result.storage is not None:
                    birth = self.births[result.storage.index]
                    if birth.step is step and birth.gradient_of is None:
                        birth.gradient_of = ref
            result = None
            return results

        return run

    # ---------------------------------------------------------------------------------------------------- notes
    def phase(self, name: str) -> None:
        """From here on it is this phase."""
        self._running = None
        super().phase(name)

    def blocks(self, path: Path) -> Blocks | None:
        """The blocks that a path stands for; None outside of the blocks."""
        if not path:
            return None
        first = sum(self.numbers[unit][0] for unit, _ in path)
        several = [(self.numbers[unit][1], times) for unit, times in path if times > 1]
        return Blocks(first, tuple(distance for distance, _ in several), tuple(times for _, times in several))

    def _direction(self) -> str:
        return "recompute" if self.recomputing is not None else self.phases[-1][1]

    def _begin(self, operator: str, direction: str) -> OperatorRun:
        step = OperatorRun(operator, direction, self.phases[-1][1], self.blocks(self.path))
        self.steps.append(step)
        self._now = step
        return step

    def constant(self, shape: Shape, dtype: DType, batched: bool, name: str = "") -> Tensor:
        """A tensor that is alive before the iteration begins."""
        tensor = super().constant(shape, dtype, batched)
        if name:
            self.inputs.append((name, shape, dtype))
            self._named[id(tensor)] = name  # inputs live as long as the iteration: no identity comes twice
        return tensor

    def _ref(self, tensor: Tensor | None) -> Ref:
        if tensor is None:
            return ""
        if tensor.storage is not None:
            return tensor.storage.index
        if type(tensor) is Parameter:
            return f"#{id(tensor)}"
        if not tensor.batched:
            return BUFFERS
        return self._named.get(id(tensor)) or self.inputs[-1][0]  # a view: of the labels

    def _place(self, frames: list[FrameType]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
        """(rules from the inner to the outer, parts of the module below the block, the inner rule's frame)."""
        rules: list[str] = []
        inner, engine = 0, ""
        for number, frame in enumerate(frames):
            if frame.f_globals["__name__"] not in rooms():
                continue
            rule = rule_at(frame.f_code, frame.f_globals["__name__"])
            if rule is None:
                continue
            if frame.f_globals["__name__"] == ENGINE:
                engine = engine or (rule if number == 0 else "")
            else:
                inner = inner or id(frame)
                if rule not in rules:
                    rules.append(rule)
        if engine:
            rules = [engine]
        parts = self._parts(frames)
        if not parts:  # a table or a head that the model calls by itself: named for its weight
            weights = (local(f, "weight") for f in frames if f.f_globals["__name__"] in rooms())
            weight = next((one for one in weights if type(one) is Parameter), None)
            parts = [weight.name.removesuffix(".weight")] if weight is not None else []
            modules = {frame.f_globals["__name__"] for frame in frames}
            if not any(is_model_code(module) for module in modules):
                # the training loop: it clips and unscales gradients, or divides and scales the loss
                own = (name for room, name in TRAINING_LOOP.items() if room in modules)
                parts = [next(own, "loss") if self._direction() == "step" else "loss"]
        return tuple(rules), tuple(parts), inner

    def _parts(self, frames: list[FrameType]) -> list[str]:
        parts: list[str] = []
        caller: Any = None
        block_next = False
        for frame in reversed(frames):
            room = frame.f_globals["__name__"]
            if not is_model_code(room) or room in CORES:
                continue
            name = frame.f_code.co_qualname
            if name.partition(".")[0] in WALKS:
                block_next = block_next or not name.startswith(HELPERS)
                continue
            module = local(frame, "self")
            if module is None:
                if frame.f_code.co_name[0] != "<":
                    parts.append(name.partition(".")[0])
                continue
            if module is caller:
                continue
            own = [value for value in vars(module).values() if type(value) is Parameter]
            if block_next:
                parts, block_next = [], False
            elif caller is not None:
                held = next((key for key, value in vars(caller).items() if value is module), None)
                parts.append(held or (own[0].name.rpartition(".")[0] if own else type(module).__name__))
            caller = module
            for key, value in vars(module).items():
                if type(value) is Parameter and parts:
                    self.weights[id(value)].name = ".".join((*parts, key))
        return parts

    def _added_to(self, frames: list[FrameType], step: OperatorRun) -> Ref | None:
        """Of what a tensor of the engine is the gradient: a sum to a shape, a cast, or two gradients that meet."""
        inner = frames[0]
        if inner.f_globals["__name__"] != ENGINE or step.of is None:
            return None
        name, outer = inner.f_code.co_name, frames[1]
        if name == "_validate":
            number: int = local(inner, "i")
            return step.of.inputs[number]
        if name == "_sum" and outer.f_code.co_name == "_receive":
            return self._ref(local(outer, "parameter"))
        if name == "_accumulate":  # the copy that a leaf inside the model takes
            return self._ref(local(inner, "parameter"))
        if name == "_sum":
            edge = (id(local(outer, "target")), local(outer, "output_index"))
            return step.of.inputs[step.of.edges.index(edge)]
        return None

    def _cast_of(self, frames: list[FrameType]) -> Ref | None:
        """The weight that a cast or a step's scratch is for."""
        for frame in frames:
            for name in ("x", "parameter"):
                value = local(frame, name)
                if type(value) is Parameter and value.storage is None:
                    return f"#{id(value)}"
            if frame.f_code.co_name == "to":
                return None
        return None
