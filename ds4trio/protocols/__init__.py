"""Wire protocols: pure, no I/O."""
