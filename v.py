from peft import LoraConfig, TrainableTokensConfig
from trl import SFTTrainer, SFTConfig
peft_config = LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj","v_proj"], trainable_token_indices=ids, task_type="CAUSAL_LM")
trainer = SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=SFTConfig(per_device_train_batch_size=2, max_length=512), peft_config=peft_config)
trainer.train()
