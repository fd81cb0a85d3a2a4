"""The thin edge: kopf's watches fill a cache, a worker turns snapshots into decisions and applies them.

`views` translates what the API server says, `cache` keeps it, `reconciler` runs rounds, `progress` asks gangs how far
they are, `api` sends requests, `preflight` looks whether the cluster is fit, `health` answers probes, `wiring` hangs all
of it on kopf. No decision is made here.
"""
