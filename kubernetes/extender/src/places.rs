//! A bounded number of places, shared out fairly among clients.
//!
//! When all places are taken, a newcomer gets the oldest place of the client that holds the most.
//! A client that takes many places displaces itself, and every other client still gets one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// What counts as one client: an address, and whether it has shown a certificate. Several programs
/// may share an address, by translation or on the host's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub address: IpAddr,
    pub has_certificate: bool,
}

/// Places of one kind.
#[derive(Debug)]
pub(crate) struct Places {
    capacity: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    /// By age: the oldest first.
    holders: BTreeMap<u64, Holder>,
}

#[derive(Debug)]
struct Holder {
    client: Client,
    displaced: Arc<Notify>,
}

/// A place, until it is dropped or given to another client.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    /// Creates places; `capacity` is at least 1.
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity: capacity.max(1), held: Mutex::default() })
    }

    /// Takes a place for a client. `displaced` is notified when the place is given away.
    pub(crate) fn take(self: &Arc<Self>, client: Client, displaced: Arc<Notify>) -> Place {
        let mut held = self.held();
        if held.holders.len() >= self.capacity
            && let Some(victim) = victim(&held.holders, client)
            && let Some(holder) = held.holders.remove(&victim)
        {
            holder.displaced.notify_one();
        }
        let number = held.next;
        held.next += 1;
        held.holders.insert(number, Holder { client, displaced });
        Place { places: Arc::clone(self), number }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.held().holders.remove(&self.number);
    }
}

/// Returns the oldest place of the client that holds the most, the newcomer counted.
fn victim(holders: &BTreeMap<u64, Holder>, newcomer: Client) -> Option<u64> {
    let mut counts = HashMap::from([(newcomer, 1_usize)]);
    for holder in holders.values() {
        *counts.entry(holder.client).or_default() += 1;
    }
    let most = holders.values().map(|holder| counts[&holder.client]).max()?;
    holders.iter().find(|(_, holder)| counts[&holder.client] == most).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// Returns a client; from 10 on, that of the last digit with a certificate.
    fn client(number: u8) -> Client {
        let address = Ipv4Addr::new(10, 0, 0, number % 10).into();
        Client { address, has_certificate: number >= 10 }
    }

    /// Takes a place for each client in turn, and returns the clients that hold one, by age.
    fn holders(capacity: usize, clients: &[u8]) -> Vec<Client> {
        let places = Places::new(capacity);
        let taken: Vec<Place> =
            clients.iter().map(|one| places.take(client(*one), Arc::default())).collect();
        let holders = places.held().holders.values().map(|holder| holder.client).collect();
        drop(taken);
        assert!(places.held().holders.is_empty());
        holders
    }

    #[test]
    fn newcomer_displaces_the_client_with_the_most_places() {
        for (clients, left) in [
            (&[1, 2, 3][..], &[1, 2, 3][..]),
            // One client alone displaces itself.
            (&[1, 1, 1, 1], &[1, 1, 1]),
            (&[1, 1, 1, 2], &[1, 1, 2]),
            (&[2, 1, 1, 1, 1, 1], &[2, 1, 1]),
            // Among equals the oldest place is given away; a newcomer always gets one.
            (&[1, 2, 3, 4], &[2, 3, 4]),
            (&[1, 1, 2, 2], &[1, 2, 2]),
            // Those behind one address without a certificate displace none with one.
            (&[11, 1, 1, 1, 1], &[11, 1, 1]),
        ] {
            let left: Vec<Client> = left.iter().map(|number| client(*number)).collect();
            assert_eq!(holders(3, clients), left, "{clients:?}");
        }
    }

    #[test]
    fn displaced_holder_is_notified_and_frees_no_other_place() {
        let places = Places::new(1);
        let displaced = Arc::new(Notify::new());
        let first = places.take(client(1), Arc::clone(&displaced));
        let _second = places.take(client(2), Arc::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(displaced.notified());
        drop(first);
        assert_eq!(places.held().holders.len(), 1);
    }
}
