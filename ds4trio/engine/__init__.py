"""Tokens in, tokens out: knows no text and no HTTP."""
