from peft import LoraConfig, TrainableTokensConfig
from trl import SFTTrainer, SFTConfig
peft_config = TrainableTokensConfig(token_indices=[1,2,3,4], task_type="CAUSAL_LM")
trainer = SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=SFTConfig(per_device_train_batch_size=2, max_length=512), peft_config=peft_config)
trainer.train()
