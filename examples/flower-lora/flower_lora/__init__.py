"""A language model fine-tuned by LoRA on Flower, asynchronously."""
