"""Messages to model text and back: pure."""
