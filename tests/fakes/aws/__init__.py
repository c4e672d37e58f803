"""An AWS on loopback for tests: moto, and a proxy that fails as it is told."""
