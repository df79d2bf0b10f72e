"""Sample texts of the control-code experiments."""
