"""Model names to model folders on this machine.

Knows nothing of tensors' meaning, prompts or serving. Everything here is synchronous, may take
minutes, and may be interrupted or killed at any moment.
"""
