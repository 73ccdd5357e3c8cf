"""AWS Trainium / Inferentia (Neuron): probe reads its chip.toml without importing this package."""
