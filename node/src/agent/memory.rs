//! The memory that this agent may plan with: a cap, and what is set aside for stages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Counts bytes against the owner's cap. Cloning shares the account.
#[derive(Debug, Clone)]
pub struct MemoryAccount(Arc<Mutex<Account>>);

#[derive(Debug)]
struct Account {
    cap: u64,
    next: u64,
    reserved: BTreeMap<u64, u64>,
}

/// A part of the account; dropping it gives the bytes back.
#[derive(Debug)]
pub struct Reservation {
    account: MemoryAccount,
    key: u64,
    /// Bytes set aside.
    pub bytes: u64,
}

impl MemoryAccount {
    /// An account of `cap` bytes.
    pub fn new(cap: u64) -> Self {
        MemoryAccount(Arc::new(Mutex::new(Account {
            cap,
            next: 0,
            reserved: BTreeMap::new(),
        })))
    }

    /// The owner's cap in bytes.
    pub fn cap(&self) -> u64 {
        self.lock().cap
    }

    /// Bytes set aside.
    pub fn used(&self) -> u64 {
        self.lock().reserved.values().sum()
    }

    /// Bytes left.
    pub fn free(&self) -> u64 {
        let account = self.lock();
        account.cap.saturating_sub(account.reserved.values().sum())
    }

    /// Sets `bytes` aside, or says how many are free.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, u64> {
        let mut account = self.lock();
        let free = account.cap.saturating_sub(account.reserved.values().sum());
        if bytes > free {
            return Err(free);
        }
        let key = account.next;
        account.next += 1;
        account.reserved.insert(key, bytes);
        Ok(Reservation {
            account: self.clone(),
            key,
            bytes,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Account> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.account.lock().reserved.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_reservations_cannot_spend_the_same_bytes() {
        let account = MemoryAccount::new(100);
        let first = account.reserve(60).unwrap();
        assert_eq!(account.reserve(60).unwrap_err(), 40);
        drop(first);
        assert_eq!(account.free(), 100);
        assert!(account.reserve(100).is_ok());
    }
}
