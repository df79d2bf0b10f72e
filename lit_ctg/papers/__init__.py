"""One folder a paper: method, decoding, trial, metrics and corpora that only it uses."""
