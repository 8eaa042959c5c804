"""torchtitan."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="torchtitan",
    reads_shards=True,  # components/checkpoint.py: torch.distributed.checkpoint loads into shards that are there
    families={"llama": "vramplan.engines.torchtitan.model"},
    rules=("vramplan.engines.torchtitan.chunked",),
    behaviour={
        "job": "vramplan.engines.torchtitan.job:BEHAVIOUR",
        "planner": "vramplan.engines.torchtitan.planner:BEHAVIOUR",
        "settings": "vramplan.engines.torchtitan.settings:BEHAVIOUR",
        "time": "vramplan.engines.torchtitan.time:BEHAVIOUR",
    },
)
