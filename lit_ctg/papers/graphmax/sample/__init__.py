"""Sample texts of the translation experiments."""
