"""What every paper builds on."""
