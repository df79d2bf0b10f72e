"""From a command to a run directory."""
