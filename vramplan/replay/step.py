"""One steady-state training iteration: forward, loss, backward, optimizer step.

Steady state: optimizer states exist, gradients start as None unless earlier micro-steps of an accumulation left them,
the caller drops the model's output before backward unless it is told to hold it. What is held lives until backward is
over, or, with `outlives`, until the next forward pass has made new outputs: such an iteration begins with what the one
before has left.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.engines import imported
from vramplan.replay.kernels import Launches
from vramplan.replay.ledger import NotAlike
from vramplan.replay.models import family, iteration_of
from vramplan.replay.models.parts import kept_of_samples, takes_samples_apart
from vramplan.replay.observers import Release, Sharding, Trained
from vramplan.replay.operators.elementwise import mul_scalar
from vramplan.replay.optimizers import optimizer_of
from vramplan.replay.precision import precision_of
from vramplan.replay.recipe import recipe_of
from vramplan.replay.record import Record
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import objective_of, shards_of, techniques_of
from vramplan.replay.tensors import Parameter, Tensor
from vramplan.values.parallel import DDP, is_fsdp

if TYPE_CHECKING:
    from vramplan.replay.carried import Carried
    from vramplan.replay.start import Start


HALVES = ("fp16", "bf16")  # element types of checkpoints
INT8, FP32 = "int8", "fp32"
HALF_BYTES = 2  # weights are brought to 16 bits before they are quantized


def replay(
    setup: Setup,
    *,
    batch: int = 2,
    direct: bool = False,
    unrolled: bool = False,
    periodic: bool = True,
    tape: Tape | None = None,
) -> Record:
    """Replay one iteration, on a fresh tape of the caller's if one is given.

    `batch=2` gives a record that is valid for every micro-batch above 1, `batch=1` one for 1 alone. `direct=True`
    replays every block at exactly that micro-batch, sizes rounded one by one: the reference that tests compare with.
    `unrolled=True` replays every block too, and is valid for the micro-batches that it is valid for without: what
    the simulated allocator plays. A stage of a pipeline cannot be unrolled; of a compiled step `batch` is then a
    micro-batch, and the record is valid for those at which every size compares as it does there (`compared`).
    `periodic=False` gives every block or checkpoint a unit of its own kind, where blocks come in turns.
    """
    enabled = gc.isenabled()
    gc.disable()  # a collection in the middle would cost time; lifetimes do not depend on it
    try:
        address = iteration_of(setup.model.family, in_pipeline=setup.stage is not None)
        own = replay_one if address is None else imported(address)
        if tape is not None:
            tape.is_certain = True
        while True:
            try:
                record: Record = own(setup, tape or tape_for(setup, batch, direct, unrolled, periodic))
            except NotAlike:  # who says so takes fewer for alike from then on
                continue
            earlier = earlier_of(setup) if tape is None and not unrolled else None
            if earlier is not None:
                record.earlier = replay(earlier, batch=batch, direct=direct, periodic=periodic)
            return record
    finally:
        if enabled:
            gc.enable()


FIRST, MIDDLE, FORWARD = "first", "middle", "forward"


def earlier_of(setup: Setup) -> Setup | None:
    """A micro-step before the last one, where it may hold more: under `no_sync`, where the last alone reduces.

    So it is under FSDP, and under DDP whose gradients are views of buckets. In a middle one each whole gradient is
    there from the start to the end. Where there are two micro-steps it is the first, which finds none. The replay of
    the last one knows the gradients of a block from when it comes to it on: its forward pass is that of a middle one
    (`forward`).
    """
    sharding = setup.sharding
    if setup.before_last == FIRST:
        return setup._replace(before_last=FORWARD, accumulating=True)
    flat = sharding is not None and is_fsdp(sharding.kind) and sharding.no_sync and sharding.way is None
    whole = flat or (sharding is not None and sharding.kind == DDP and sharding.bucket_views)
    if not whole or not setup.accumulating or setup.before_last or setup.stage is not None:
        return None
    if setup.has_middle_steps:
        return setup._replace(before_last=MIDDLE)
    return setup._replace(before_last=FIRST, accumulating=False)


def stands_for(setup: Setup, micro: int) -> int:
    """The micro-batch whose records play another one too: sizes follow from it, unless a program decides by them.

    Which part of a pipeline's stage is the worst, what one compiled graph fuses, what a runtime's own iteration does
    and how often code runs that takes samples one by one depend on the micro-batch itself.
    """
    own = setup.compile or setup.stage is not None or takes_samples_apart(setup.model.family)
    if own or iteration_of(setup.model.family, in_pipeline=False) is not None:
        return micro
    return min(micro, 2)


def tape_for(setup: Setup, batch: int, direct: bool, unrolled: bool, periodic: bool) -> Tape:
    """A fresh tape that plays a step as the setup runs it: operator by operator, or compiled."""
    if not setup.compile:
        kind = Tape if periodic else BlockTape
        return kind(batch, direct=direct, unrolled=unrolled)
    tape: Tape = imported("vramplan.replay.compiled:tape_of")(setup, batch, direct=direct, unrolled=unrolled)
    return tape


def replay_one(setup: Setup, tape: Tape) -> Record:
    """Replay one iteration, or one micro-batch of a stage of a pipeline."""
    iteration = Iteration(setup, tape)
    loss = [iteration.forward()]
    saved_at = len(tape.events)
    iteration.backward(loss)
    iteration.step()
    return iteration.record(saved_at)


class BlockTape(Tape):
    """Records what the search for placements takes apart: each block or checkpoint is a unit of its own."""

    periodic = False


class Iteration:
    """A model on its tape, and who takes part in its iteration.

    Variables are lifetimes: a tensor lives as long as a local variable or an attribute holds it.
    """

    def __init__(self, setup: Setup, tape: Tape) -> None:
        self.setup, self.tape = setup, tape
        self.precision = precision_of(setup.precision, half_weights=setup.half_weights)
        recipe = recipe_of(setup, self.precision)
        old = {"adam_denominators": setup.adam_denominators, "first_flash": setup.first_flash}
        tape.enlist(Release, Release(setup.pytorch, composed_norms=setup.composed_norms, **old))
        # what the allocator plays is asked for no time, but for the replay that tests compare with
        self.ran = Launches(tape) if tape.direct or not tape.unrolled else None
        self.techniques = techniques_of(setup, tape, self.precision)
        for one in self.techniques:
            one.before_model()
        self.model = family(setup.model.family)(tape, recipe)
        self.shards = shards_of(setup, tape, recipe, self.precision)
        self.objective = objective_of(setup, tape, recipe)
        self.arguments, self.inputs = self.objective.inputs(self.model)
        self.optimizer = optimizer_of(setup, tape, self.precision)
        self.outputs: list[object] = []  # the outputs of the model that the training loop holds
        self.unreached: list[Parameter] = []
        self.carried: Carried | None = None  # outputs that the iteration before has left
        self.gradients_before: Carried | None = None  # and its gradients

    def forward(self) -> Tensor:
        """The loss that backward begins with."""
        tape, setup = self.tape, self.setup
        tape.phase("forward")
        if setup.outlives and not setup.compile:  # what hangs on a compiled graph is not modelled
            self.carried = imported("vramplan.replay.carried:Carried")(tape)
        if setup.zeroes_late:
            self.gradients_before = imported("vramplan.replay.carried:LateZeroing")(tape)
        self.shards.before_forward()
        for one in self.techniques:
            one.before_forward()
        tape.autocast = self.precision.autocast
        arguments = self.arguments
        for one in self.techniques:
            arguments = one.given(arguments, self.inputs)
        output = self.objective.forward(self.model, arguments, self.inputs)
        del arguments
        assert output.loss is not None
        loss = self.shards.after_model(output.loss)
        divides = self.objective.divides and not self.shards.divides_loss
        if setup.accumulating and setup.stage is None and divides:
            loss = mul_scalar(loss)  # a pipeline divides the gradients, in place
        tape.autocast = None
        for one in self.techniques:
            loss = one.scale(loss)
        output = self.objective.returned(output)
        for one in self.techniques:
            one.after_forward()
        tape.casts.clear()
        if setup.hold_outputs:
            self.outputs += (output, *(tensor for one in self.techniques for tensor in one.beside_outputs()))
        if self.carried is not None:
            self.carried.outputs_bound()
        if self.gradients_before is not None:
            self.gradients_before.let_go()
        return loss

    def backward(self, held: list[Tensor]) -> None:
        """Compute the gradients, from the loss in `held` or from what the next stage of a pipeline sends."""
        tape, stage = self.tape, self.setup.stage
        self._find_unreached()
        tape.phase("backward")
        loss = self.shards.before_backward(held.pop())
        began = self.optimizer.backward(loss, received=stage is not None and not stage.last)
        del loss
        if not self.shards.ends_in_backward:
            began.clear()
        tape.drop_leaves()
        self.whole, self.buffers = tape.parameters, self.model.buffers()
        for one in self.techniques:
            self.buffers = [*self.buffers, *one.buffers()]
        tape.parameters = self.shards.after_backward()
        of_last_stage = stage is not None and stage.last  # which keeps its outputs until the next step
        began.clear()
        self.optimizer.after_backward()
        if self.carried is None and not of_last_stage:
            self.outputs.clear()

    def step(self) -> None:
        """Clipping, the optimizer's step, and zero_grad(set_to_none=True), which a loop may leave for later."""
        self.tape.phase("step")
        for one in self.techniques:
            one.before_clipping()
        self.shards.before_step()
        if not self.shards.clips:
            for one in self.techniques:
                one.clip()
        for one in self.techniques:
            one.before_step()
        self.optimizer.step()
        for one in reversed(self.techniques):
            one.after_step()
        if self.gradients_before is not None:
            own = [one.grad for one in self.tape.parameters]
            self.gradients_before.end([*own, *self.shards.gradients()])
        for parameter in self.tape.parameters:
            parameter.grad = None
        self.shards.after_step()
        if self.carried is not None:
            self.carried.end(self.outputs)
        self.outputs.clear()
        self.arguments.clear()
        self.tape.release()

    def record(self, saved_at: int) -> Record:
        """The record, with all that is on the device from the beginning to the end; the tape lets go of its guests."""
        tape = self.tape
        if len(tape.events) != 2 * len(tape.fixed) + tape.unseen.deaths_besides:
            raise RuntimeError("a tensor outlived its iteration: lifetimes cannot be trusted on this interpreter")
        states, managed = self._states(), self.optimizer.managed_bytes()
        pieces = self._pieces() if tape.unrolled else ()
        loads = self._loads(tape.parameters) if tape.unrolled else ()
        self.shards.drop()
        tape.parameters, owned = self.whole, tape.parameters
        record = Record(tape, states, saved_at, managed, ran=self.ran)
        record.carried = tuple(one.told() for one in (self.carried, self.gradients_before) if one is not None)
        if tape.unrolled:
            record.weight_bytes = tuple(one.stored_bytes for one in owned for _ in range(one.copies))
            record.load_bytes = loads
            record.start = self._start(owned)
            record.state_bytes = pieces
        for one in self.techniques:
            one.annotate(record)
        self.shards.annotate(record)
        if self.setup.before_last:
            record.end_before("backward" if self.setup.before_last == FORWARD else "step")
        tape.dismiss(Sharding)
        tape.dismiss(Trained)
        tape.tell(())  # which know the tape
        for parameter in (*self.whole, *owned):
            parameter.node = None  # it was its own accumulator: the only cycle, and no storage hung on it
        tape.parameters.clear()
        return record

    def _states(self) -> list[StandingState]:
        """What is on the device during the whole iteration."""
        states = [StandingState("weights", sum(one.stored_bytes * one.copies for one in self.tape.parameters), 0)]
        if self.precision.master:
            self._wake()  # a master copy is of every trainable weight
        states += self.optimizer.states()
        for one in self.techniques:
            states += one.states(self.buffers)
        states += self.shards.states()
        states += self.inputs
        states += [StandingState("buffers", rounded(size), 0) for size in self.buffers]
        if self.setup.model.rope_scaling is not None:
            states += [StandingState("buffers", rounded(size), 0) for size in self.model.kept()]
        states += [StandingState("buffers", 0, size) for size in kept_of_samples(self.setup.model.family)]
        self._wake()
        return states

    def _loads(self, owned: Sequence[Parameter]) -> tuple[tuple[int, ...], ...]:
        """Bytes of what each weight is quantized or cut from on the device; nothing of one that comes as it is.

        Source: bitsandbytes 0.50.2, nn/modules.py, Params4bit._quantize and Int8Params._quantize.
        """
        setup = self.setup
        if setup.sharding is not None and setup.sharding.kind != DDP:
            cut = () if setup.reads_shards else self.shards.cut_from()
            return tuple(sizes for one, sizes in zip(owned, cut, strict=False) for _ in range(one.copies))
        if setup.quantization is None or setup.quantization.startswith("gptq"):
            return ()
        halves = [(rounded(one.elements * HALF_BYTES),) if len(one.quantized) > 1 else () for one in owned]
        return tuple(sizes for one, sizes in zip(owned, halves, strict=True) for _ in range(one.copies))

    def _start(self, owned: Sequence[Parameter]) -> Start | None:
        """What a program says that it does before the first iteration, of weights that each device has whole."""
        setup = self.setup
        is_whole = setup.sharding is None or setup.sharding.kind == DDP
        if setup.loading is None or not is_whole or setup.split is not None:
            return None
        wide = setup.model.dtype not in HALVES
        narrow = setup.quantization != INT8 and setup.precision != FP32
        start_of = imported("vramplan.replay.loading:start_of")
        found: Start = start_of(owned, setup.loading, wide_checkpoint=wide, narrow_adapters=narrow)
        return found

    def _pieces(self) -> tuple[tuple[int, ...], ...]:
        """The optimizer's states tensor by tensor, which only the simulated allocator asks for."""
        setup, parameters = self.setup, self.tape.parameters
        how = setup.optimizer, setup.optimizer_implementation, self.precision, setup.wide_embeddings
        pieces: tuple[tuple[int, ...], ...] = imported("vramplan.replay.optimizers.pieces:state_pieces")(
            parameters, *how
        )
        return pieces

    def _find_unreached(self) -> None:
        """Find the weights that do not affect the loss: their gradients stay None, and optimizers skip them."""
        late = [one for one in self.techniques if one.records_in_backward]
        found = [weight for one in late for weight in one.never_walked()] if late else self.tape.parameters
        self.unreached = [one for one in found if one.node is not None and not one.pending]
        for one in self.unreached:
            one.idle, one.node = True, None
        self.shards.unreached(self.unreached)

    def _wake(self) -> None:
        for one in self.unreached:
            one.node = one
