"""Parameters under stage 3 of DeepSpeed's ZeRO: gathered module by module ahead of their use, and when they go.

Each device holds a part of every parameter. A module's parameters are gathered when it is come to, and the next ones
ahead of time, up to a number of elements; they go after the module, unless one that comes soon needs them again. Small
parameters stay whole.

Parameters that are not trained are cut and gathered like the others, and each part lies by itself. Those that a
checkpoint gathers again belong to the module whose backward made it run again: they wait until that is over, and then
go, whatever comes next.

Where one device has everything, nothing is gathered: a module looks at what is there.

What is followed are the modules that have parameters, or ask for those of others. `fetch_sub_module` also runs for
those without, so DeepSpeed gathers sooner than this walk, and looks further ahead for what it will not let go of.
Traces whose prefetch bucket is a few hundred elements or more show no difference; one of a single element has 8 % more.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/partitioned_param_coordinator.py (PartitionedParameterCoordinator),
partition_parameters.py (AllGatherHandle, AllGatherCoalescedHandle, NoGatherHandle).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from vramplan.engines.deepspeed.modules import Around, ModuleRun, OuterEntry
from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.walk import Used, is_addmm, members_of
from vramplan.engines.deepspeed.zero3_gathered import Gathered
from vramplan.engines.deepspeed.zero3_policy import Zero3Policy
from vramplan.replay.recorder import Node, Tape
from vramplan.replay.tensors import Parameter, Tensor

MATRIX = 2  # dimensions of weights of linear layers
STACKED = 3  # dimensions of weights that modules make views of: those of several experts, and of convolutions


class Gathering(Gathered):
    """The walk of one iteration over modules: what is gathered, and when it goes."""

    unpacks = True
    weights_first = True  # parameter_offload.py, PostBackwardFunctionModule, between a module's input and its operators

    def __init__(self, tape: Tape, policy: Zero3Policy, order: Order) -> None:
        super().__init__(tape, policy, order)
        self.awaited: dict[tuple[int, ...], int] = {}  # how often backward has to come to a module before it is over
        self.leaf_of = {one: leaf for leaf in order.leaves for one in leaf}
        self.around = Around()
        self.stacked: set[int] = set()  # weights of which operators save views
        self.experts: dict[int, int] = {}  # the numbers of weights of several experts
        self.viewed: dict[int, Tensor | None] = {}  # what these views hold of weights that have gone
        self.viewed_again: set[int] = set()  # weights of which operators that ran again have saved views
        self.entry: ModuleRun | None = None  # the module of several operators that runs
        self.in_backward: ModuleRun | None = None
        self.owner: OuterEntry | None = None  # that module, if it has others inside
        self.numbers: dict[int, int] = {}
        self.created: list[Parameter] = []
        self.known = 0  # of these, so many have their numbers
        # biases, and the weights whose gradients come before theirs, as one function of DeepSpeed returns both
        # (deepspeed/runtime/zero/linear.py, LinearFunctionForZeroStage3.backward)
        self.after: dict[int, int] = {}
        self.pairs = frozenset(pairwise(order.arrivals))

    def module_entered(self, inputs: tuple[Tensor, ...], parameters: tuple[Parameter, ...]) -> None:
        """A norm: its weight is gathered before its first operator, which may not be the one that needs it."""
        self.entry = ModuleRun(tuple([self._number(one) for one in parameters]), inputs)
        self._reach(self.entry.members)

    def given(self, tensor: Tensor) -> Tensor:
        """The tensor behind a function, in which the gradients of the module meet before they meet any others.

        Source: parameter_offload.py, DeepSpeedZeRoOffload._register_deepspeed_module, _post_backward_module_hook.
        """
        node = self.tape.record("PostBackwardFunctionModule", (tensor,), lambda grad, _saved: (grad,))
        return tensor.alias(tensor.shape, tensor.strides, node)

    def held_whole(self, weight: Parameter) -> Tensor | None:
        """A parameter goes by getting no data: a view of the data before keeps what was gathered.

        Source: partition_parameters.py, free_param.
        """
        return self.whole.get(self._number(weight))

    def takes_own(self, weight: Parameter) -> None:
        """What was gathered goes at once: a layer of 8 bits has the whole weight by itself.

        Source: bitsandbytes 0.50.2, nn/modules.py, Linear8bitLt.forward.
        """
        number = self._number(weight)
        if number in self.whole:
            self.whole[number] = None

    def _drop(self, one: int) -> None:
        """In forward a view that was saved keeps what was gathered; backward lets go of it with what it gathers.

        Products of experts that ran again in backward saved views too, which are there until it comes to them.
        """
        if one in self.viewed_again:
            self.viewed[one] = self.whole[one]
        elif one in self.stacked:
            tape = self.tape
            if tape.direction == "forward" and tape.frame is None and not tape.no_grad:
                self.viewed[one] = self.whole[one]
            else:
                self.viewed.pop(one, None)
        super()._drop(one)

    def module_over(self) -> None:
        """It has run."""
        self.entry = None

    def outer_entered(
        self, is_told: bool, own: tuple[Parameter, ...], read: tuple[Parameter, ...], whole: tuple[Parameter, ...]
    ) -> None:
        """A module with others inside: all that it asks for is gathered before any of them runs."""
        is_leaf = bool(self.order.leaves and whole)
        own = whole if is_leaf else self.around.left(own)
        members = tuple([self._number(one) for one in (*own, *read)])
        if not self.tape.no_grad:
            # products of experts take weights that are transposed, which is a view, unless they are stored so
            self.experts.update({id(one): self._number(one) for one in own if len(one.shape) == STACKED})
        if not self.policy.learns and not self.tape.no_grad:
            self.stacked.update(self._number(one) for one in read if len(one.shape) == STACKED)
        entry = OuterEntry(own, members, is_told, is_leaf)
        if self.around.enter(entry):
            self._begin_outer(entry)

    def model_asks(self) -> None:
        """The module of the whole model begins, in forward or in backward: it may ask for weights of others.

        In backward nothing tells its end, as it is given nothing that needs a gradient.
        """
        asked = self.order.asked
        if not asked:
            self._prefetch()
            return
        self._fetch(asked)
        self.held.update(asked)
        self.leaving = ()

    def model_over(self) -> None:
        """Its forward is over."""
        self._let_go()
        self.held.subtract(self.order.asked)
        self.leaving = self.order.asked
        self._let_go()

    def outer_over(self) -> None:
        """It has run."""
        entry = self.around.leave()
        if entry is not None:
            self._end_outer(entry)

    def _begin_outer(self, entry: OuterEntry) -> None:
        members = self.now(entry.members)
        if members:
            self.turned_to(members)
            self._let_go()
            self._fetch(members)
            self.held.update(members)
            self.leaving = ()

    def _end_outer(self, entry: OuterEntry) -> None:
        is_owner = self.owner is entry
        if entry.members or is_owner:
            self._let_go()
            if is_owner:
                self.owner, self.is_over = None, True
            members = self.now(entry.members)
            self.held.subtract(members)
            self.leaving = members
            self._let_go()

    def _come_around(self, outer: tuple[OuterEntry, ...]) -> None:
        """Backward comes to an operator inside these modules: others are over, but for those that are never told."""
        ended, begun = self.around.come_back(outer)
        for one in ended:
            if one.is_told:
                if one.is_leaf:
                    self.leaf_over(self.now(one.members)[0])
                self._end_outer(one)
        for one in begun:
            self._begin_outer(one)

    def recorded(self, inputs: Sequence[Tensor | None], fn: Any) -> Any:
        """An operator is about to run: its module's parameters have to be there, now and in its backward."""
        entry, outer = self.entry, self.around.forward
        if entry is not None:
            return self._of_entry(entry, fn)
        found = members_of(inputs)
        if self.around.owns(found):
            found = ()
        views = self._views_of_experts(inputs)
        if not self.policy.learns:
            self.stacked.update(views)
        members = tuple([self._number(one) for one in found]) if found else ()
        if members and members == self.order.asked:
            members = ()
        self._reach(members)
        sums: Tensor | None = None
        is_sum = is_addmm(inputs, members)
        if not self.policy.zero.memory_efficient_linear and not (self.policy.bias_first and is_sum):
            self._note_views(inputs)
        elif not self.policy.bias_first and is_sum:
            bias, weight = members  # an addmm
            sums = inputs[0] if self.order.trained[bias] else None
            if (bias, weight) in self.pairs:
                self.after[bias] = weight

        # a module whose inputs need no gradients is never told that its backward is over (release_backward_leftovers)
        is_told = not members or any(
            one is not None and one.storage is not None and one.node is not None for one in inputs
        )

        if members and is_told:
            self.awaited[members] = 1  # and not one more: each run begins to count anew (_post_backward_module_hook)
        if self.tape.recomputing is not None:
            self.viewed_again.update(views)

        def backward_fn(grad: Any, saved: Any) -> Any:
            if members and is_told:
                self.awaited[members] -= 1
            if not is_told or (members and self.awaited[members]):
                self.leaving = ()
            self._recomputation_over()
            saved = self.tape.unpacked(saved)  # the hook of a module runs before its first node asks for what it saved
            found = fn(grad, saved)
            for one in self.now(views):
                self.viewed_again.discard(one)
                self.viewed.pop(one, None)
            if sums is None or found[0] is None:
                return found
            # the function has the gradient of the bias before it lets go of what was saved
            return (self.tape.new("sum", sums.shape, found[0].dtype, False), *found[1:])

        return Used(members, backward_fn, lambda those, entered: self._come(those, entered, outer))

    def _views_of_experts(self, inputs: Sequence[Tensor | None]) -> tuple[int, ...]:
        """The numbers of the weights of experts among what an operator is given."""
        if not self.experts or self.tape.no_grad:
            return ()
        return tuple([number for one in inputs if (number := self.experts.get(id(one))) is not None])

    def _note_views(self, inputs: Sequence[Tensor | None]) -> None:
        """`F.linear` multiplies by the transposed weight, a view that autograd saves where the input needs a gradient.

        Source: aten/src/ATen/native/Linear.cpp; tools/autograd/derivatives.yaml, mm and addmm.
        """
        is_needed = any(one is not None and one.storage is not None and one.node is not None for one in inputs)
        for one in inputs if is_needed else ():
            if type(one) is Parameter and len(one.shape) == MATRIX:
                self.stacked.add(self._number(one))

    def _of_entry(self, entry: ModuleRun, fn: Any) -> Used:
        """An operator of a module that backward comes to once, with the last of its operators."""
        outer = self.around.forward

        def backward_fn(grad: Any, saved: Any) -> Any:
            if not entry.is_told:
                self.leaving = ()
            self._recomputation_over()
            return fn(grad, self.tape.unpacked(saved))

        def come(members: tuple[int, ...], entered: bool) -> None:
            if entered or self.in_backward is not entry:
                self._come(members, entered, outer)
            self.in_backward = entry

        return Used(entry.members, backward_fn, come)

    def _come(self, members: tuple[int, ...], entered: bool = False, outer: tuple[OuterEntry, ...] = ()) -> None:
        """Backward comes to a module, or back to the one that a checkpoint ran again for.

        Recomputation stops inside that module, which is therefore not over.
        """
        self.in_backward = None
        self._come_around(outer)
        members = self.now(members)
        if entered and members:
            self.leaving = members
            return
        self._reach(members)

    def _reach(self, members: tuple[int, ...]) -> None:
        """An operator runs: what was before is over."""
        self.turned_to(members)
        self._let_go()
        if members:
            self._fetch(members)

    def module_reached(self, module: tuple[Parameter, ...]) -> None:
        """Backward comes to the embeddings whose output was asked for its gradient: nothing tells their end."""
        self._come(tuple([self._number(one) for one in module]))
        self.leaving = ()

    def recomputing(self, node: Node) -> None:
        """A checkpoint is about to run again for the sake of a module, which is come to first.

        Source: partitioned_param_coordinator.py, update_recompute_parameters.
        """
        if type(node.fn) is Used:
            node.fn.come(node.fn.members, False)
            node.fn.is_entered = True
            self.owner = self.around.backward[-1] if self.around.backward and not node.fn.members else None
        self.leaving = ()

    def _recomputation_over(self) -> None:
        """Backward goes on: what a checkpoint gathered again goes with the module that it ran again for."""
        if self.recomputed and self.owner is None:
            self.is_over = True

    def made(self, parameter: Parameter) -> None:
        """A parameter was made; a model may move it behind others later."""
        if self.created:
            self.created.append(parameter)

    def _number(self, parameter: Parameter) -> int:
        found = self.numbers.get(id(parameter))
        if found is None:
            self.created = self.created or list(self.tape.parameters)
            known = zip(
                self.created[self.known :], self.order.made[self.known :], strict=False
            )  # blocks are yet to be made
            self.known = len(self.created)
            self.numbers.update(self.numbered(known))
            found = self.numbers[id(parameter)]
        return found

    def numbered(self, known: Iterable[tuple[Parameter, int]]) -> dict[int, int]:
        """The numbers of parameters, by what tells those apart."""
        return {id(one): number for one, number in known}

    def now(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers of what forward noted, in backward."""
        return members

    def turned_to(self, members: tuple[int, ...]) -> None:
        """A module is come to."""

    def leaf_over(self, number: int) -> None:
        """Backward has left the leaf that has this parameter."""
