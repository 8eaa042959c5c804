"""fms-fsdp, with the models of foundation-model-stack."""

from vramplan.values.engine import Engine

ENGINE = Engine(
    name="fms-fsdp",
    families={"llama": "vramplan.engines.fms_fsdp.model"},
    behaviour={
        "job": "vramplan.engines.fms_fsdp.job:BEHAVIOUR",
        "settings": "vramplan.engines.fms_fsdp.settings:BEHAVIOUR",
    },
)
