"""Ed25519 keys as PEM files, and the two file operations that signing needs."""

import os
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fleet.errors import BundleError, OutputError


def generate_key(private_key: Path, public_key: Path) -> None:
    """Make an Ed25519 pair as PEM files; the private one is readable by its owner only.

    Raises:
        OutputError: The private key's file exists already, or a file cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        with os.fdopen(
            os.open(private_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        ) as f:
            f.write(secret)
    except FileExistsError as error:
        raise OutputError(f"{private_key} exists already: a signing key is not replaced") from error
    except OSError as error:
        raise OutputError(f"{private_key} cannot be written: {error.strerror}") from error
    write_public_key(private_key, public_key)


def write_public_key(private_key: Path, public_key: Path) -> None:
    """Write the public half of a private key, as the PEM file that `Bundle.open` takes."""
    public = load_private_key(private_key).public_key()
    replace_file(
        public_key,
        public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Read the key that checks; what is none is a BundleError."""
    try:
        key = serialization.load_pem_public_key(read_file(path))
    except ValueError as error:
        raise BundleError(f"{path} is not a public key in PEM form") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BundleError(f"{path} is not an Ed25519 public key")
    return key


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Read the key that signs; what is none is a BundleError."""
    try:
        key = serialization.load_pem_private_key(read_file(path), password=None)
    except (ValueError, TypeError) as error:
        raise BundleError(f"{path} is not a private key in PEM form without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BundleError(f"{path} is not an Ed25519 private key")
    return key


def read_file(path: Path) -> bytes:
    """Return a file's content; what cannot be read is a BundleError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step: a reader sees the old content or the new."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)
