"""A node: registers itself, keeps its lease, and runs the pods bound to it as processes."""
