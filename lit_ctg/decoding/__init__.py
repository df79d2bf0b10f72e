"""How tokens are drawn from scores."""
