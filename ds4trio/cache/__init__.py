"""What was computed once, kept for whoever needs it again.

Token ids in, tensors out: knows nothing of text, of models' shapes, or of who asks.
"""
