//! Inode numbers: a path keeps its number as long as the kernel refers to it.

use std::collections::HashMap;

/// The root's number, given by the protocol.
pub(super) const ROOT: u64 = 1;

#[derive(Debug, Default)]
pub(super) struct Inodes {
    known: HashMap<u64, Known>,
}

#[derive(Debug)]
struct Known {
    path: String,
    lookups: u64,
}

impl Inodes {
    pub(super) fn path(&self, number: u64) -> Option<String> {
        if number == ROOT {
            return Some(String::new());
        }
        self.known.get(&number).map(|known| known.path.clone())
    }

    pub(super) fn number(&self, path: &str) -> u64 {
        if path.is_empty() {
            return ROOT;
        }
        let mut number = hash(path).max(ROOT + 1);
        while self.known.get(&number).is_some_and(|known| known.path != path) {
            number = number.wrapping_add(1).max(ROOT + 1);
        }
        number
    }

    /// Counts one more reference of the kernel to a path; returns its number.
    pub(super) fn remember(&mut self, path: &str) -> u64 {
        let number = self.number(path);
        let known =
            self.known.entry(number).or_insert_with(|| Known { path: path.to_owned(), lookups: 0 });
        known.lookups += 1;
        number
    }

    /// Drops this many references of the kernel.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        if let Some(known) = self.known.get_mut(&number) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                self.known.remove(&number);
            }
        }
    }
}

/// FNV-1a.
fn hash(path: &str) -> u64 {
    path.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

pub(super) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_keeps_its_inode_until_it_is_forgotten() {
        let mut nodes = Inodes::default();
        assert_eq!(nodes.path(ROOT).as_deref(), Some(""));
        let number = nodes.remember("0/policy");
        assert_eq!(nodes.remember("0/policy"), number);
        assert_ne!(nodes.remember("0/max_inst"), number);
        assert_eq!(nodes.path(number).as_deref(), Some("0/policy"));
        nodes.forget(number, 1);
        assert!(nodes.path(number).is_some());
        nodes.forget(number, 1);
        assert_eq!(nodes.path(number), None);
        assert_eq!(nodes.remember("0/policy"), number);
    }

    #[test]
    fn paths_with_one_hash_have_two_inodes() {
        let mut nodes = Inodes::default();
        let number = nodes.number("a");
        nodes.known.insert(number, Known { path: "b".into(), lookups: 1 });
        assert_eq!(nodes.remember("a"), number + 1);
        assert_eq!(nodes.path(number).as_deref(), Some("b"));
    }
}
