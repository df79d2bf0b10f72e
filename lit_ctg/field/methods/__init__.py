"""The methods of the field, a file each."""
