"""Loads that users can repeat: ``ds4trio bench ...``."""
