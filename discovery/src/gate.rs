//! The gate: membership is proved inside the transport upgrade, before anything above learns of a connection.
//!
//! After the connection is encrypted and multiplexed (TCP with noise and yamux, QUIC, or a relayed circuit), the dialer
//! opens the very first substream and both sides exchange the messages below on it. Only then is the connection handed
//! to the swarm; otherwise the upgrade fails and no behaviour ever sees the peer. There is no protocol negotiation on
//! this substream.
//!
//! # On the wire
//! Each side sends the seven bytes `skein/1` and then frames: `[u16 little-endian length][CBOR]`, at most
//! 4,096 bytes of CBOR. A message is one of
//!
//! | message | CBOR | meaning |
//! |---|---|---|
//! | none | `"none"` | the sender belongs to no fleet and holds no invite |
//! | certificate | `{"certificate": bytes}` | a signed certificate ([`fleet`](crate::fleet)) |
//! | invite | `{"invite": {"name": text, "token": bytes}}` | a signed invite, and what the sender would like to be called |
//! | accept | `"accept"` | the dialer accepts the listener's certificate |
//! | refuse | `{"refuse": text}` | a refusal's code; the connection ends |
//!
//! ```text
//! dialer    certificate ─▶           listener   checks it
//!                        ◀─ certificate
//! checks it accept      ─▶           both hand the connection on
//!
//! dialer    invite      ─▶           listener   checks, counts, signs (root holder only)
//!                        ◀─ certificate          (the new member's own), then both close
//! ```
//! Either side may send `refuse` in place of its next message. A listener shows its certificate only to a member. A
//! refused peer is told why what it showed does not open this gate; a wrong signature, another machine's certificate
//! and nonsense are all called `malformed`. All of it must be done within five seconds.
//!
//! Each refusal is one line at `warn` for the target `skein::gate` on the refusing side, at most 20 in ten seconds; how
//! many were left out is said in the next line.

mod log;
#[cfg(test)]
mod tests;

pub(crate) use log::RefusalLog;

use crate::{
    fleet::{Certificate, Invite, Refusal, SharedMembership},
    transport::Barrier,
};
use futures::{AsyncReadExt, AsyncWriteExt, future::poll_fn, pin_mut};
use libp2p::{
    Multiaddr, PeerId,
    core::{
        ConnectedPoint, Endpoint,
        muxing::{StreamMuxerBox, StreamMuxerExt, SubstreamBox},
    },
};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    io,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The whole exchange; three trips over a slow link and a disk write fit.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest message: a token with eight long addresses fits.
pub(crate) const MAX_MESSAGE_BYTES: usize = 4 * 1024;
/// How long a refusing side waits for the other to read the reason before it cuts the connection.
const LINGER: Duration = Duration::from_millis(300);
/// First bytes of each side: tells another protocol, or another version of this one, at once.
const PREFACE: &[u8; 7] = b"skein/1";

/// An authenticated, multiplexed connection that has not passed the gate.
pub(crate) struct Connection {
    pub peer: PeerId,
    pub muxer: StreamMuxerBox,
    /// What holds the peer's bytes back until then, where there is such a thing.
    pub barrier: Option<Barrier>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Message {
    None,
    Certificate(ByteBuf),
    Invite { name: String, token: ByteBuf },
    Accept,
    Refuse(String),
}

/// How the gate fails. [`GateError`] carries it as its source, because some wrappers of libp2p's transport show only
/// an error's source.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    /// We do not let the other side in.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The other side does not let us in.
    #[error("the other side refused: {0}")]
    RefusedByPeer(Refusal),
    /// The other side left before it proved anything.
    #[error("connection lost at the gate: {0}")]
    Lost(#[from] io::Error),
    /// The other side redeemed an invite; the connection has done its work.
    #[error("an invite was redeemed over this connection")]
    Redeemed,
}

impl From<Refusal> for Cause {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("membership gate")]
pub(crate) struct GateError(#[source] Cause);

impl Cause {
    /// Finds the gate's verdict inside a transport error.
    pub(crate) fn inside<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        let mut next: Option<&'a (dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = next {
            if let Some(cause) = error.downcast_ref::<Self>() {
                return Some(cause);
            }
            // An io::Error hides what it wraps from `source`.
            next = match error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::get_ref)
            {
                Some(inner) => Some(inner),
                None => error.source(),
            };
        }
        None
    }
}

/// The members that passed the gate, by peer id, with the certificate they showed.
pub(crate) type Admitted = Arc<Mutex<BTreeMap<PeerId, Certificate>>>;

/// What every connection of a swarm has to pass.
#[derive(Clone)]
pub(crate) struct Gate {
    membership: SharedMembership,
    admitted: Admitted,
    log: Arc<RefusalLog>,
}

impl Gate {
    pub(crate) fn new(membership: SharedMembership) -> Self {
        Self {
            membership,
            admitted: Admitted::default(),
            log: Arc::new(RefusalLog::default()),
        }
    }

    pub(crate) fn admitted(&self) -> Admitted {
        self.admitted.clone()
    }

    /// Both sides prove membership, or the connection ends here.
    pub(crate) async fn pass(
        self,
        connection: Connection,
        point: ConnectedPoint,
    ) -> Result<(PeerId, StreamMuxerBox), GateError> {
        let Connection {
            peer,
            mut muxer,
            barrier,
        } = connection;
        let address = point.get_remote_address().clone();
        let outcome = if opens(&point) {
            on_substream(&mut muxer, true, async |stream| {
                self.dialer(stream, peer).await
            })
            .await
        } else {
            on_substream(&mut muxer, false, async |stream| {
                self.listener(stream, peer).await
            })
            .await
        };
        match outcome {
            Ok(certificate) => {
                // Only members get here, so the map is bounded by the fleet.
                self.admitted
                    .lock()
                    .unwrap_or_else(|poisoned| poisoned.into_inner())
                    .insert(peer, certificate);
                if let Some(barrier) = barrier {
                    barrier.open();
                }
                Ok((peer, muxer))
            }
            Err(cause) => {
                self.report(&cause, peer, &address);
                Err(GateError(cause))
            }
        }
    }

    fn report(&self, cause: &Cause, peer: PeerId, address: &Multiaddr) {
        match cause {
            Cause::Refused(refusal) => self.log.refused(*refusal, peer, address),
            // Not under skein::gate: there, one line is one refusal of ours.
            Cause::RefusedByPeer(refusal) => {
                tracing::debug!(%peer, %address, reason = refusal.code(), "a peer refused us");
            }
            Cause::Lost(error) => {
                tracing::debug!(%peer, %address, %error, "connection lost at the gate");
            }
            Cause::Redeemed => {}
        }
    }

    async fn dialer(&self, stream: &mut Exchange<'_>, peer: PeerId) -> Result<Certificate, Cause> {
        let own = self.own_certificate();
        stream
            .send(&own.map_or(Message::None, Message::Certificate))
            .await?;
        match stream.receive().await? {
            Message::Certificate(theirs) => match self.admit(&theirs, peer) {
                Ok(certificate) => {
                    stream.send(&Message::Accept).await?;
                    Ok(certificate)
                }
                Err(refusal) => Err(stream.refuse(refusal).await),
            },
            Message::Refuse(code) => Err(by_peer(&code)),
            _ => Err(stream.refuse(Refusal::Malformed).await),
        }
    }

    async fn listener(
        &self,
        stream: &mut Exchange<'_>,
        peer: PeerId,
    ) -> Result<Certificate, Cause> {
        match stream.receive().await? {
            Message::Certificate(theirs) => {
                match (self.admit(&theirs, peer), self.own_certificate()) {
                    (Ok(certificate), Some(own)) => {
                        stream.send(&Message::Certificate(own)).await?;
                        match stream.receive().await? {
                            Message::Accept => Ok(certificate),
                            Message::Refuse(code) => Err(by_peer(&code)),
                            _ => Err(stream.refuse(Refusal::Malformed).await),
                        }
                    }
                    (Err(refusal), _) => Err(stream.refuse(refusal).await),
                    (Ok(_), None) => Err(stream.refuse(Refusal::NoFleet).await),
                }
            }
            Message::Invite { name, token } => {
                match self.redeem(token.into_vec(), peer, name).await {
                    Ok(certificate) => {
                        let bytes = ByteBuf::from(certificate.encode());
                        stream.send(&Message::Certificate(bytes)).await?;
                        stream.finish().await;
                        Err(Cause::Redeemed)
                    }
                    Err(refusal) => Err(stream.refuse(refusal).await),
                }
            }
            Message::None => Err(stream.refuse(Refusal::NoCertificate).await),
            Message::Refuse(code) => Err(by_peer(&code)),
            Message::Accept => Err(stream.refuse(Refusal::Malformed).await),
        }
    }

    fn admit(&self, certificate: &[u8], peer: PeerId) -> Result<Certificate, Refusal> {
        self.membership.read().admit(certificate, peer)
    }

    fn own_certificate(&self) -> Option<ByteBuf> {
        let membership = self.membership.read();
        Some(ByteBuf::from(membership.certificate()?.encode()))
    }

    /// Books the invite before the certificate leaves; off the event loop, since it waits for the disk.
    async fn redeem(
        &self,
        token: Vec<u8>,
        peer: PeerId,
        name: String,
    ) -> Result<Certificate, Refusal> {
        let membership = self.membership.clone();
        tokio::task::spawn_blocking(move || {
            if membership.read().fleet().is_none() {
                return Err(Refusal::NoFleet);
            }
            let invite = Invite::decode(&token)?;
            membership.change(|membership| membership.redeem(&invite, peer, &name, unix_now()))
        })
        .await
        .unwrap_or(Err(Refusal::Unrecorded))
    }
}

/// The joining side: shows `invite` to the machine that issued it and returns the certificate that it answers with.
/// The connection is used up by it.
pub(crate) async fn redeem(
    connection: Connection,
    invite: &Invite,
    own: PeerId,
    name: &str,
) -> Result<Certificate, Cause> {
    let Connection {
        peer, mut muxer, ..
    } = connection;
    if peer != invite.issuer {
        // Whoever answers at that address must not learn the token.
        return Err(Refusal::WrongPeer.into());
    }
    on_substream(&mut muxer, true, async |stream| {
        let token = ByteBuf::from(invite.encode());
        let name = crate::fleet::clean_name(name);
        stream.send(&Message::Invite { name, token }).await?;
        match stream.receive().await? {
            Message::Certificate(bytes) => {
                let certificate = Certificate::decode(&bytes)?;
                if certificate.fleet != invite.fleet {
                    Err(Refusal::ForeignFleet.into())
                } else if certificate.peer != own {
                    Err(Refusal::WrongPeer.into())
                } else {
                    Ok(certificate)
                }
            }
            Message::Refuse(code) => Err(by_peer(&code)),
            _ => Err(Refusal::Malformed.into()),
        }
    })
    .await
}

/// What a refused peer is told. A stranger learns nothing about this fleet; whoever holds something the root signed
/// learns why it does not open the gate.
fn told(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::ExpiredInvite
        | Refusal::UsedUp
        | Refusal::UnknownInvite
        | Refusal::NotRoot
        | Refusal::ForeignFleet
        | Refusal::NoFleet
        | Refusal::Unrecorded
        | Refusal::NoCertificate
        | Refusal::TooSlow => refusal,
        Refusal::BadSignature | Refusal::WrongPeer | Refusal::Malformed => Refusal::Malformed,
    }
}

fn by_peer(code: &str) -> Cause {
    Cause::RefusedByPeer(Refusal::from_code(code).unwrap_or(Refusal::Malformed))
}

/// Whether this side opens the gate's substream. When two peers dial each other at once to get through a NAT, they
/// agreed beforehand on who plays the listener.
fn opens(point: &ConnectedPoint) -> bool {
    matches!(
        point,
        ConnectedPoint::Dialer {
            role_override: Endpoint::Dialer,
            ..
        }
    )
}

/// Opens or accepts the first substream and talks on it, while the connection beneath is kept going.
async fn on_substream<T>(
    muxer: &mut StreamMuxerBox,
    open: bool,
    talk: impl AsyncFnOnce(&mut Exchange<'_>) -> Result<T, Cause>,
) -> Result<T, Cause> {
    on_substream_within(TIMEOUT, muxer, open, talk).await
}

/// As [`on_substream`], with other patience.
async fn on_substream_within<T>(
    patience: Duration,
    muxer: &mut StreamMuxerBox,
    open: bool,
    talk: impl AsyncFnOnce(&mut Exchange<'_>) -> Result<T, Cause>,
) -> Result<T, Cause> {
    let muxer = &Mutex::new(muxer);
    let work = async {
        let substream = poll_fn(|cx| {
            drive(muxer, cx);
            let mut muxer = lock(muxer);
            if open {
                muxer.poll_outbound_unpin(cx)
            } else {
                muxer.poll_inbound_unpin(cx)
            }
        })
        .await?;
        let mut exchange = Exchange {
            substream,
            muxer,
            greeted: false,
            heard: false,
        };
        talk(&mut exchange).await
    };
    match tokio::time::timeout(patience, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Refusal::TooSlow.into()),
    }
}

type SharedMuxer<'a> = Mutex<&'a mut StreamMuxerBox>;

fn lock<'m, 'a>(muxer: &'m SharedMuxer<'a>) -> std::sync::MutexGuard<'m, &'a mut StreamMuxerBox> {
    muxer
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Lets the connection beneath make progress. Its errors show on the substream too.
fn drive(muxer: &SharedMuxer<'_>, cx: &mut Context<'_>) {
    let mut muxer = lock(muxer);
    while let Poll::Ready(Ok(_address_change)) = muxer.poll_unpin(cx) {}
}

/// The gate's conversation on its substream.
struct Exchange<'a> {
    substream: SubstreamBox,
    muxer: &'a SharedMuxer<'a>,
    greeted: bool,
    heard: bool,
}

impl Exchange<'_> {
    async fn send(&mut self, message: &Message) -> Result<(), Cause> {
        let mut bytes = Vec::new();
        if !self.greeted {
            bytes.extend_from_slice(PREFACE);
            self.greeted = true;
        }
        let body = crate::wire::encode(message);
        let length = u16::try_from(body.len())
            .ok()
            .filter(|length| usize::from(*length) <= MAX_MESSAGE_BYTES)
            .ok_or(Refusal::Malformed)?;
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&body);
        let substream = &mut self.substream;
        driven(self.muxer, async {
            substream.write_all(&bytes).await?;
            substream.flush().await
        })
        .await?;
        Ok(())
    }

    async fn receive(&mut self) -> Result<Message, Cause> {
        let (substream, heard) = (&mut self.substream, &mut self.heard);
        let received: Result<Message, Cause> = driven(self.muxer, async {
            if !*heard {
                let mut preface = [0; PREFACE.len()];
                substream.read_exact(&mut preface).await?;
                if &preface != PREFACE {
                    return Err(Refusal::Malformed.into());
                }
                *heard = true;
            }
            let mut length = [0; 2];
            substream.read_exact(&mut length).await?;
            let length = usize::from(u16::from_le_bytes(length));
            if length > MAX_MESSAGE_BYTES {
                return Err(Refusal::Malformed.into());
            }
            let mut body = vec![0; length];
            substream.read_exact(&mut body).await?;
            crate::wire::decode(&body).map_err(|_| Refusal::Malformed.into())
        })
        .await;
        match received {
            Err(Cause::Refused(refusal)) => Err(self.refuse(refusal).await),
            other => other,
        }
    }

    /// Tells the other side, gives it a moment to hear, and returns what the connection ends with.
    async fn refuse(&mut self, refusal: Refusal) -> Cause {
        let code = told(refusal).code().to_owned();
        if self.send(&Message::Refuse(code)).await.is_ok() {
            self.finish().await;
        }
        refusal.into()
    }

    /// Closes our half and waits until the other side closes too, or for [`LINGER`].
    async fn finish(&mut self) {
        let substream = &mut self.substream;
        let goodbye = driven(self.muxer, async {
            substream.close().await?;
            // What still comes is thrown away; the time bounds it.
            let mut scrap = [0; 256];
            while substream.read(&mut scrap).await? > 0 {}
            io::Result::Ok(())
        });
        let _ = tokio::time::timeout(LINGER, goodbye).await;
    }
}

/// Polls `future`, and the connection beneath it each time.
async fn driven<T>(muxer: &SharedMuxer<'_>, future: impl Future<Output = T>) -> T {
    pin_mut!(future);
    poll_fn(|cx| {
        drive(muxer, cx);
        future.as_mut().poll(cx)
    })
    .await
}

pub(crate) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}
