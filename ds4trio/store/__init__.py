"""Model names to model folders on this machine."""
