"""The demo: two jobs that don't fit beside each other, from `kubectl apply` to Complete on a local cluster."""
