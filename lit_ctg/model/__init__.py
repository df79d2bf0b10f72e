"""One LightningModule a paper; papers never import each other."""
