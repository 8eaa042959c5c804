"""A tape that plays a compiled step: results of point-wise operators are only stored where something needs them.

`torch.compile` traces forward and backward together, keeps what a cheapest cut between the two says, and fuses chains
of point-wise operators and reductions into kernels, so that what is between them never exists. Here every result of
such an operator is *deferred*: it knows what it is computed from, and holds that alive. It is stored

1. when an operator that is not fused reads it, as a product, an attention kernel or a table look-up does
   (`fusible.py` has those that are);
2. if it is random (a dropout mask) or a reduction (at most a quarter of what it is computed from);
3. if it reads something that a product has read before it: a residual sum;
4. if it is a gradient of a weight.

A product with a single number (a scalar weight) is made again by the sum that reads it, which counts as the residual
one.
A deferred tensor that backward asks for is computed again from what is stored; a sum of two products or look-ups that
nobody else asks for is stored in their place, and so are logits that the model returns with a bias added. A gradient
that goes two ways is stored if it is made from more than four tensors. In what a checkpoint computes again that is so
of residual sums and of the normalised input of a layer norm, dropouts keep random numbers in place of masks, and
buffers stay until the block's backward is over, since the next block takes them. These are the rules of
`min_cut_rematerialization_partition` that decide the saved tensors of transformers: not recomputed are operators that
are compute-intensive or random, what must be there for them in backward (`ban_if_materialized_backward`), reductions
(`ban_if_reduction`), and what is used on both sides of one that cannot be fused (`ban_if_used_far_apart`).
Source: torch/_functorch/partitioners.py, solve_min_cut and get_default_op_list; torch/_inductor/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any
from weakref import ref

from vramplan.engines import imported
from vramplan.replay.compiled_checkpoints import RecomputingTape
from vramplan.replay.deferred import STATISTICS, Deferred, UnkeptCasts, before_casts, made_of_many, sources_of, unstored
from vramplan.replay.fused_gradients import together_with
from vramplan.replay.fusible import FUSIBLE
from vramplan.replay.models.parts import compiled_graphs, compiles_blocks, has_equal_blocks, returns_logits
from vramplan.replay.recorder import Backward, Node, Path, Saved, Tape
from vramplan.replay.setup import Setup
from vramplan.replay.tensors import BF16, BOOL, FP32, SQUARED, DType, Parameter, Shape, Storage, Tensor, UnevenRows

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")  # they write into buffers that the compiler makes

SUMMED = ("embedding", "MatMul4Bit", *PRODUCTS)  # what residual sums are made of

REDUCTION = 4  # a result so many times smaller than an input is kept (partitioners.py, should_ban_recomputation)


def tape_of(setup: Setup, batch: int, *, direct: bool, unrolled: bool) -> Tape:
    """The tape of a compiled step; the model's own code says where its graphs are if it compiles block by block."""
    name = setup.model.family
    if compiles_blocks(name):
        kind = imported("vramplan.replay.compiled_blocks:BlockwiseTape")
        blockwise: Tape = kind(batch, direct=direct, unrolled=unrolled)
        return blockwise
    every_block = not has_equal_blocks(name)
    one_graph = compiled_graphs(name) in (None, 1)  # what nobody has traced is taken to be cut nowhere
    logits = returns_logits(name)
    how = {"one_graph": one_graph, "every_block": every_block, "returns_logits": logits}
    return CompiledTape(batch, direct=direct, unrolled=unrolled, **how)


class CompiledTape(RecomputingTape):
    """Records one iteration of a compiled model.

    `one_graph`: the model and its loss are compiled together. `every_block`: no block stands for others; so it is where
    two stacks hand each other gradients, whose sums are stored when the next block asks for them. `returns_logits`: the
    model returns them beside its loss.
    """

    periodic = False

    def __init__(
        self,
        batch: int,
        *,
        direct: bool = False,
        unrolled: bool = False,
        one_graph: bool = True,
        every_block: bool = False,
        returns_logits: bool = True,
    ) -> None:
        super().__init__(batch, direct=direct, unrolled=unrolled)
        self.every_block = every_block
        self.casts = UnkeptCasts()
        self.late = False  # whether the node that runs makes a gradient that waits for another one
        self.one_graph = one_graph
        self.returns_logits = returns_logits
        self._normal: Storage | None = None  # the normalised input that the statistics hold until backward
        self.fusing = False  # in forward and backward; the optimizer's step is not compiled
        self.in_backward = False
        self.reading: tuple[Tensor, ...] = ()  # what the operator reads whose results come next
        self.in_checkpoint = False  # whether the graph is inside of a checkpoint, and not the checkpoint in it
        self.sum: Deferred | None = None  # the last residual sum of forward that is not stored
        self.wanted: set[int] = set()  # what backward asks for, or makes again what it asks for from
        self.logits: list[tuple[Shape, DType, bool]] = []
        self.zeros: list[Storage] = []  # gradients of the logits that the model returns beside the loss
        # the gradient of the logits, with such zeros added, until it is stored: a kernel that would make it and read
        # more, such as that of a cap on the logits, reads too much (torch/_inductor/config.py, realize_reads_threshold)
        self.of_logits: ref[Deferred] | None = None
        self.outputs: list[Tensor] = []  # gradients that the compiled backward returns together
        self.outside = False  # from where forward leaves the graph to where backward enters it again

    def phase(self, name: str) -> None:
        """From here on it is this phase."""
        self.reading, self._normal = (), None
        self.outputs.clear()
        self.release()
        self._frame = None
        self.returned.clear()
        self.in_backward = name == "backward"
        if name == "forward":
            self.outside = False
        self.fusing = name in ("forward", "backward") and not self.outside
        super().phase(name)
        if self.in_backward:
            self.zeros = [self._zeros(*one) for one in self.logits]

    def leave_graph(self, tensor: Tensor) -> Tensor:
        """An output of the graph is stored and no kernel writes over it; nor over the gradient that it gets in the end.

        What is made of it outside runs operator by operator, in both directions.
        Source: torch/_dynamo, where a call that is not traced breaks the graph; torch/_functorch/aot_autograd.py.
        """
        if not self.fusing:
            return tensor
        self.consume((tensor,))
        assert tensor.storage is not None
        self.kept.add(tensor.storage.index)

        def entered(grad: Any, saved: Saved) -> Sequence[Tensor | None]:
            self.fusing, self.outside = True, False
            return (grad,)

        self.fusing, self.outside, self.reading = False, True, ()
        node = super().record("view", (tensor,), entered)
        return tensor.alias(tensor.shape, tensor.strides, node)

    def joined(self, tensors: Sequence[Tensor], dim: int) -> Tensor | None:
        """The one tensor that is not empty: torch/_inductor/decomposition.py, cat."""
        filled = [one for one in tensors if one.shape[dim]]
        return filled[0] if len(filled) == 1 else None

    def multiplies_by_expert(self, dtype: DType) -> bool:
        """Transformers' own operator takes the place of what Inductor compiles with bf16 alone.

        Source: transformers 5.23, integrations/moe.py, _can_use_grouped_mm.
        """
        return dtype is not BF16

    def _zeros(self, shape: Shape, dtype: DType, batched: int) -> Storage:
        storage = super().new("zeros", shape, dtype, batched, category="temporaries").storage
        assert storage is not None
        self.kept.add(storage.index)
        return storage

    def repeat(
        self,
        count: int,
        *,
        first: bool = True,
        last: bool = True,
        start: int = 0,
        stride: int = 1,
        apart: Sequence[int] = (),
    ) -> Iterator[tuple[int, int]]:
        """Walk `count` identical items."""
        alone = range(count) if self.every_block else apart
        return super().repeat(count, first=first, last=last, start=start, stride=stride, apart=alone)

    def enter(self, path: Path) -> None:
        """Go on inside these repeated units; what the last operator read belongs to the unit before.

        So does what becomes of the residual sum that the unit gives.
        """
        if path != self.path:
            if self.sum is not None and not self.in_backward:
                self._choose(self.sum)
            self.reading, self.sum, self._normal = (), None, None
            self.release()
            super().enter(path)

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
        """A tensor that is stored now, or not before something needs it."""
        if batched == SQUARED or type(batched) is UnevenRows:
            self.compared.are_lines = False
        if not self.fusing or (operator not in FUSIBLE and not (self.late and not batched)):
            result = super().new(operator, shape, dtype, batched, strides, node, category)
            if operator in PRODUCTS:
                self._hold(result.storage)
            return result
        if operator == "native_dropout" and dtype is BOOL and self.recomputing is not None and not self.in_checkpoint:
            return self._random(shape, batched, strides, node)
        if operator == "embedding_dense_backward":
            return self._scatter(shape, dtype, batched, node)
        elements = prod(shape)
        # positions, rotary angles: made from nothing that is stored
        parents = self._parents() if batched or self.in_backward else ()
        if operator == "native_dropout" and self._drawn is not None:
            parents, self._drawn = (*parents, self._drawn), None
        wide = parents[0] if operator == "to" and parents else None
        if type(wide) is Deferred:
            cast = self._cast_again(wide, elements, dtype, batched)
            if cast is not None:
                return Tensor(self, cast, shape, dtype, batched, strides, node)
        of_logits = None if self.of_logits is None else self.of_logits()
        follows = of_logits is not None and any(one is of_logits for one in parents)
        if of_logits is not None and follows and len(parents) > 1 and of_logits.index < 0:
            self._store(of_logits)
            follows = False
        recomputing = self.recomputing
        frame = self.frame or recomputing
        birth = (operator, shape, dtype, batched, category or self.category)
        storage = Deferred(self.events, birth, parents, elements, batched)
        storage.home = 0 if frame is None else id(frame)
        storage.gradient = self.in_backward and recomputing is None
        tensor = Tensor(self, storage, shape, dtype, batched, strides, node)
        if follows:
            self.of_logits = ref(storage)
        forward = not self.in_backward or (recomputing is not None and self.in_checkpoint)
        self.sum = storage if operator == "add" and batched and forward else None
        if type(wide) is Deferred:
            wide.casts = {**(wide.casts or {}), dtype: ref(storage)}
        elif operator == "_log_softmax":
            if self.returns_logits:
                self._returns(storage)
            rows = (elements // shape[-1], 1)
            statistics = [super(CompiledTape, self).new(operator, rows, FP32, batched) for _ in ("largest", "sum")]
            storage.parents = (*parents, *[one.storage for one in statistics if one.storage is not None])
        elif operator == "_log_softmax_backward_data" and self.zeros:
            storage.parents = (*parents, self.zeros.pop())
            self.of_logits = ref(storage)
        if operator == "mul" and not self.in_backward and any(x.shape == () for x in self.reading):
            storage.read = any(type(one) is Deferred and one.read for one in parents)  # the sum of it will be residual
        elif self._is_kept(operator, dtype, shape, batched, parents):
            self.store(tensor)
            if operator == "native_layer_norm" and self.recomputing is not None and self._normal is not None:
                storage.parents = (self._normal,)
                self._normal = None
        elif (
            operator == "native_layer_norm"
            and self.recomputing is not None
            and (self.in_checkpoint or made_of_many(parents, STATISTICS))
        ):
            self._normal = super().new(operator, shape, FP32, batched, strides).storage
            self._hold(self._normal)
            if self._normal is not None:
                storage.parents = (self._normal,)
                self._read_again(self.reading[0], self._normal)
        return tensor

    def _scatter(self, shape: Shape, dtype: DType, batched: int, node: Any) -> Tensor:
        """The gradient of a table: a scatter into zeros of fp32, then a cast.

        Source: torch/_inductor/decomposition.py and torch/_decomp/decompositions.py, embedding_dense_backward.
        """
        sums = super().new("index_put", shape, FP32, batched, None, node)
        if dtype is FP32:
            return sums
        return super().new("to", shape, dtype, batched, None, node)

    def _returns(self, log_probabilities: Deferred) -> None:
        """Note the logits, which the model returns: no kernel writes over them, and their own gradient is zeros.

        Backward gets zeros for every output of the compiled forward pass that no gradient reaches.
        Source: torch/_functorch/_aot_autograd/runtime_wrappers.py; torch/csrc/autograd/python_function.cpp,
        PyNode::apply (materialize_grads).
        """
        _, shape, _, batched, _ = log_probabilities.birth
        for one in log_probabilities.parents:
            logits = before_casts(one) if type(one) is Deferred else one
            if (
                type(logits) is Deferred and logits.index < 0 and logits.birth[0] != "to"
            ):  # with a bias that is no part of the product
                self._store(logits)
        for one in sources_of(log_probabilities):
            self.kept.add(one.index)
            if self.one_graph and self.recomputing is None:
                width = self._bytes(one) // prod(shape)
                self.logits.append((shape, DType("logits", width), batched))

    def _parents(self) -> tuple[Storage, ...]:
        found: list[Storage] = []
        for x in self.reading:
            storage = x.storage
            if storage is not None and storage not in found:  # no storage is equal to another one
                found.append(storage)
        return tuple(found)

    def _cast_again(self, wide: Deferred, elements: int, dtype: DType, batched: int) -> Deferred | None:
        """The same cast of the same tensor is made once (torch/_functorch/compile_utils.py, fx_graph_cse)."""
        if self.compared.differ(wide.size, bool(wide.batched), elements, bool(batched)) or wide.casts is None:
            return None
        again = wide.casts.get(dtype)
        return None if again is None else again()

    def _is_kept(self, operator: str, dtype: DType, shape: Shape, batched: int, parents: tuple[Storage, ...]) -> bool:
        if dtype is BOOL:
            return True
        if not batched:
            return self.in_backward and not self.late
        least = prod(shape) * REDUCTION
        is_reduction = False
        for x in self.reading:
            is_larger = prod(x.shape) >= least if x.batched else self.compared.reached_by(prod(x.shape), least)
            is_reduction = is_reduction or is_larger
        if is_reduction:
            return True
        if operator == "add" and self.recomputing is not None and not self.in_checkpoint:
            return made_of_many(parents)
        gradient = self.in_backward and self.recomputing is None
        read = [one for one in parents if type(one) is Deferred and one.read and one.gradient is gradient]
        return any(one.batched for one in read) if read else False

    def choose(self, saves: Saved) -> None:
        """Store what backward asks for, if it would keep twice as much instead that nobody else asks for: the results
        of table look-ups and products that are only added up.

        The cut weighs a result that only fused operators read twice, and an earlier one more than a later one
        (torch/_functorch/partitioners.py, solve_min_cut, get_node_weight). It is between forward and backward, not in
        what a checkpoint computes again: there each kernel that reads such a sum adds it up (torch/_inductor/ir.py,
        StorageBox.should_realize_on_reuse).
        """
        if self.recomputing is not None and not self.in_checkpoint:
            return
        for tensor in saves:
            if type(tensor) is Tensor and type(tensor.storage) is Deferred and tensor.storage.index < 0:
                self._choose(before_casts(tensor.storage))

    def _choose(self, one: Deferred) -> None:
        if one.index < 0:
            alone = [source for source in sources_of(one) if source.index not in self.wanted]
            summed = [source.index for source in alone if self.operators[source.index] in SUMMED]
            fixed, each = sum(self.fixed[i] for i in summed), sum(self.per_sample[i] for i in summed)
            wanted = 2 * one.size * one.birth[2].itemsize
            if one.batched:
                is_enough = self.compared.reaches(fixed, each - wanted // self.batch)
            else:
                is_enough = self.compared.reaches(fixed - wanted, each)
            if is_enough:
                self._store(one)

    def _want(self, saves: Saved) -> None:
        """Note what backward will read."""
        for tensor in saves:
            storage = tensor.storage if type(tensor) is Tensor else None
            if storage is not None:
                self.wanted.update(one.index for one in ([storage] if storage.index >= 0 else sources_of(storage)))

    def view_result(self, node: Any, shape: Shape) -> None:
        """A compiled graph has no nodes of views."""
        if not self.fusing:
            super().view_result(node, shape)

    def view_input(self, node: Any) -> None:
        """The same of what it is given."""
        if not self.fusing:
            super().view_input(node)

    def record(self, operator: str, inputs: Sequence[Tensor | None], fn: Backward, saves: Saved = ()) -> Any:
        """Make the node of an operator; what it reads is stored if it is not fused."""
        if not self.fusing:
            return super().record(operator, inputs, fn, saves)
        if not self.in_backward:
            self._leave(inputs)
        unfused = operator not in FUSIBLE
        if unfused:
            self.consume(inputs)
            self.consume(saves)
        else:
            self.choose(saves)
        self.reading = tuple([x for x in inputs if x is not None])
        # the product for a tied table, or under autocast the cast of it, is fused with the sum of the table's two
        # gradients, and so waits for the other one (torch/_inductor/fx_passes/post_grad.py, addmm)
        late = False
        for x in self.reading:
            if type(x) is Parameter and x.is_table:
                late = operator != "embedding"

        again = self.frame is not None and not self.in_checkpoint
        targets = tuple([x.node for x in self.reading if type(x.node) is Node]) if unfused else ()

        def fused(grad: Any, saved: Saved) -> Sequence[Tensor | None]:
            grads = grad if isinstance(grad, list) else [grad]
            if not self._frames:  # buffers of a checkpoint are held for the next one
                self.reading = ()  # what the operator before read is no hold on it
            if unfused:
                forked: list[Deferred] = []
                self.kernel = forked
                together = together_with(self, grads, targets)
                self.kernel, self.reading = None, ()
                for one in (*unstored(grads), *forked) if forked else ():
                    if not any(one is other for other in together):
                        together.append(one)
                self._store_together(together, again=again)
                self.consume(grads)
                self.consume(saved)
            self.reading = tuple([x for x in (*grads, *saved) if type(x) is Tensor])
            self.late = late
            try:
                results = fn(grad, saved)
            finally:
                self.late = False
            mine = None if found is None else found()  # a node that holds its function may not be held by it
            if mine is not None:
                self._share(mine, results)
            return results

        node = super().record(operator, inputs, fused, saves)
        found = ref(node) if type(node) is Node else None
        if node is not None and (self.frame is None or self.in_checkpoint):
            self._want(saves)
        return node

    def relabel(self, tensor: Tensor, category: str) -> None:
        """Count a storage under another component from now on."""
        self.store(tensor)
        super().relabel(tensor, category)

    def meets(self, *operands: Tensor) -> None:
        """Two gradients are added, or one of several results is made; outside of a graph nobody else holds them."""
        self.reading = operands if self.fusing else ()

    def accumulated(self, gradient: Tensor) -> None:
        """A gradient that is added to one that is there stays until the compiled backward has returned all."""
        self.outputs.append(gradient)
