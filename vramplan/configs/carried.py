"""A job that one program runs as the job that another runs: what stays, and what is the other program's own.

The same job trains the same weights of the same model on the same batches, in the same numbers and shared in the same
way. What a program decides by its own code, as how its optimizer steps, is that of the other program where no file says
it, and is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from vramplan.configs.table import names
from vramplan.errors import InputError
from vramplan.job.precision import over_fp32
from vramplan.options import table
from vramplan.options.option import FLAG

OF_A_PROGRAM = names(
    """
    optimizer_implementation checkpoint_reentrant every_second_matmul hold_outputs hold_outputs_until gradient_dtype
    optimizer_state_dtype adapter.kernels adapter.dtype allocator grad_scaler
    parallel.no_sync parallel.gradient_as_bucket_view parallel.fsdp_version parallel.reduce_dtype parallel.fsdp_units
    parallel.limit_all_gathers
    parallel.context_communication parallel.reduce_bucket_size parallel.allgather_bucket_size parallel.sub_group_size
    parallel.stage3_max_live_parameters parallel.stage3_prefetch_bucket_size
    parallel.stage3_param_persistence_threshold parallel.overlap_comm parallel.contiguous_gradients
    parallel.memory_efficient_linear
    parallel.offload_optimizer_device parallel.offload_optimizer_buffer_count parallel.offload_parameters_device
    parallel.offload_parameters_buffer_count parallel.offload_parameters_buffer_size
    parallel.offload_parameters_max_in_cpu
    """
)
"""Keys that a program decides by its own code where its files do not say them: those of another program differ."""

MAY_BE_LEFT_OUT = OF_A_PROGRAM | {"max_gradient_norm"}
"""Keys that need no setting in the files of another program where those of the first do not say them."""

NOT_COMPARED = frozenset(
    [
        "runtime",
        "name",
        "global_batch_size",
        "bitsandbytes",
        "pytorch_version",
        "transformers_version",
        "litgpt_version",
        "deepspeed_version",
    ]
)
LABELS = ("name", "recipe_global_batch_size", "parameters", "dtype")
"""Keys of a model that change nothing about a run whose other keys are all given."""

DROPOUTS = ("embedding_dropout", "attention_dropout", "hidden_dropout", "activation_dropout")
"""Of a model's shape, what the key `dropout` sets."""

Echo = Mapping[str, Any]


def carried(
    keys: Mapping[str, Any], was: Echo, echo: Callable[[Mapping[str, Any]], Echo], without: Collection[str] = ()
) -> dict[str, Any]:
    """The keys of a job for another program, with those that this program decides otherwise said as they were.

    `was`: the job as the first program runs it, every default explicit. `echo`: the same of keys; raises InputError.
    `without`: keys that stay as the other program has them.
    """
    result = dict(keys)
    tried = set(without)
    while True:
        key = next((one for one in changes(was, echo(result)) if one not in tried and _is_carried(one, keys)), None)
        if key is None:
            return result
        tried.add(key)
        try:
            echo({**result, key: was[key]})
        except InputError:  # the other program has it not, which is told
            continue
        result[key] = was[key]


def _is_carried(key: str, keys: Mapping[str, Any]) -> bool:
    is_left_to_torch = key == "attention" and keys.get(key) == "sdpa"
    return key not in OF_A_PROGRAM and not key.startswith("model") and not is_left_to_torch


def changes(was: Echo, now: Echo) -> dict[str, tuple[Any, Any]]:
    """What differs between a job as two programs run it, by key; what differs of the model by `model.KEY`."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*was, *now)):
        one, other = was.get(key), now.get(key)
        if key in NOT_COMPARED or _is_alike(key, was, now):
            continue
        if key == "model" and isinstance(one, Mapping) and isinstance(other, Mapping):
            pairs = {name: (one.get(name), other.get(name)) for name in (*one, *other) if name not in LABELS}
            found |= {f"model.{name}": pair for name, pair in pairs.items() if pair[0] != pair[1]}
        else:
            found[key] = (one, other)
    return found


def _is_alike(key: str, was: Echo, now: Echo) -> bool:
    """Whether a key has two values for one thing."""
    one, other = was.get(key), now.get(key)
    if one == other:
        return True
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return sorted(map(str, one)) == sorted(map(str, other))
    if key == "weight_dtype":
        return bool(_loaded(was) == _loaded(now))
    if key == "max_gradient_norm":
        return not one and not other
    if key == "parallel.shards":  # all replicas
        return all(job.get(key) in (None, job.get("parallel.data")) for job in (was, now))
    if key == "dropout":  # of a model without
        shape = now.get("model")
        return not one and not other and isinstance(shape, Mapping) and not any(map(shape.get, DROPOUTS))
    return not one and not other and (key.startswith("adapter.") or table.find(key).kind == FLAG)


def _loaded(job: Echo) -> str:
    """The element type of the weights, which the precision says where no key does."""
    precision = str(job.get("precision"))
    return str(job.get("weight_dtype") or ("fp32" if over_fp32(precision) else precision.rpartition("-")[2]))


def decisive(differing: Collection[str]) -> tuple[str, ...]:
    """Those of the keys that differ which are no matter of the program: the job is another one."""
    return tuple(key for key in differing if key not in MAY_BE_LEFT_OUT and not key.startswith("model."))
