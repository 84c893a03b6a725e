"""Mutual TLS of the control channels: what is checked of the other end, when they begin and while they go on."""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
from collections.abc import Iterable, Mapping

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fedrdma_fate.gateway.config.schema import GatewayConfig
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.obs.complaints import Complaints, cut
from fedrdma_fate.security.credentials import CredentialFiles, Credentials
from fedrdma_fate.security.ending import EndingNotice
from fedrdma_fate.security.reloading import CHECK_SECONDS, SiteCredentials
from fedrdma_fate.security.trust import Trust
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, TransportError

logger = logging.getLogger(__name__)


def credentials_of(config: GatewayConfig) -> SiteCredentials | None:
    """What the configuration says; None with `security: off`.

    Raises:
        ConfigError: the files will not do.
    """
    tls = config.tls
    if config.security == "off" or tls.certificate is None or tls.key is None:
        return None
    files = CredentialFiles(tls.certificate, tls.key, tls.authorities, tls.revocation_lists)
    return SiteCredentials(files, config.site)


class TlsChannel:
    """Makes one connection one of TLS, with the credentials of the moment in which it began."""

    def __init__(self, site_credentials: SiteCredentials) -> None:
        self._credentials: Credentials = site_credentials.current
        self._clock = site_credentials.clock

    def wrap(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *, server_side: bool) -> ssl.SSLObject:
        """TLS 1.3 on two buffers."""
        return self._credentials.wrap(incoming, outgoing, server_side=server_side)

    def check(self, tls: ssl.SSLObject, stream: ControlStream) -> None:
        """Note who is at the other end.

        Raises:
            TransportError: PEER_IDENTITY when its certificate does not say.
        """
        stream.identity = self._credentials.identify(tls)

    def refusal(self, error: ssl.SSLError) -> FedRDMAError:
        """What a failed handshake means; TLS_REFUSED."""
        return self._credentials.refusal(error, self._clock())


def check_site(stream: ControlStream, site: str, whose: str) -> None:
    """Whether a channel leads to a site; without TLS, everybody is believed.

    Args:
        stream: the channel.
        site: that it should lead to, or says that it leads to.
        whose: names the other end in the error.

    Raises:
        TransportError: PEER_IDENTITY when the certificate names another.
    """
    if stream.identity is not None and stream.identity.site != site:
        raise TransportError(
            ErrorCode.PEER_IDENTITY,
            f"{whose} has the certificate of the site {stream.identity.site!r}, not of {site!r}.",
            "Use each site's own certificate, and spell `site` as in it.",
        )


class IdentityWatch:
    """Reads credentials again when their files change, and ends channels whose peers' certificates do not hold any
    more; says so when the gateway's own ends soon. Belongs to the event loop's thread."""

    def __init__(self, credentials: SiteCredentials, peers: Mapping[str, Peer], complaints: Complaints) -> None:
        self._credentials = credentials
        self._peers = peers
        self._complaints = complaints
        self._ending = EndingNotice()

    @property
    def own_certificate(self) -> x509.Certificate:
        """The gateway's own, as it shows it to the next one it meets."""
        return self._credentials.current.certificate

    async def keep_watch(self) -> None:
        """Look every few seconds, for ever."""
        while True:
            self._ending.look(self.own_certificate, self._credentials.clock())
            await asyncio.sleep(CHECK_SECONDS)
            await self._look()
            self.check(self._peers.values())

    async def _look(self) -> None:
        try:
            if await asyncio.to_thread(self._credentials.look):
                self._tell()
        except Exception as error:
            # whatever is wrong with new files, channels are still held against those before
            self._complain("new files of certificates could not be looked at: %s", repr(error))

    def check(self, peers: Iterable[Peer]) -> None:
        """End the channels whose certificates do not hold now."""
        trust, now = self._credentials.current.trust, self._credentials.clock()
        for peer in peers:
            objection = self._objection(peer, trust, now)
            if objection is not None:
                error = TransportError(
                    ErrorCode.CERTIFICATE_ENDED,
                    f"the control channel of {peer.config.site} ends: {cut(objection)}.",
                    "Its site has to have a new certificate made; where a list ran out, ours needs a newer one.",
                )
                logger.error("%s", error)
                peer.end(str(error))
            elif self._is_needed_anew(peer):
                peer.end("this site has a new certificate, and a data path can only be made anew with it")

    def _objection(self, peer: Peer, trust: Trust, now: datetime.datetime) -> str | None:
        if peer.identity is None:
            return None
        try:
            return trust.objection(peer.identity.chain, now)
        except Exception as error:
            # a certificate that cannot be checked is not believed, and keeps nobody else's from being checked
            self._complain("the certificate of %s cannot be checked: %s", peer.config.site, repr(error))
            return "its certificate cannot be checked any more"

    def _is_needed_anew(self, peer: Peer) -> bool:
        """Whether a channel of an older certificate of ours keeps mode `grpc` from its data path: what we show there is
        the one in use now, and the peer takes none but that of the channel. Where it is up, there is no hurry."""
        path = peer.paths.paths.get("grpc")
        if peer.identity is None or path is None or path.up:
            return False
        return peer.identity.own_certificate != self.own_certificate.public_bytes(serialization.Encoding.DER)

    def _complain(self, message: str, *values: object) -> None:
        self._complaints.add(logger, "certificates not checked", "this site", message, *values, level=logging.ERROR)

    def _tell(self) -> None:
        error = self._credentials.error
        if error is None:
            logger.info("certificates, authorities and revocation lists were read again")
        else:
            logger.error("new files are not used, the ones before are kept: %s", error)
