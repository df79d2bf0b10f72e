"""Drawing tokens from scores."""
