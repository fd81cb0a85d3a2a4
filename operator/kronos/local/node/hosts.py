"""The text of the hosts file in every pod, which stands in for cluster DNS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DOMAIN = "svc.cluster.local"
LOCAL_LINES = ("127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback")


@dataclass(frozen=True)
class Peer:
    """A pod that may be found by name."""

    namespace: str
    address: str
    hostname: str
    subdomain: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True

    @property
    def fqdn(self) -> str:
        """The pod's own full name, or just its host name when it has no subdomain."""
        if self.subdomain:
            return f"{self.hostname}.{self.subdomain}.{self.namespace}.{DOMAIN}"
        return self.hostname


@dataclass(frozen=True)
class HeadlessService:
    """A Service without an address of its own, whose name stands for its pods."""

    namespace: str
    name: str
    selector: Mapping[str, str]
    publish_not_ready: bool = False

    @classmethod
    def from_object(cls, service: Mapping[str, Any]) -> HeadlessService | None:
        """Read a Service; None for one that is not headless or selects nothing."""
        spec = service["spec"]
        if spec.get("clusterIP") != "None" or not spec.get("selector"):
            return None
        metadata = service["metadata"]
        publish = bool(spec.get("publishNotReadyAddresses"))
        return cls(metadata["namespace"], metadata["name"], spec["selector"], publish)

    def selects(self, peer: Peer) -> bool:
        """Whether the Service publishes the pod."""
        return (
            peer.namespace == self.namespace
            and (peer.ready or self.publish_not_ready)
            and self.selector.items() <= peer.labels.items()
        )

    def names(self, seen_from: str) -> list[str]:
        """The Service's names, as usable in a namespace."""
        full = [f"{self.name}.{self.namespace}", f"{self.name}.{self.namespace}.svc"]
        full.append(f"{self.name}.{self.namespace}.{DOMAIN}")
        return ([self.name] if seen_from == self.namespace else []) + full


def addresses(
    namespace: str, services: Iterable[HeadlessService], peers: Sequence[Peer]
) -> list[tuple[str, str]]:
    """Every pair of a name and an address that a pod in the namespace can look up."""
    found = []
    for service in sorted(services, key=lambda item: (item.namespace, item.name)):
        for peer in sorted(peers, key=lambda item: item.address):
            if service.selects(peer):
                own = service.names(namespace)
                if peer.hostname and peer.subdomain == service.name:
                    found += [(f"{peer.hostname}.{name}", peer.address) for name in own]
                found += [(name, peer.address) for name in own]
    return found


def hosts_text(
    me: Peer, services: Iterable[HeadlessService], peers: Sequence[Peer], host_lines: Iterable[str] = ()
) -> str:
    """The hosts file of a pod: itself, its machine's own entries, and the pods behind Services."""
    own = [me.fqdn] + ([me.hostname] if me.fqdn != me.hostname else [])
    lines = [f"{me.address} {' '.join(own)}", *LOCAL_LINES]
    for line in host_lines:
        words = line.partition("#")[0].split()
        names = [word for word in words[1:] if word not in {*own, "localhost"}]
        if names:
            lines.append(" ".join([words[0], *names]))
    by_address: dict[str, list[str]] = {}
    for name, address in addresses(me.namespace, services, peers):
        if name not in by_address.setdefault(address, []):
            by_address[address].append(name)
    lines += [f"{address} {' '.join(names)}" for address, names in by_address.items()]
    return "\n".join(lines) + "\n"
