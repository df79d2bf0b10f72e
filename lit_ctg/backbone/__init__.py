"""Networks the papers share."""
