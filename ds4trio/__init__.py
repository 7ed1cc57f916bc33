"""A Trio-native LLM inference server: when a client leaves, its work stops."""

from __future__ import annotations
