//! Handles: numbers that identify the driver's objects.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cgpu_shm::atomic::{AtomicUsize, Ordering};

/// The objects of one kind, by handle. No handle is reused, for any kind of object, so that stale
/// handles and handles of other kinds are detected.
#[derive(Debug)]
pub(crate) struct Table<T> {
    objects: RwLock<HashMap<usize, Arc<T>>>,
}

/// Above the handles with a meaning of their own (NULL and the default streams).
static NEXT: AtomicUsize = AtomicUsize::new(0x5000_0000);

pub(crate) fn fresh() -> usize {
    // Relaxed: only uniqueness matters.
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { objects: RwLock::default() }
    }
}

impl<T> Table<T> {
    /// Adds an object. Returns its handle.
    pub(crate) fn add(&self, object: T) -> usize {
        let handle = fresh();
        self.write().insert(handle, Arc::new(object));
        handle
    }

    /// Adds an object that contains its handle.
    pub(crate) fn insert(&self, handle: usize, object: Arc<T>) {
        self.write().insert(handle, object);
    }

    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.read().get(&handle).cloned()
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.write().remove(&handle)
    }

    /// Removes the objects for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) {
        self.write().retain(|_, object| keep(object));
    }

    /// Returns the handle of the first object that fits.
    pub(crate) fn find(&self, fits: impl Fn(&T) -> bool) -> Option<(usize, Arc<T>)> {
        self.read()
            .iter()
            .find(|(_, object)| fits(object))
            .map(|(&handle, object)| (handle, Arc::clone(object)))
    }

    /// Returns all objects that fit, in the order of their handles.
    pub(crate) fn all(&self, fits: impl Fn(&T) -> bool) -> Vec<(usize, Arc<T>)> {
        let objects = self.read();
        let fitting = objects.iter().filter(|(_, object)| fits(object));
        let mut all: Vec<_> =
            fitting.map(|(&handle, object)| (handle, Arc::clone(object))).collect();
        all.sort_unstable_by_key(|(handle, _)| *handle);
        all
    }

    // A panic cannot leave the map half changed: the changes are single insertions and removals.
    fn read(&self) -> RwLockReadGuard<'_, HashMap<usize, Arc<T>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<usize, Arc<T>>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_never_reused() {
        let table = Table::default();
        let first = table.add("first");
        assert_eq!(table.get(first).as_deref(), Some(&"first"));
        assert_eq!(table.remove(first).as_deref(), Some(&"first"));
        assert_eq!(table.get(first), None);
        assert_ne!(table.add("second"), first);
        table.retain(|object| *object != "second");
        assert_eq!(table.find(|_| true), None);
    }
}
