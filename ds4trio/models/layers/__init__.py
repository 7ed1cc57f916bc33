"""What several model families share."""
