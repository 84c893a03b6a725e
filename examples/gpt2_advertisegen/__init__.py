"""GPT-2 fine-tuned by FATE-LLM across three silos, every federated byte carried by fedrdma."""
