"""HTTP: the only ASGI, the only hypercorn."""
