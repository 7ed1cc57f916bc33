"""Structured output: what an answer must look like, as masks over the vocabulary.

Knows nothing of models, engines or HTTP. The work is llguidance's.
"""
