"""Certificates, keys and kubeconfigs of one cluster."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 3650
KUBELET_CLIENT = "kube-apiserver-kubelet-client"


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that writes what it issues into one folder."""

    def __init__(self, folder: Path, name: str) -> None:
        """Make a new authority called ``name`` in the folder."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self.name = name
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"kronos-local-{name}")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            self._builder(self.subject, self.private.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        self.certificate = self._write(f"{name}.crt", self._sign(builder))

    def issue(self, name: str, common_name: str, *, group: str = "", hosts: tuple[str, ...] = ()) -> Pair:
        """Issue a certificate for a client (user and group) that may also serve the given hosts."""
        private = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if group:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            self._builder(x509.Name(attributes), private.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses if hosts else uses[:1]), critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = self._write(f"{name}.crt", self._sign(builder))
        return Pair(certificate, write_private(self.folder / f"{name}.key", private))

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.private.public_key()), critical=False
            )
        )

    def _sign(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self.private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path


def general_name(host: str) -> x509.GeneralName:
    """A subject alternative name for a host name or an address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_private(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    """Write a private key that only this user can read."""
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    return path


def service_account_keys(folder: Path) -> Pair:
    """The key pair with which service account tokens are signed and checked."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = folder / "service-account.pub"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return Pair(public, write_private(folder / "service-account.key", key))


def write_kubeconfig(path: Path, server: str, authority: Path, user: str, pair: Pair) -> Path:
    """Write a kubeconfig that holds its certificates itself, so that it can be copied."""

    def inline(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": inline(authority)}
    login = {"client-certificate-data": inline(pair.certificate), "client-key-data": inline(pair.key)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "kronos-local", "cluster": cluster}],
        "users": [{"name": user, "user": login}],
        "contexts": [{"name": "kronos-local", "context": {"cluster": "kronos-local", "user": user}}],
        "current-context": "kronos-local",
    }
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as stream:
        yaml.safe_dump(content, stream)
    return path
