"""Test certificates and C2PA credentials, made on the spot; nobody trusts them."""

import io
import json
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

UTC = UTC
DOCUMENT_SIGNING = x509.ObjectIdentifier("1.3.6.1.5.5.7.3.36")


class Authority:
    """A certificate authority with one signing certificate, valid for `last_s` seconds from now."""

    def __init__(self, last_s: int = 10_000_000) -> None:
        now = datetime.now(UTC)
        self.root_key = ec.generate_private_key(ec.SECP256R1())
        self.root = self._certificate(
            "Toy Root", self.root_key, None, now - timedelta(days=900), now + timedelta(days=900)
        )
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.leaf = self._certificate(
            "Toy Signer", self.key, self.root, now - timedelta(days=1), now + timedelta(seconds=last_s)
        )

    def _certificate(self, name, key, issuer, start, end):
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, name),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        parent = x509.SubjectKeyIdentifier.from_public_key(self.root_key.public_key())
        usage = dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(own, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(parent), critical=False
            )
            .add_extension(
                x509.KeyUsage(
                    digital_signature=issuer is not None,
                    key_cert_sign=issuer is None,
                    crl_sign=issuer is None,
                    **usage,
                ),
                critical=True,
            )
        )
        if issuer is not None:
            purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION, DOCUMENT_SIGNING])
            builder = builder.add_extension(purposes, critical=False)
        return builder.sign(self.root_key, hashes.SHA256())

    def root_pem(self) -> str:
        return self.root.public_bytes(serialization.Encoding.PEM).decode()

    def sign(self, picture: bytes, source_type: str, mime: str = "image/jpeg") -> bytes:
        """The picture with a credential whose one action is its creation, of the given source type."""
        import c2pa

        chain = self.leaf.public_bytes(serialization.Encoding.PEM).decode() + self.root_pem()
        key = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        action = {"action": "c2pa.created", "digitalSourceType": source_type}
        manifest = {
            "claim_generator_info": [{"name": "toy", "version": "1"}],
            "title": "toy",
            "assertions": [{"label": "c2pa.actions", "data": {"actions": [action]}}],
        }
        info = c2pa.C2paSignerInfo("es256", chain.encode(), key, None)
        settings = c2pa.Settings.from_dict(
            {"verify": {"verify_after_sign": False}, "builder": {"thumbnail": {"enabled": False}}}
        )
        target = io.BytesIO()
        with c2pa.Context(settings=settings) as context, c2pa.Signer.from_info(info) as signer:
            c2pa.Builder(json.dumps(manifest), context=context).sign(
                signer, mime, io.BytesIO(picture), target
            )
        return target.getvalue()
