//! A machine's membership, kept in one file.
//!
//! Changes are written before they take effect: whoever holds a certificate from us is in our books, whatever crashes.

use super::{Certificate, FleetId, Invite, InviteTerms, Refusal, standing::Standing};
use crate::{platform, wire};
use libp2p::PeerId;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, RwLock, RwLockReadGuard},
};
use tokio::sync::watch;

const FILE: &str = "fleet.cbor";
/// More uses than any fleet of this design has members.
const MAX_USES: u32 = 10_000;

/// A fleet as one of its members sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetInfo {
    /// The fleet's id.
    pub id: FleetId,
    /// Its name.
    pub name: String,
    /// What this machine may do in it.
    pub role: Role,
}

/// What a member may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Holds the root secret: invites and signs.
    Root,
    /// Everybody else.
    Member,
}

/// Why membership could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// The file system refused.
    #[error("cannot use {path}: {error}", path = path.display())]
    Io {
        /// The membership file.
        path: PathBuf,
        /// What the file system said.
        error: io::Error,
    },
    /// The file is there and does not make sense.
    #[error("{path} cannot be used: {why}", path = path.display())]
    Damaged {
        /// The membership file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A machine belongs to one fleet at a time.
    #[error("this machine already belongs to the fleet \"{0}\"")]
    AlreadyMember(String),
    /// There is no fleet to invite to.
    #[error("this machine belongs to no fleet")]
    NoFleet,
    /// Only the root holder invites.
    #[error("only the machine that made the fleet can invite, and this is another member")]
    NotRoot,
    /// The terms of the invite cannot be granted.
    #[error("{0}")]
    Terms(&'static str),
    /// The certificate that came back does not fit the invite.
    #[error("the certificate is not for this machine and invite: {0}")]
    Certificate(#[from] Refusal),
}

/// This machine's membership: none, a member's, or the root holder's.
pub struct Membership {
    path: PathBuf,
    peer: PeerId,
    current: Option<(Standing, Certificate)>,
}

impl Membership {
    /// Reads `fleet.cbor` in the agent's folder, where there is one.
    pub fn open(home: &Path, peer: PeerId) -> Result<Self, MembershipError> {
        let path = home.join(FILE);
        let current = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(MembershipError::Io { path, error }),
            Ok(bytes) => {
                let checked = wire::decode(&bytes)
                    .map_err(|_| "it is not a membership file")
                    .and_then(|standing: Standing| standing.check(peer).map(|own| (standing, own)));
                match checked {
                    Ok(current) => Some(current),
                    Err(why) => return Err(MembershipError::Damaged { path, why }),
                }
            }
        };
        Ok(Self {
            path,
            peer,
            current,
        })
    }

    /// This machine.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The fleet this machine belongs to.
    pub fn fleet(&self) -> Option<FleetInfo> {
        self.current.as_ref().map(|(standing, _)| FleetInfo {
            id: standing.fleet(),
            name: standing.fleet_name().to_owned(),
            role: if standing.is_root() {
                Role::Root
            } else {
                Role::Member
            },
        })
    }

    /// This machine's own certificate.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.current.as_ref().map(|(_, certificate)| certificate)
    }

    /// Makes a fleet whose root this machine holds.
    pub fn found(
        &mut self,
        fleet_name: &str,
        own_name: &str,
        now: u64,
    ) -> Result<FleetInfo, MembershipError> {
        self.must_be_free()?;
        self.replace(Standing::found(self.peer, fleet_name, own_name, now))?;
        self.fleet().ok_or(MembershipError::NoFleet)
    }

    /// Signs an invite and books it. `now` in unix seconds.
    pub fn invite(&mut self, terms: &InviteTerms, now: u64) -> Result<Invite, MembershipError> {
        if terms.expires <= now {
            return Err(MembershipError::Terms("the invite would expire at once"));
        }
        if terms.uses == 0 || terms.uses > MAX_USES {
            return Err(MembershipError::Terms(
                "an invite has between 1 and 10,000 uses",
            ));
        }
        let (standing, _) = self.current.as_ref().ok_or(MembershipError::NoFleet)?;
        if !standing.is_root() {
            return Err(MembershipError::NotRoot);
        }
        let mut changed = standing.clone();
        let invite = changed
            .invite(self.peer, terms, now)
            .ok_or(MembershipError::Terms(TOO_MANY))?;
        self.replace(changed)?;
        Ok(invite)
    }

    /// The root holder's answer to an invite: a certificate for `peer`, booked on disk before it is returned.
    pub fn redeem(
        &mut self,
        invite: &Invite,
        peer: PeerId,
        name: &str,
        now: u64,
    ) -> Result<Certificate, Refusal> {
        let (standing, _) = self.current.as_ref().ok_or(Refusal::NoFleet)?;
        let mut changed = standing.clone();
        let (certificate, booked) = changed.redeem(invite, peer, name, now)?;
        if booked {
            self.replace(changed).map_err(|error| {
                tracing::error!(target: "skein::fleet", %error, "cannot record a new member");
                Refusal::Unrecorded
            })?;
        }
        Ok(certificate)
    }

    /// Takes on the certificate that answered `invite`.
    pub fn adopt(
        &mut self,
        invite: &Invite,
        certificate: &Certificate,
    ) -> Result<FleetInfo, MembershipError> {
        self.must_be_free()?;
        if certificate.fleet != invite.fleet {
            return Err(Refusal::ForeignFleet.into());
        }
        if certificate.peer != self.peer {
            return Err(Refusal::WrongPeer.into());
        }
        self.replace(Standing::joined(&invite.name, certificate))?;
        self.fleet().ok_or(MembershipError::NoFleet)
    }

    /// Checks the certificate that the authenticated `peer` showed.
    pub fn admit(&self, certificate: &[u8], peer: PeerId) -> Result<Certificate, Refusal> {
        let (standing, _) = self.current.as_ref().ok_or(Refusal::NoFleet)?;
        let certificate = Certificate::decode(certificate)?;
        if certificate.fleet != standing.fleet() {
            return Err(Refusal::ForeignFleet);
        }
        if certificate.peer != peer {
            return Err(Refusal::WrongPeer);
        }
        Ok(certificate)
    }

    fn must_be_free(&self) -> Result<(), MembershipError> {
        match self.fleet() {
            Some(fleet) => Err(MembershipError::AlreadyMember(fleet.name)),
            None => Ok(()),
        }
    }

    fn replace(&mut self, standing: Standing) -> Result<(), MembershipError> {
        let own = standing
            .check(self.peer)
            .map_err(|why| MembershipError::Damaged {
                path: self.path.clone(),
                why,
            })?;
        platform::write_private(&self.path, &wire::encode(&standing)).map_err(|error| {
            MembershipError::Io {
                path: self.path.clone(),
                error,
            }
        })?;
        self.current = Some((standing, own));
        Ok(())
    }
}

const TOO_MANY: &str = "too many invites are open: wait until some expire";

/// One [`Membership`] seen by everybody who needs it; a change takes effect at the next connection, without a
/// restart.
#[derive(Clone)]
pub struct SharedMembership(Arc<Inner>);

struct Inner {
    membership: RwLock<Membership>,
    changed: watch::Sender<()>,
}

impl SharedMembership {
    /// Shares a membership.
    pub fn new(membership: Membership) -> Self {
        Self(Arc::new(Inner {
            membership: RwLock::new(membership),
            changed: watch::Sender::new(()),
        }))
    }

    /// Looks at it. Do not hold the guard across an await.
    pub fn read(&self) -> RwLockReadGuard<'_, Membership> {
        // A panic cannot leave it half changed: `replace` swaps it whole.
        self.0
            .membership
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes it, and tells the swarm. May wait for the disk.
    pub fn change<T>(&self, change: impl FnOnce(&mut Membership) -> T) -> T {
        let result = change(
            &mut self
                .0
                .membership
                .write()
                .unwrap_or_else(|poisoned| poisoned.into_inner()),
        );
        self.0.changed.send_replace(());
        result
    }

    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;

    const NOW: u64 = 1_800_000_000;

    fn terms(uses: u32) -> InviteTerms {
        InviteTerms {
            expires: NOW + 60,
            uses,
            addresses: Vec::new(),
        }
    }

    fn root(folder: &tempfile::TempDir) -> Membership {
        let mut membership = Membership::open(folder.path(), Identity::generate().peer()).unwrap();
        membership.found("home", "root", NOW).unwrap();
        membership
    }

    #[test]
    fn an_invite_is_counted_per_machine_and_the_count_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut membership = root(&folder);
        let invite = membership.invite(&terms(2), NOW).unwrap();
        let [a, b, c] = [(); 3].map(|()| Identity::generate().peer());
        let first = membership.redeem(&invite, a, "a", NOW).unwrap();
        assert_eq!(membership.redeem(&invite, a, "other", NOW), Ok(first));
        membership.redeem(&invite, b, "b", NOW).unwrap();
        let mut reopened = Membership::open(folder.path(), membership.peer()).unwrap();
        assert_eq!(reopened.redeem(&invite, c, "c", NOW), Err(Refusal::UsedUp));
        assert!(reopened.redeem(&invite, a, "a", NOW).is_ok());
        assert_eq!(
            reopened.redeem(&invite, c, "c", NOW + 60),
            Err(Refusal::ExpiredInvite)
        );
    }

    #[test]
    fn an_invite_of_another_fleet_or_one_that_was_never_booked_lets_nobody_in() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut membership = root(&one);
        let mut foreign = root(&other);
        let peer = Identity::generate().peer();
        let invite = foreign.invite(&terms(1), NOW).unwrap();
        assert_eq!(
            membership.redeem(&invite, peer, "x", NOW),
            Err(Refusal::ForeignFleet)
        );
        let before = fs::read(one.path().join(FILE)).unwrap();
        let invite = membership.invite(&terms(1), NOW).unwrap();
        fs::write(one.path().join(FILE), before).unwrap();
        let mut restored = Membership::open(one.path(), membership.peer()).unwrap();
        assert_eq!(
            restored.redeem(&invite, peer, "x", NOW),
            Err(Refusal::UnknownInvite)
        );
    }

    #[test]
    fn a_member_is_admitted_and_neither_a_stranger_nor_its_impersonator_is() {
        let [one, other, third] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let mut membership = root(&one);
        let foreign = root(&other);
        let peer = Identity::generate().peer();
        let invite = membership.invite(&terms(1), NOW).unwrap();
        let certificate = membership.redeem(&invite, peer, "x", NOW).unwrap();
        let bytes = certificate.encode();
        assert_eq!(membership.admit(&bytes, peer), Ok(certificate.clone()));
        assert_eq!(
            membership.admit(&bytes, Identity::generate().peer()),
            Err(Refusal::WrongPeer)
        );
        assert_eq!(foreign.admit(&bytes, peer), Err(Refusal::ForeignFleet));
        assert_eq!(membership.admit(b"x", peer), Err(Refusal::Malformed));
        let mut joiner = Membership::open(third.path(), peer).unwrap();
        assert_eq!(joiner.admit(&bytes, peer), Err(Refusal::NoFleet));
        let info = joiner.adopt(&invite, &certificate).unwrap();
        assert_eq!((info.name.as_str(), info.role), ("home", Role::Member));
        assert!(matches!(
            joiner.invite(&terms(1), NOW),
            Err(MembershipError::NotRoot)
        ));
        assert_eq!(
            joiner.redeem(&invite, peer, "x", NOW),
            Err(Refusal::NotRoot)
        );
        assert!(matches!(
            joiner.found("second", "x", NOW),
            Err(MembershipError::AlreadyMember(_))
        ));
        let reopened = Membership::open(third.path(), peer).unwrap();
        assert_eq!(reopened.fleet(), Some(info));
    }

    #[test]
    fn a_file_of_another_key_or_of_nonsense_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        root(&folder);
        assert!(matches!(
            Membership::open(folder.path(), Identity::generate().peer()),
            Err(MembershipError::Damaged { .. })
        ));
        fs::write(folder.path().join(FILE), b"nonsense").unwrap();
        assert!(matches!(
            Membership::open(folder.path(), Identity::generate().peer()),
            Err(MembershipError::Damaged { .. })
        ));
    }
}
