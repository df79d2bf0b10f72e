"""The methods of the field."""
