"""Topics: domain terms and prompts, one YAML file each (idea gate, sec. 4.3 and 5.2)."""
