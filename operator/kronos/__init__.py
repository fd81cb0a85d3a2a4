"""Kronos: a Kubernetes operator that trains models on shared accelerator clusters."""
